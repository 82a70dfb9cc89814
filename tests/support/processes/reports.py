"""What ranks on gloo report together of each program of mistakes.py and healthy.py, as JSON.

    torchrun --nproc-per-node 2 -m tests.support.processes.reports

Each run has a process group of its own; of a mistake there are two, as written and repaired.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from typing import Any

import torch.distributed as dist

from graphviz_torch import TrainingStep, find
from graphviz_torch.graph.files.file import text_of, value_of
from graphviz_torch.integrations.ranks import RankReport, one_list
from tests.findings.corpus.cases import Recorder
from tests.support.processes.healthy import HEALTHY
from tests.support.processes.mistakes import ROWS

warnings.filterwarnings("ignore")
TIMEOUT = timedelta(seconds=5)  # of a collective that a rank does not ask for
MINUTE = timedelta(minutes=1)


def runs() -> Iterator[tuple[str, Callable[..., object]]]:
    """Every run by its name."""
    for name, row in ROWS.items():
        program: Any = row.program
        yield name, partial(program, repaired=False)
        yield f"{name}, repaired", partial(program, repaired=True)
    yield from HEALTHY.items()


def report(program: Callable[..., object]) -> RankReport:
    """This rank's part of the report on a program."""
    recorder = Recorder()
    with suppress(RuntimeError):
        program(recorder)
    recording = recorder.recording
    findings = tuple(find(recording))
    return RankReport(
        dist.get_rank(), len(recording.graphs), findings, TrainingStep(0, (recording.graph,))
    )


def main() -> None:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store: Any = dist.TCPStore(*address, is_master=False, timeout=MINUTE)
    reports = {}
    for name, program in runs():
        own: Any = dist.PrefixStore(name, store)
        dist.init_process_group("gloo", store=own, rank=rank, world_size=size, timeout=TIMEOUT)
        own.set(f"report {rank}", text_of(report(program)))
        dist.destroy_process_group()
        if rank == 0:
            texts = [own.get(f"report {i}").decode() for i in range(size)]
            found = one_list([value_of(text, RankReport) for text in texts])
            reports[name] = [asdict(each) for each in found]
    if rank == 0:
        print("RESULT", json.dumps(reports), flush=True)


if __name__ == "__main__":
    main()
