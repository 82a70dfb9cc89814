"""Print, as JSON, the reports of ranks on gloo for mistakes.py and healthy.py, or for apart.py.

    torchrun --nproc-per-node 2 -m tests.support.processes.reports [apart]

Each run has its own process group. A mistake runs twice: as written, and repaired.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from typing import Any

import torch.distributed as dist

from graphviz_torch import Finding, find
from graphviz_torch.graph import TrainingStep
from graphviz_torch.graph.files.file import text_of, value_of
from graphviz_torch.integrations.ranks import RankReport, merge_findings
from graphviz_torch.integrations.steps import LoopSteps, due_steps
from tests.findings.corpus.cases import Recorder
from tests.support.processes.apart import APART, TOGETHER
from tests.support.processes.healthy import HEALTHY
from tests.support.processes.mistakes import ROWS

warnings.filterwarnings("ignore")
TIMEOUT = timedelta(seconds=5)  # for a collective that a rank does not call
MINUTE = timedelta(minutes=1)


def runs() -> Iterator[tuple[str, Callable[[], RankReport]]]:
    """Yield the name of each program, and a function that returns this rank's report."""
    for name, row in ROWS.items():
        program: Any = row.program
        yield name, partial(block, partial(program, repaired=False))
        yield f"{name}, repaired", partial(block, partial(program, repaired=True))
    for name, one in HEALTHY.items():
        yield name, partial(block, one)


def trainings() -> Iterator[tuple[str, Callable[[], RankReport]]]:
    """Yield, for each training of apart.py, its name and a function that returns the report."""
    for name, row in APART.items():
        yield name, partial(steps, partial(row.program, False))
        yield f"{name}, repaired", partial(steps, partial(row.program, True))
    for name, training in TOGETHER.items():
        yield name, partial(steps, training)


def block(program: Callable[..., object]) -> RankReport:
    """Return the report of a program that records a block."""
    recorder = Recorder()
    with suppress(RuntimeError):
        program(recorder)
    recording = recorder.recording
    findings = tuple(find(recording))
    return RankReport(
        dist.get_rank(), len(recording.graphs), findings, TrainingStep(0, (recording.graph,))
    )


def steps(program: Callable[[], object]) -> RankReport:
    """Return the report of a program whose steps are recorded, as by `graphviz-torch run`."""
    told: list[TrainingStep] = []
    findings: list[Finding] = []

    def take(step: TrainingStep, found: list[Finding]) -> None:
        told.append(step)
        findings.extend(each for each in found if each not in findings)

    loop = LoopSteps(due_steps(), take, notes=False)
    program()
    loop.close()
    return RankReport(dist.get_rank(), len(told), tuple(findings), told[-1])


def main() -> None:
    store, rank, size = next(dist.rendezvous("env://", timeout=MINUTE))
    reports = {}
    for name, make in trainings() if sys.argv[1:] == ["apart"] else runs():
        own: Any = dist.PrefixStore(name, store)
        dist.init_process_group("gloo", store=own, rank=rank, world_size=size, timeout=TIMEOUT)
        own.set(f"report {rank}", text_of(make()))
        dist.destroy_process_group()
        if rank == 0:
            texts = [own.get(f"report {i}").decode() for i in range(size)]
            found = merge_findings([value_of(text, RankReport) for text in texts])
            reports[name] = [asdict(each) for each in found]
    if rank == 0:
        print("RESULT", json.dumps(reports), flush=True)


if __name__ == "__main__":
    main()
