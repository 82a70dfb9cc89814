"""`record_steps`: record some steps of a training run with one line before the loop.

It is for plain loops, Accelerate and Lightning Fabric. For Lightning and Transformers there are
callbacks with the same reports. Findings go to the log "graphviz_torch", graphs and gradient norms
to the given loggers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist

from .. import Finding, Graph, to_html
from ..distributed import gather_graphs
from ..findings.check import find
from ..findings.repeated_findings import RunFindings
from ..graph import TrainingStep
from ..graph.tensors import total_norm
from ..graph.training_file import TrainingFile
from ..tensorboard import add_autograd_graph
from .ranks import merge_parameters
from .steps import Compiled, Due, LoopSteps, due_steps

RaiseOn = Literal["error", "warning", "never"]
_LOG = logging.getLogger("graphviz_torch")
_LEVELS = {"error": logging.ERROR, "warning": logging.WARNING, "info": logging.INFO}


class FindingsError(RuntimeError):
    """Raised after a step that has findings of the severity in `raise_on`, or of a worse one."""

    def __init__(self, step: int, found: Sequence[Finding]) -> None:
        self.findings = tuple(found)
        lines = [f"{len(found)} found in step {step}", *map(_line, found)]
        super().__init__("\n".join(lines))


class Report:
    """A reporter of recorded steps, which writes to the log, to loggers and to a file.

    Args:
        nonfinite: True to skip steps in which all recorded gradients are finite.
        loggers: TensorBoard `SummaryWriter`s, wandb runs or the module `mlflow`. They receive the
            graph and the gradient norms.
        folder: all steps are written to "run.json.gz" in this folder; with several ranks, each rank
            has its own file, such as "run.rank1.json.gz".
        raise_on: raise FindingsError for a finding of this severity or a worse one.
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
        self.graphs: dict[int, Graph] = {}  # the last reported step and its graph
        self._found = RunFindings()
        self._steps = 0  # number of reported steps

    def __call__(self, recorded: TrainingStep, found: list[Finding]) -> None:
        """Report a step and its findings, or report the last step again with further findings."""
        if self._nonfinite and not any(map(_nonfinite, recorded.graphs)):
            return
        step, graph = recorded.number, recorded.graph
        again = step in self.graphs
        self.graphs = {step: graph}
        # If only some ranks report this step, as in these two cases, `gather_graphs` would hang.
        ranks = None if self._nonfinite or again else _ranks(graph)
        if ranks is not None:
            found = [*find(ranks), *found]
        if not (again and _world() > 1):  # with several ranks, rank 0 has already written this step
            self._save([recorded] if ranks is None else [TrainingStep(step, (g,)) for g in ranks])
        self._steps += not again
        for each in self._found.add(self._steps - 1, found, recorded.graphs):
            _LOG.log(_LEVELS[each.severity], "step %d: %s", step, _line(each))
        if _rank() == 0 and not again:
            if ranks is not None:
                graph = replace(graph, parameters=merge_parameters(ranks))
            for logger in self.loggers:
                send(logger, graph, step)
        least = self._raise_on
        if least != "never" and (raised := [f for f in found if f.is_at_least(least)]):
            raise FindingsError(step, raised)

    @property
    def findings(self) -> list[Finding]:
        """Return the findings so far, without repetitions."""
        return self._found.merge(self._steps)

    def _save(self, steps: list[TrainingStep]) -> None:
        """Append the steps of all ranks, or the step of this rank alone, to the ranks' files."""
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
    """The result of `record_steps`: a context manager with `remove()`, `graph` and `findings`.

    Recording starts when the object is created, and ends with the `with` block or with `remove()`.
    """

    def __init__(
        self, due: Due, report: Report, model: torch.nn.Module | None, compiled: Compiled
    ) -> None:
        self.report = report
        super().__init__(due, report, model, compiled=compiled)

    @property
    def findings(self) -> list[Finding]:
        """Return the findings so far, without repetitions."""
        return self.report.findings

    @property
    def graph(self) -> Graph:
        """Return the graph of the last reported step.

        Raises:
            ValueError: if no step was reported yet.
        """
        if not self.report.graphs:
            raise ValueError("no step has ended yet: a step ends when the next one begins.")
        [graph] = self.report.graphs.values()
        return graph

    def remove(self) -> None:
        """Stop recording. An unfinished step is reported, too."""
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
    """Record some steps of the training loop that follows; `StepEnds` detects where steps end.

    Findings go to the log "graphviz_torch". A step that is not recorded costs no more than a
    counter. With several ranks, each rank records its own steps; rank 0 gathers and compares them.

    Args:
        model: as for `record`.
        at: the number of a step to record, or of several, counted from 0.
        every: interval between recorded steps, from step 0. Without `at` and `every`, all steps are
            recorded.
        nonfinite: report only those recorded steps in which a gradient is NaN or infinite.
        loggers: TensorBoard `SummaryWriter`s, wandb runs or the module `mlflow`. They receive the
            graph and the gradient norms.
        folder: all steps are written to "run.json.gz" in this folder. `load` can read the file
            while it grows. The file of an earlier run is replaced.
        raise_on: raise FindingsError for a finding of this severity or a worse one, on the ranks
            that have the finding.
        compiled: as for `record`.

    Returns:
        A context manager with `remove()`, `graph` and `findings`. Recording has begun, whether or
        not the context manager is entered.

    Raises:
        ValueError: if a step is less than 0, or `every` less than 1.

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


_NORM = "gradient_norm"


def send(logger: Any, graph: Graph, step: int) -> None:
    """Log the graph of a step and its gradient norms.

    Args:
        logger: a TensorBoard `SummaryWriter`, a wandb run, the module `mlflow`, or a Lightning
            logger with `log_metrics(metrics, step)`, which gets only the norms.
        graph: the graph of the step.
        step: the number of the step.

    Raises:
        TypeError: if the logger is none of these.
    """
    norms = {f"{_NORM}/{path}": norm for path, norm in gradient_norms(graph).items()}
    if hasattr(logger, "add_scalar"):
        for name, norm in norms.items():
            logger.add_scalar(name, norm, step)
        if hasattr(logger, "log_dir"):
            add_autograd_graph(graph, logger, step=step)
    elif hasattr(logger, "log_metric") and hasattr(logger, "log_text"):  # mlflow
        for name, norm in norms.items():
            logger.log_metric(name, norm, step=step)
        logger.log_text(to_html(graph), f"autograd_graph/step{step:05}.html")
    elif type(logger).__module__.partition(".")[0] == "wandb":
        import wandb

        page = wandb.Html(to_html(graph), inject=False)
        logger.log({**norms, "autograd_graph": page, "graphviz_torch/step": step})
    elif hasattr(logger, "log_metrics"):
        logger.log_metrics(norms, step=step)
    else:
        raise TypeError(
            f"a {type(logger).__name__} is not a supported logger: pass a TensorBoard "
            "SummaryWriter, a wandb run, the module mlflow, or an object with log_metrics."
        )


def gradient_norms(graph: Graph) -> dict[str, float]:
    """Return each module's gradient norm: the L2 norm over the module's own parameters.

    Keys are paths of modules. Norms are divided by the loss scale; they are NaN or Inf if a
    gradient contains NaN or Inf. If the graph was merged from the graphs of all ranks, the norm of
    a sharded parameter covers all shards.
    """
    norms: dict[str, list[float]] = {}
    for parameter in graph.parameters:
        if parameter.node is None:
            continue
        found = graph.nodes[parameter.node].grad_outputs
        whole = parameter.grad is not None and not parameter.grad.extent
        if (
            whole and graph.step.loss_scale is None
        ):  # with a loss scale, `.grad` may already be unscaled
            found = (parameter.grad,)
        for stats in found:
            if stats is not None:
                owner = parameter.name.rpartition(".")[0] or parameter.name
                norms.setdefault(owner, []).append(stats.whole_norm)
    scale = graph.step.loss_scale or 1.0
    return {owner: total_norm(some) / scale for owner, some in norms.items()}
