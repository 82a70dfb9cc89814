"""Work in a process of its own: results, reports, limits, stops, crashes."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import threading
import time

import pytest
import torch

from app.jobs import job as jobs
from app.jobs.job import Job, JobError, run


def _gone(pid: int) -> bool:
    for _ in range(100):
        if subprocess.run(["ps", "-p", str(pid)], capture_output=True).returncode:
            return True
        time.sleep(0.05)
    return False


def test_a_job_returns_what_the_function_returns() -> None:
    assert run(math.sqrt, 9) == 3.0


def test_each_job_has_a_process_of_its_own_with_torch_in_it() -> None:
    pids = {run(os.getpid) for _ in range(3)}
    assert len(pids) == 3
    assert os.getpid() not in pids
    assert run(eval, "'torch' in __import__('sys').modules") is True


def test_what_one_job_changes_no_other_job_sees() -> None:
    run(torch.set_default_dtype, torch.float64)
    assert run(torch.get_default_dtype) == torch.float32
    assert torch.get_default_dtype() == torch.float32


def test_an_exception_comes_back_with_its_name_and_message() -> None:
    with pytest.raises(JobError, match="math domain error") as caught:
        run(math.sqrt, -1)
    assert caught.value.kind == "ValueError"


def test_a_crash_ends_the_job_and_nothing_else() -> None:
    with pytest.raises(JobError, match="ended") as caught:
        run(signal.raise_signal, signal.SIGSEGV)
    assert caught.value.kind == "Crash"
    assert run(math.sqrt, 4) == 2.0


def test_a_job_that_asks_for_too_much_memory_gets_an_error() -> None:
    with pytest.raises(JobError) as caught:
        run(bytearray, 50 << 30)
    assert caught.value.kind == "MemoryError"


def test_a_job_past_its_time_is_ended() -> None:
    with Job(time.sleep, 60, seconds=0.3) as job:
        beats = list(job)
    with pytest.raises(JobError, match=r"after 0.3 s, the limit"):
        _ = job.result
    assert len(beats) >= 2


def test_leaving_the_block_ends_the_process() -> None:
    with Job(eval, "(__import__('app.jobs.server').jobs.server.report(__import__('os').getpid()), "
             "__import__('time').sleep(60))", seconds=60) as job:  # fmt: skip
        pid = next(value for value in job if value is not None)
        assert pid != os.getpid()
    assert _gone(pid)
    with pytest.raises(JobError, match="was stopped"):
        _ = job.result


def test_reports_arrive_in_order_before_the_result() -> None:
    text = "[__import__('app.jobs.server').jobs.server.report(i) for i in range(5)]"
    with Job(eval, text, seconds=10) as job:
        assert [value for value in job if value is not None] == [0, 1, 2, 3, 4]
    assert job.result == [None] * 5


def test_twenty_jobs_at_once_each_return_their_own_result() -> None:
    results: dict[int, float] = {}

    def one(number: int) -> None:
        results[number] = run(math.pow, number, 2)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: number**2 for number in range(20)}


def test_a_server_that_died_is_started_anew() -> None:
    run(math.sqrt, 1)
    process = jobs._server()[2]
    process.kill()
    process.wait()
    assert run(math.sqrt, 16) == 4.0
