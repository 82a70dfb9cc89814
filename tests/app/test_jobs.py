"""Test jobs in child processes: results, progress, limits, stops and crashes."""

from __future__ import annotations

import gzip
import json
import math
import os
import signal
import subprocess
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from app.jobs import job as jobs
from app.jobs.job import Job, JobError, JobQueue, Queued, run
from app.models import gallery
from app.panels import results as panel
from graphviz_torch import Graph
from graphviz_torch.graph import Node, TensorMeta
from graphviz_torch.graph.json import to_json
from tests.support.programs import in_threads

REPORT_PID = "__import__('app.jobs.server').jobs.server.report(__import__('os').getpid())"
BUSY = "sum(1 for _ in iter(int, 1))"  # never ends, and never gives the interpreter away


def _gone(pid: int) -> bool:
    for _ in range(100):
        if subprocess.run(["ps", "-p", str(pid)], capture_output=True).returncode:
            return True
        time.sleep(0.05)
    return False


def test_a_job_returns_what_the_function_returns() -> None:
    assert run("math:sqrt", 9) == 3.0


def test_each_job_has_a_process_of_its_own_with_torch_in_it() -> None:
    pids = {run("os:getpid") for _ in range(3)}
    assert len(pids) == 3
    assert os.getpid() not in pids
    assert run("builtins:eval", "'torch' in __import__('sys').modules") is True


def test_what_one_job_changes_no_other_job_sees() -> None:
    run("torch:set_default_dtype", torch.float64)
    assert run("torch:get_default_dtype") == torch.float32
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize(
    ("function", "argument", "kind", "said"),
    [
        ("math:sqrt", -1, "ValueError", "."),
        ("builtins:bytearray", 50 << 30, "MemoryError", None),
        ("signal:raise_signal", signal.SIGSEGV, "Crash", "ended"),
        (
            "builtins:eval",
            "(_ for _ in ()).throw(type('report', (Exception,), {})('no'))",
            "report",
            "no",
        ),
    ],
)
def test_what_goes_wrong_in_a_job_is_an_error_there_and_harms_no_other(
    function: str, argument: object, kind: str, said: str | None
) -> None:
    with pytest.raises(JobError, match=said) as caught:
        run(function, argument)
    assert caught.value.kind == kind
    assert run("math:sqrt", 4) == 2.0


@pytest.mark.parametrize(
    ("call", "said"),
    [(("time:sleep", 600), "after 10 s without"), (("builtins:eval", BUSY), "after 1 s of comp")],
)
def test_a_job_past_its_time_is_ended(call: tuple[Any, ...], said: str) -> None:
    with Job(*call, seconds=1) as job:
        beats = list(job)
    with pytest.raises(JobError, match=said):
        _ = job.result
    assert len(beats) >= 2


def test_the_limit_counts_what_a_job_computes_and_not_how_long_it_waits_for_a_processor() -> None:
    with Job[str]("builtins:eval", "__import__('time').sleep(2) or 'done'", seconds=1) as job:
        for _ in job:
            pass
    assert job.result == "done"


SLEEPS = "__import__('time').sleep(60)"
CHILD = "__import__('subprocess').Popen(['sleep', '600']).pid"


@pytest.mark.parametrize(
    "text",
    [
        f"({REPORT_PID}, {SLEEPS})",
        f"({REPORT_PID}, sum(range(10 ** 13)))",  # holds the interpreter
        f"(__import__('app.jobs.server').jobs.server.report({CHILD}), {BUSY})",
    ],
    ids=["asleep", "busy", "its child"],
)
def test_leaving_the_block_ends_the_process(text: str) -> None:
    with Job("builtins:eval", text, seconds=600) as job:
        pid = next(value for value in job if value is not None)
        assert pid != os.getpid()
    assert _gone(pid)
    with pytest.raises(JobError, match="was stopped"):
        _ = job.result


@pytest.mark.parametrize("names", [["SIGKILL"], ["SIGTERM", "SIGHUP"]], ids=" ".join)
def test_a_job_ends_with_its_server_and_its_folder_is_removed(names: list[str]) -> None:
    server = jobs.start()
    folder = Path(server.folder.name)
    with Job[Any]("builtins:eval", f"({REPORT_PID}, {SLEEPS})", seconds=600) as job:
        pid = next(value for value in job if value is not None)
        assert [*folder.glob("job-*")]
        for name in names:
            os.kill(server.process.pid, getattr(signal, name))
        if names == ["SIGKILL"]:
            assert _gone(pid)
            assert not [*folder.glob("job-*")]
        else:  # a signal to the group is for the app: the server ends with it
            assert run("math:sqrt", 4) == 2.0
            assert server.process.poll() is None
            server.requests.close()
            assert server.process.wait(60) == 0
            assert _gone(pid)
            assert not folder.exists()


def test_reports_arrive_in_order_before_the_result() -> None:
    text = "[__import__('app.jobs.server').jobs.server.report(i) for i in range(5)]"
    with Job("builtins:eval", text, seconds=10) as job:
        assert [value for value in job if value is not None] == [0, 1, 2, 3, 4]
    assert job.result == [None] * 5


def test_twenty_jobs_at_once_each_return_their_own_result() -> None:
    results = in_threads(*(partial(run, "math:pow", number, 2) for number in range(20)))
    assert results == [number**2 for number in range(20)]


def test_calls_that_no_visitor_waits_for_stand_in_the_same_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jobs, "QUEUE", JobQueue(2))
    clock = "__import__('time').monotonic()"
    text = f"({clock}, __import__('time').sleep(0.2), {clock})"
    spans = in_threads(*[partial(run, "builtins:eval", text)] * 7)
    for start, _, _ in spans:
        assert sum(begin <= start < end for begin, _, end in spans) <= 2


def test_a_server_that_died_is_started_anew_and_imports_the_compiler_after_its_first_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jobs, "QUEUE", JobQueue(1))  # the second job waits for the end of the first
    server = jobs.start().process
    server.kill()
    server.wait()
    text = "'torch._dynamo' in __import__('sys').modules"
    assert [run("builtins:eval", text, seconds=60) for _ in range(2)] == [False, True]


def test_a_place_is_free_only_when_its_job_is_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "QUEUE", JobQueue(2))
    text = f"({REPORT_PID}, {BUSY})"
    for _ in range(7):
        alive = []
        with Job("builtins:eval", text, seconds=600) as job:
            alive.append(next(value for value in job if isinstance(value, int)))
        ticket = jobs.QUEUE.enter("last")
        while ticket.ahead is not None:
            time.sleep(0.01)
        ticket.leave()
    dead = [subprocess.run(["ps", "-p", str(pid)], capture_output=True).returncode for pid in alive]
    assert all(dead)


def test_places_go_first_come_first_served_and_one_to_a_visitor() -> None:
    queue = JobQueue(2)
    ann, again, ben, eve = (queue.enter(name) for name in ("Ann", "Ann", "Ben", "Eve"))
    assert [ticket.ahead for ticket in (ann, again, ben, eve)] == [None, 0, None, 1]
    ben.leave()  # Ann has a job: the next place is Eve's
    assert [ticket.ahead for ticket in (again, eve)] == [0, None]
    ann.leave()
    ann.leave()
    assert again.ahead is None
    again.leave()
    eve.leave()
    assert queue.enter("Zoe").ahead is None


def test_a_job_in_the_queue_says_how_many_are_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "QUEUE", JobQueue(1))
    first, second = jobs.QUEUE.enter("Ann"), jobs.QUEUE.enter("Ben")
    with Job("math:sqrt", 9, seconds=10, visitor="Eve") as job:
        steps = iter(job)
        assert next(steps) == Queued(1)
        second.leave()
        assert next(steps) == Queued(0)
        first.leave()
        assert all(not isinstance(value, Queued) for value in steps)
    assert job.result == 3


def test_a_visitor_who_waits_reads_his_place_in_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "QUEUE", JobQueue(1))
    before = [jobs.QUEUE.enter("Ann"), jobs.QUEUE.enter("Ben")]
    said: list[str] = []

    class Bar:
        def progress(self, share: float, text: str) -> None:
            said.append(text)
            if before:
                before.pop().leave()  # the last one gives up, then the first one is done

    monkeypatch.setattr(panel, "_QUIET_SECONDS", 0)
    monkeypatch.setattr(panel, "_bar", lambda *_: Bar())
    job = Job[float]("math:sqrt", 9, seconds=10, visitor="Eve")
    assert panel.wait(job, "Running backward", "a choice", key="here") == 3
    assert said[:2] == [
        "Running backward: waiting for a free place, 1 visitor is before you",
        "Running backward: waiting for a free place, you are next",
    ]


@pytest.mark.parametrize("ending", ["None", "1 / 0", "__import__('os')._exit(3)", BUSY])
def test_a_jobs_folder_goes_with_it_however_it_ends(ending: str) -> None:
    folder = "__import__('tempfile').mkdtemp()"
    text = f"(__import__('app.jobs.server').jobs.server.report({folder}), {ending})"
    with Job("builtins:eval", text, seconds=0.5 if ending == BUSY else 20) as job:
        [path] = [value for value in job if value is not None]
        assert path.startswith(jobs.start().folder.name)
    for _ in range(200):
        if not os.path.exists(path):
            break
        time.sleep(0.02)
    assert not os.path.exists(path)


def test_an_error_never_names_a_path_of_the_server() -> None:
    for path in ("/etc/no/such file", "/no/such/home/key", os.path.abspath(__file__) + "x"):
        with pytest.raises(JobError) as caught:
            run("builtins:open", path)
        assert "/" not in str(caught.value).replace("No such file or directory", "")


def test_an_upload_of_a_million_nodes_is_refused_in_a_job_with_a_sentence() -> None:
    few, many = 1_000, 1_000_000
    meta = TensorMeta((1,), "float32", "cpu")
    file = json.loads(to_json(Graph(tuple(Node(i, "AddBackward0", (meta,)) for i in range(few)))))

    def longer(value: Any) -> Any:
        """Return the same value with `many` items where it has `few`."""
        if isinstance(value, dict):
            return {name: longer(each) for name, each in value.items()}
        if value == list(range(few)):
            return list(range(many))
        lists = isinstance(value, list)
        return value * (many // few) if lists and len(value) == few else value

    file["nodes"] = longer(file["nodes"]) | {"lengths": [many]}
    with pytest.raises(JobError, match=r"has 1,000,000 nodes; the app shows at most 50,000\."):
        run(".recordings:read", gzip.compress(json.dumps(file).encode()), "a.json.gz", seconds=60)


def test_a_result_that_is_too_large_is_refused_with_a_sentence() -> None:
    with pytest.raises(JobError, match="The result has 200 MiB: at most 128 MiB"):
        run("builtins:bytes", 200 << 20)


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("tensor_parallel", ["all_reduce"]),  # of what both ranks have of the output
        ("fully_sharded", ["all_gather"] * 4 + ["reduce_scatter"] * 2),
    ],
)
def test_two_ranks_of_a_sample_have_the_whole_between_them(name: str, sent: list[str]) -> None:
    ranks = run(".ranks:record_mesh", name, seconds=60)
    assert [[each.kind for each in rank.graph.collectives] for rank in ranks] == [sent, sent]
    lines = gallery.model(name).code.splitlines()
    for rank in ranks:
        for each in rank.graph.collectives:
            file, _, number = each.where.partition(":")
            assert file == f"{name}.py"
            assert ("model(batch)" if each.phase == "forward" else "backward") in lines[
                int(number) - 1
            ]
    held = [
        math.prod(json.loads(each.placement.partition("local ")[2]))
        for rank in ranks
        for each in rank.graph.parameters
    ]
    whole = 16 * 64 + 64 + 64 * 16 + 16
    copied = 16 if name == "tensor_parallel" else 0  # the last bias, which both have
    assert sum(held) == whole + copied
