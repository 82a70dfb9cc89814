"""Run each example unchanged in an empty folder."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes.forks import forked
from tests.support.processes.launch import launched

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PARALLEL = sorted((ROOT / "examples" / "parallel").glob("*.py"))
RANKS = {  # the examples that start torchrun, and their number of ranks
    path: int(found[1])
    for path in EXAMPLES
    if (found := re.search(r"^RANKS = (\d+)$", path.read_text(), re.M))
}
ENGINES = {"ray_train": "ray", "deepspeed_zero": "deepspeed"}  # which need a package of their own


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_example_runs_and_what_it_claims_holds(path: Path, tmp_path: Path) -> None:
    done = forked(path, folder=tmp_path, ranks=RANKS.get(path, 0))
    assert done.returncode == 0, done.stdout + done.stderr
    if path.name == "16_who_has_what.py":
        page = ROOT / "docs" / "tutorial" / "7-many-processes.md"
        assert f"```text\n{done.stdout}```" in page.read_text("utf-8")


@pytest.mark.parametrize("path", RANKS, ids=lambda path: path.name)
def test_an_example_of_several_ranks_starts_torchrun_itself(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHON_EXEC", "echo")  # in place of Python, which the test above starts
    done = forked(path, folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(f"-u {path}\n") == RANKS[path]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_example_asserts_what_it_claims(path: Path) -> None:
    assert "assert " in path.read_text()


@pytest.fixture(scope="module")
def ranks() -> dict[str, list[dict[str, Any]]]:
    """What four ranks recorded of each program of one kind of parallelism."""
    programs = [str(path) for path in PARALLEL if path.stem not in ENGINES]
    return launched("tests.support.processes.examples", "4", *programs)


@pytest.mark.parametrize(
    "path", [path for path in PARALLEL if path.stem not in ENGINES], ids=lambda path: path.stem
)
def test_every_rank_of_a_parallel_program_is_recorded_with_a_line_for_each_collective(
    path: Path, ranks: dict[str, list[dict[str, Any]]]
) -> None:
    every = ranks[path.stem]
    assert len(every) == 4
    for rank in every:
        assert rank["unnamed"] == 0
        assert rank["findings"] == []
    page = (ROOT / "docs" / "parallel.md").read_text("utf-8")
    assert f"| `{path.name}` | {sent_in_words(every[0]['sent'])} |" in page


@pytest.mark.parametrize("name", ENGINES)
def test_a_program_of_an_engine_that_is_not_installed_with_the_tests_runs_where_it_is(
    name: str, tmp_path: Path
) -> None:
    package = ENGINES[name]
    pytest.importorskip(package, reason=f"{package} is large, and no other test needs it")
    path = ROOT / "examples" / "parallel" / f"{name}.py"
    if name == "ray_train":  # it starts its workers itself
        done = forked(path, folder=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        return
    for rank in launched("tests.support.processes.examples", "2", str(path))[name]:
        assert rank["unnamed"] == 0
        assert rank["findings"] == []


def sent_in_words(sent: dict[str, int]) -> str:
    """What a rank sent, as the page says it: without what it sent outside of the steps."""
    steps = {name: n for name, n in sent.items() if " in other" not in name or "end in" in name}
    steps |= {name: n for name, n in sent.items() if name.startswith("recv")}
    return "; ".join(
        f"{n} {name.replace(' in other', '').rstrip(' ·')}" for name, n in steps.items()
    )
