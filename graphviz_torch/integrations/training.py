"""`record_steps`: some steps of a training recorded, by one line before the loop.

For plain loops, Accelerate and Fabric; the callbacks for Lightning and Transformers report by the
same means. Findings go to the log "graphviz_torch"; graph and gradient norms to loggers that run.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist

from .. import Finding, Graph
from ..distributed import gather_graphs
from ..findings import find
from ..findings.run_findings import RunFindings
from ..graph import TrainingStep
from ..graph.training.file import TrainingFile
from .loggers import send
from .ranks import whole_parameters
from .steps import Compiled, Due, LoopSteps, due_steps

RaiseOn = Literal["error", "warning", "never"]
_LOG = logging.getLogger("graphviz_torch")
_LEVELS = {"error": logging.ERROR, "warning": logging.WARNING, "info": logging.INFO}


class FindingsError(RuntimeError):
    """A recorded step of a training has findings that `raise_on` names."""

    def __init__(self, step: int, found: Sequence[Finding]) -> None:
        self.findings = tuple(found)
        lines = [f"{len(found)} found in step {step}", *map(_line, found)]
        super().__init__("\n".join(lines))


class Report:
    """What is done with a recorded step.

    Args:
        nonfinite: leave out steps in which every recorded gradient is finite.
        loggers: get the graph and the gradient norms: a TensorBoard `SummaryWriter`, a wandb run,
            the module `mlflow`.
        folder: gets the steps as one file, "run.json.gz", of several ranks "run.rank1.json.gz".
        raise_on: "error" or "warning" raises FindingsError for such a finding, or a worse one.
    """

    def __init__(
        self,
        *,
        nonfinite: bool = False,
        loggers: Iterable[Any] = (),
        folder: str | Path | None = None,
        raise_on: RaiseOn = "never",
    ) -> None:
        if raise_on not in ("error", "warning", "never"):
            raise ValueError(f"raise_on={raise_on!r} is unknown: 'error', 'warning' or 'never'.")
        self.loggers = list(loggers)
        self._nonfinite = nonfinite
        self._folder = None if folder is None else Path(folder)
        self._files: dict[str, TrainingFile] = {}
        self._raise_on = raise_on
        self.graphs: dict[int, Graph] = {}  # by step, the last one only
        self._found = RunFindings()
        self._steps = 0  # that were reported

    def __call__(self, recorded: TrainingStep, found: list[Finding]) -> None:
        """Report a step, and what was found in it; or the last one again, with more."""
        if self._nonfinite and not any(map(_nonfinite, recorded.graphs)):
            return
        step, graph = recorded.number, recorded.graph
        again = step in self.graphs
        self.graphs = {step: graph}
        # With either, the other ranks may not report.
        ranks = None if self._nonfinite or again else _ranks(graph)
        if ranks is not None:
            found = [*find(ranks), *found]
        if not (again and _world() > 1):  # else the file of all ranks has it
            self._save([recorded] if ranks is None else [TrainingStep(step, (g,)) for g in ranks])
        self._steps += not again
        for each in self._found.add(self._steps - 1, found, recorded.graphs):
            _LOG.log(_LEVELS[each.severity], "step %d: %s", step, _line(each))
        if _rank() == 0 and not again:
            if ranks is not None:
                graph = replace(graph, parameters=whole_parameters(ranks))
            for logger in self.loggers:
                send(logger, graph, step)
        least = self._raise_on
        if least != "never" and (raised := [f for f in found if f.is_at_least(least)]):
            raise FindingsError(step, raised)

    @property
    def findings(self) -> list[Finding]:
        """What was found so far, each thing once."""
        return self._found.all(self._steps)

    def _save(self, steps: list[TrainingStep]) -> None:
        """Write this rank's step, or that of each rank."""
        if self._folder is None or (_rank() and not self._nonfinite):
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        for rank, step in enumerate(steps):
            rank = rank if len(steps) > 1 else _rank()
            name = f"run.rank{rank}.json.gz" if _world() > 1 else "run.json.gz"
            if name not in self._files:
                self._files[name] = TrainingFile(self._folder / name)
            self._files[name].append(step)


class RecordedSteps(LoopSteps):
    """What `record_steps` returns: a context manager, and `remove()`."""

    def __init__(
        self, due: Due, report: Report, model: torch.nn.Module | None, compiled: Compiled
    ) -> None:
        self.report = report
        super().__init__(due, report, model, compiled=compiled)

    @property
    def findings(self) -> list[Finding]:
        """What was found so far, each once."""
        return self.report.findings

    @property
    def graph(self) -> Graph:
        """The graph of the last step that was reported.

        Raises:
            ValueError: if none was.
        """
        if not self.report.graphs:
            raise ValueError("no step was recorded yet: one ends where the next begins.")
        [graph] = self.report.graphs.values()
        return graph

    def remove(self) -> None:
        """Record no more. A step that has begun and has not ended is reported too."""
        self.close()

    def __enter__(self) -> RecordedSteps:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        self.close(error)


def record_steps(
    model: torch.nn.Module | None = None,
    *,
    at: int | Sequence[int] | None = None,
    every: int | None = None,
    nonfinite: bool = False,
    loggers: Iterable[Any] = (),
    folder: str | Path | None = None,
    raise_on: RaiseOn = "never",
    compiled: Compiled = "open",
) -> RecordedSteps:
    """Record some steps of the training that follows; a step ends as `StepEnds` tells.

    Findings go to the log "graphviz_torch". A step that is not recorded costs a counter. Of several
    ranks each records its own, and rank 0 gathers and compares.

    Args:
        model: as for `record`.
        at: a step, or several; the first is 0.
        every: every so many steps, from the first. Without `at` and `every`: all steps.
        nonfinite: report only steps in which a gradient is NaN or infinite. All steps that are
            due are recorded for it.
        loggers: get the graph and the gradient norms: a TensorBoard `SummaryWriter`, a wandb run,
            the module `mlflow`.
        folder: gets the steps as one file, "run.json.gz", which `load` reads while it is written.
            A file of another run is replaced.
        raise_on: "error" or "warning" raises FindingsError for such a finding, or a worse one. Of
            several ranks only those with the finding raise.
        compiled: as for `record`.

    Returns:
        A context manager with `remove()`, `graph` and `findings`; it counts from now on, entered or
        not.

    Raises:
        ValueError: for a step or an `every` that cannot be.

    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> with record_steps(model, at=1) as steps:
    ...     for _ in range(3):
    ...         optimizer.zero_grad()
    ...         model(torch.ones(4, 2)).sum().backward()
    ...         optimizer.step()
    >>> steps.findings, len(steps.graph.nodes)
    ([], 5)
    """
    report = Report(nonfinite=nonfinite, loggers=loggers, folder=folder, raise_on=raise_on)
    return RecordedSteps(due_steps(at=at, every=every), report, model, compiled)


def _nonfinite(graph: Graph) -> bool:
    return any(s is not None and s.nonfinite for node in graph.nodes for s in node.grad_outputs)


def _world() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def _rank() -> int:
    return dist.get_rank() if _world() > 1 else 0


def _ranks(graph: Graph) -> list[Graph] | None:
    return gather_graphs(graph) if _world() > 1 else None


def _line(finding: Finding) -> str:
    return f"{finding.message} [{finding.rule}] {finding.advice}".rstrip()
