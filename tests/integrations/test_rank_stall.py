"""Test the messages on ranks that wait for each other, and on errors that end the wait."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from graphviz_torch.graph import CollectiveCalls, RankPosition
from graphviz_torch.integrations import stall
from graphviz_torch.integrations.ranks import Ranks
from graphviz_torch.integrations.stall import stall_text
from tests.support.processes.forks import forked

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch without distributed")

TRAINING = """\
import sys
from datetime import timedelta
import torch, torch.distributed as dist

way, seconds = sys.argv[1], float(sys.argv[2])
dist.init_process_group("gloo")  # ranks of a busy machine begin far apart
dist.distributed_c10d._set_pg_timeout(timedelta(seconds=seconds))
rank, last = dist.get_rank(), dist.get_world_size() - 1
x = torch.ones(3)
for step in range(3):
    dist.all_reduce(x)
    if way != "skips" or rank != last or step != 1:
        dist.all_reduce(x)  # line 13
if way == "gathers" and rank == last:
    dist.all_gather([torch.ones(3) for _ in range(last + 1)], x)  # line 15
if way != "ends" or rank != last:
    dist.all_reduce(x)  # line 17
"""


def written(folder: Path, seconds: float) -> Path:
    """The command, with `seconds` until a rank asks where the others are, beside the training."""
    (folder / "train.py").write_text(TRAINING)
    command = folder / "command.py"
    command.write_text(
        "import sys\nfrom graphviz_torch.integrations import stall\n"
        f"stall.STALL_SECONDS = {seconds}\n"
        "from graphviz_torch.integrations.command.main import main\nsys.exit(main())\n"
    )
    return command


@pytest.mark.parametrize(
    ("ranks", "way", "says"),
    [
        (
            2,
            "skips",
            "rank 0 waits in all_reduce at train.py:17; rank 1 has ended after all_reduce at "
            "train.py:17, and called all_reduce at train.py:13 1 time fewer",
        ),
        (
            4,
            "gathers",
            "ranks 0 to 2 wait in all_reduce at train.py:17; rank 3 is in all_gather at "
            "train.py:15, called 1 time more",
        ),
        (
            4,
            "ends",
            "ranks 0 to 2 wait in all_reduce at train.py:17; rank 3 has ended after all_reduce at "
            "train.py:13",
        ),
    ],
)
def test_a_wait_that_ends_in_an_error_is_told_once_and_what_is_different_at_the_others(
    tmp_path: Path, ranks: int, way: str, says: str
) -> None:
    command = written(tmp_path, seconds=60)
    run = forked(command, "run", "train.py", way, "4", folder=tmp_path, ranks=ranks)
    said = run.stderr
    assert said.count(f"graphviz-torch: {says}\n") == 1
    assert said.count(" in all_reduce at train.py:17;") == 1
    assert "works.py" not in said  # tracebacks are the program's own
    assert run.returncode == 1


def test_a_wait_is_told_while_it_lasts_and_before_a_signal_ends_it(tmp_path: Path) -> None:
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone")
    command = (written(tmp_path, seconds=2), "run", "train.py", "gathers", "200")
    run = subprocess.Popen(
        [*torchrun, "--nproc-per-node=2", *command],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert run.stderr is not None
    for line in run.stderr:
        if "all_gather at" in line:
            break
    run.send_signal(signal.SIGTERM)
    run.communicate(timeout=60)
    assert line.startswith("graphviz-torch: for ")
    assert line.endswith(
        " seconds rank 0 waits in all_reduce at train.py:17; rank 1 is in all_gather at "
        "train.py:15, called 1 time more\n"
    )


def calls(**times: int) -> tuple[CollectiveCalls, ...]:
    """Return the calls of all four ranks, one per line: `a=3` means three calls at "a"."""
    return tuple(
        CollectiveCalls("all_reduce", "", (0, 1, 2, 3), line, count)
        for line, count in times.items()
    )


def test_ranks_that_came_equally_far_and_wait_for_nobody_are_not_told() -> None:
    after = RankPosition(calls(a=3, b=3), 1, "outside")
    assert stall_text(dict.fromkeys(range(4), after)) == ""
    assert stall_text({}) == ""
    assert stall_text({0: RankPosition(), 1: None}) == ""


def test_what_cpp_waits_for_is_known_by_the_counts() -> None:
    ahead, behind = RankPosition(calls(a=3), 0), RankPosition(calls(a=2), 0, "ended")
    assert stall_text({0: ahead, 1: ahead, 2: behind, 3: ahead}) == (
        "ranks 0, 1 and 3 last began all_reduce at a; rank 2 has ended after all_reduce at a, "
        "called 1 time fewer"
    )


def test_a_rank_that_has_not_come_to_where_cpp_waits_is_said_to_be_behind() -> None:
    ahead, behind = RankPosition(calls(a=3, b=3), 1), RankPosition(calls(a=3, b=2), 0)
    assert stall_text({0: ahead, 1: ahead, 2: ahead, 3: behind}) == (
        "ranks 0 to 2 last began all_reduce at b; rank 3 last began all_reduce at a, "
        "and called all_reduce at b 1 time fewer"
    )


def test_a_line_that_a_rank_never_came_to_is_told() -> None:
    waits = RankPosition(calls(a=3, b=2, c=1), 2, "inside")
    text = stall_text({0: waits, 1: waits, 2: RankPosition(calls(a=3), 0), 3: waits})
    assert text == (
        "ranks 0, 1 and 3 wait in all_reduce at c; rank 2 last began all_reduce at a, "
        "and called all_reduce at b 2 times fewer"
    )


def test_ranks_of_two_groups_that_did_the_same_are_not_compared_with_each_other() -> None:
    left = CollectiveCalls("all_gather", "tp", (0, 1), "a", 5)
    right = CollectiveCalls("all_gather", "tp", (2, 3), "a", 7)
    messages = CollectiveCalls("send", "", (0, 1, 2, 3), "p", 4)
    world = calls(b=1)
    waits = RankPosition((left, *world), 1, "inside")
    text = stall_text(
        {
            0: waits,
            1: waits,
            2: RankPosition((right, messages, *world), 2, "inside"),
            3: RankPosition((right,), 0, "inside"),
        }
    )
    assert text == "ranks 0 to 2 wait in all_reduce at b; rank 3 is in all_gather of tp at a"


def test_of_many_kinds_of_places_a_few_are_told() -> None:
    positions = {
        rank: RankPosition((CollectiveCalls("barrier", "", tuple(range(20)), f"{rank}"),), 0)
        for rank in range(20)
    }
    text = stall_text({**positions, 20: RankPosition(calls(a=1), 0, "inside")})
    assert text.count("; ") == 7
    assert text.endswith("; and 14 more kinds")


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Ranks:
    """Return the first of two ranks; its threads do not check anything by themselves."""
    monkeypatch.setattr(stall, "_POLL_SECONDS", 100.0)
    return Ranks(0, 2, dist.HashStore())


def test_a_rank_that_goes_on_tells_the_others_nothing(ranks: Ranks) -> None:
    said: list[str] = []
    watch = stall.StallWatch(ranks, said.append)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        for second in range(100):
            dist.all_reduce(torch.ones(1))
            watch._check_progress(float(second))
        assert ranks.positions() == {}
        watch._check_progress(101.0)  # it stands still
        [at] = ranks.positions().values()
        assert at is not None
        assert [call.times for call in at.calls] == [100]
        dist.all_reduce(torch.ones(1))
        watch._check_progress(102.0)
        assert ranks.positions() == {0: None}
    finally:
        dist.destroy_process_group()
        watch.close()
    assert said == []
    [at] = ranks.positions().values()
    assert at is not None
    assert at.state == "ended"


def test_the_first_rank_that_finds_a_difference_tells_it(ranks: Ranks) -> None:
    said: list[str] = []
    other = Ranks(1, 2, ranks._store)
    watches = [stall.StallWatch(each, said.append) for each in (ranks, other)]
    for second in (0.0, 1.0):  # both stand still, and tell it
        for watch in watches:
            watch._check_progress(second)
    loop = CollectiveCalls("all_reduce", "", (0, 1), "train.py:7")
    ranks.publish(RankPosition((loop,), 0, "inside"))
    for watch in watches:
        watch._check_progress(20.0)
        watch._check_progress(2000.0)
        watch.close()
    assert said == [
        "for 20 seconds rank 0 waits in all_reduce at train.py:7; rank 1 has begun no collective"
    ]


def test_the_documentation_shows_what_its_example_says() -> None:
    root = Path(__file__).parents[2]
    example = (root / "examples" / "15_ranks_that_wait.py").read_text()
    said = "".join(re.findall(r'^        "(.*)"$', example, re.M))
    assert said.startswith("graphviz-torch: rank 0 waits")
    assert f"```\n{said}\n```" in (root / "docs" / "guides" / "torchrun.md").read_text()
