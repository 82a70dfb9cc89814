"""Watch every step of a training at low cost, and record the next steps if something goes wrong.

`parameter.grad` is measured when an optimizer is about to step: after accumulation, unscaling by a
GradScaler, and clipping. No exception of ours reaches the training.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from threading import get_ident

import torch

from ..findings.selection import Selection
from ..graph import TrainingStep
from ..graph.text import type_text
from ..graph.training.file import TrainingFile
from ..internals.hooks.captures import CaptureWatch
from ..internals.hooks.engine import EngineCalled, EngineReturned, EngineWatch
from ..internals.hooks.optimizers import Stepped, Stepping, StepWatch
from ..internals.hooks.watch import Watch
from ..recording.health.checks import WatchReport
from ..recording.health.health import Health
from ..recording.health.rerun import NonfiniteRerun
from ..recording.recording import Recording, record
from .module_norms import ModuleNorms, Writer

_LOG = logging.getLogger("graphviz_torch")
_MAX_SECONDS_KEPT = 1e-2  # seconds of a step up to which gradients of intermediate results are kept
_STEPS_AFTER_REPORT, _MAX_RECORDED_STEPS = 2, 8  # steps recorded after a report, and in total


class _Hooks:
    """Hooks of a training, opened and closed together."""

    def __init__(self, *watches: Watch) -> None:
        self._watches = watches

    def open(self) -> None:
        for hook in self._watches:
            hook.open()

    def close(self) -> None:
        for hook in self._watches:
            hook.close()


class Watching:
    """The result of `watch`: a context manager with `reports`, `steps` and `remove()`."""

    def __init__(
        self,
        model: torch.nn.Module,
        norms: ModuleNorms | None,
        folder: Path | None,
        reported: Selection,
    ) -> None:
        self.reports: list[WatchReport] = []  # problems in order, each reported once
        self.steps: list[TrainingStep] = []  # steps recorded after the first reports
        self._model, self._norms, self._reported = model, norms, reported
        self._health = Health(model, self._add_report)
        self._file = None if folder is None else TrainingFile(folder / "run.json.gz")
        # The running recording, its step, and id() of its optimizer.
        self._recording: tuple[Recording, int, int] | None = None
        self._due = 0  # steps still to be recorded
        self._failed = False
        self._rerun = NonfiniteRerun(model)
        # Text about an infinite loss, reported if the optimizer uses its gradients.
        self._infinite = ""
        self._thread = get_ident()
        with record():  # the first recording registers hooks, which fails inside another hook
            pass
        self._watch = _Hooks(
            StepWatch(self._before_step, self._after_step),
            EngineWatch(self._before_backward, self._after_backward),
            CaptureWatch(),  # suspends the watch during a capture
            self._rerun.model_calls,
        )
        self._watch.open()

    @property
    def step(self) -> int:
        """Number of steps so far; several optimizers of the model make one step together."""
        return self._health.step + 1

    def __enter__(self) -> Watching:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Stop watching, and write the norms of the last step."""
        self._watch.close()
        self._rerun.release()
        if self._recording is not None:
            self._recording[0].__exit__(None, None, None)
            self._recording = None
        if self._norms is not None:
            self._norms.flush()

    def _before_backward(self, event: EngineCalled) -> None:
        if self._rerun.running:
            return
        try:
            self._health.on_backward_start(event)
            if self._recording is None:
                self._check_loss(event)
        except Exception as error:
            self._log_failure(error)

    def _check_loss(self, event: EngineCalled) -> None:
        """Check whether the loss is finite. If it is Inf, a GradScaler may skip the step."""
        found = self._rerun.loss(event)
        self._infinite = ""
        if found is not None:
            is_nan, cause = found
            number = self._health.current
            if is_nan:
                text = f"The loss is NaN in step {number}. {cause}".rstrip()
                self._health.tell(WatchReport(number, "nonfinite-loss", text))
            else:
                self._infinite = f"The loss is Inf. {cause}".rstrip()

    def _after_backward(self, event: EngineReturned) -> None:
        if self._rerun.running:
            return
        try:
            self._health.on_backward_end(event)
        except Exception as error:
            self._log_failure(error)

    def _before_step(self, event: Stepping) -> None:
        if self._norms is not None:
            self._norms.on_optimizer_step_start(event)
        try:
            self._health.on_optimizer_step_start(event)
        except Exception as error:
            self._log_failure(error)

    def _after_step(self, event: Stepped) -> None:
        try:
            own = self._health.on_optimizer_step_end(event)
            if own:
                self._rerun.release()
                self._rerun.holds_gradients = self._health.seconds > _MAX_SECONDS_KEPT
                self._infinite = ""
            if own and (self._due or self._recording) and get_ident() == self._thread:
                self._record(id(event.optimizer))
        except Exception as error:
            self._log_failure(error)

    def _record(self, optimizer: int) -> None:
        """End a recorded step and begin the next one, when the same optimizer has stepped."""
        if self._recording is not None:
            recording, number, key = self._recording
            if key != optimizer:
                return
            self._recording = None
            recording.__exit__(None, None, None)
            if recording.graphs:
                self.steps.append(TrainingStep(number, tuple(recording.graphs)))
                if self._file is not None:
                    self._file.path.parent.mkdir(parents=True, exist_ok=True)
                    self._file.append(self.steps[-1])
        if self._due and len(self.steps) < _MAX_RECORDED_STEPS:
            self._due -= 1
            recording = record(self._model, notes=False)
            self._recording = recording, self.step, optimizer
            recording.__enter__()

    def _add_report(self, report: WatchReport) -> None:
        if report.rule == "nonfinite-gradient":
            cause = self._infinite or self._rerun.gradient()
            report = replace(report, message=f"{report.message} {cause}".rstrip())
        if report.rule in ("nonfinite-loss", "nonfinite-gradient"):
            self._rerun.release()
            self._rerun.model_calls.close()  # the cause is reported once
        if not self._reported.includes(report):
            return
        self.reports.append(report)
        self._due = _STEPS_AFTER_REPORT
        _LOG.warning("step %d: %s [%s]", report.step, report.message, report.rule)

    def _log_failure(self, error: Exception) -> None:
        """Log the first exception of our own code; never interrupt the training."""
        if not self._failed:
            self._failed = True
            _LOG.warning("watch() misses something: %s: %s", type(error).__name__, error)


def watch(
    model: torch.nn.Module,
    writer: Writer | None = None,
    every: int = 1,
    *,
    tag: str = "gradient_norm",
    folder: str | Path | None = None,
    select: Iterable[str] | None = None,
    ignore: Iterable[str] = (),
) -> Watching:
    r"""Watch every step of a training from now on, and report problems.

    `reports` and the log "graphviz_torch" get each problem once, with the step in which it began:

    - A loss or gradient that is not finite, before the optimizer uses it, and its origin: the first
      operation, its line in the model, or the row of the data. To find it, the model is run again
      on the same arguments, and its state is restored. For a Lightning module with automatic
      optimization, the whole `training_step` is run again.
    - Parameters without a gradient, or with a gradient of zero, in 20 steps.
    - A gradient norm of more than ten times the largest of the last 50 steps; a weight that a step
      changes by a tenth of its norm; weights that the steps no longer change; weights that have
      shrunk to a thousandth of their norm.
    - A learning rate that is 0 for 10 steps, or 500 times the largest so far; gradients that are
      not cleared in 5 steps; an optimizer that is re-created for each step; parameters that were
      replaced while an optimizer keeps the old ones.
    - Graphs of 24 steps that are alive, and the references to them; growing memory.
    - An average of the weights that is written without changing, or does not change for 1,000 steps
      (a target network: 20,000), if a variable is named so: "ema", "average", "shadow", "target".

    Consequences of a reported problem are not reported in the next 1,000 steps. The next two steps
    after a report are recorded completely.

    With a writer, the norm of every module's gradients is written at every `every`-th step, too.
    Several optimizers that step in turn make one step; each module is measured before its own
    optimizer steps. If some parameter belongs to none of them, a step is written when the next one
    begins. If the writer fails, as on a full disk, there is one warning and the training continues.

    Not seen: an infinite loss with finite gradients, and a step that skips the optimizer, as a
    GradScaler does on purpose. On CUDA nothing synchronizes: values that are not finite are
    reported when the next step begins, without their origin. The origin has no line if it is
    outside of the model's forward, or in a call whose arguments are larger than 64 MiB or have
    changed since. The arguments of a step's calls are kept alive until it ends.

    Args:
        model: the model whose parameters are watched.
        writer: a TensorBoard `SummaryWriter`, which also gets a chart of all modules over the steps
            and a ridge plot by depth (its scalars start with the second step, which includes the
            first), or any object with its `add_scalar`. None writes nothing.
        every: steps between two measurements for the writer; the first step is measured.
        tag: prefix of the scalars: "gradient_norm/encoder.layers.0.fc1".
        folder: directory for the recorded steps, written as one file, "run.json.gz".
        select: the ids of the rules to report; None: all of them.
        ignore: the ids of rules not to report.

    Returns:
        A context manager with `reports`, `steps` (the recorded ones) and `remove()`. It watches
        from now on, whether or not it is entered.

    Raises:
        TypeError: if `model` is not a module, `writer` has no `add_scalar`, or `every` is not an
            integer.
        ValueError: if `every` is less than 1, or an id of `select` or `ignore` is not a rule's.

    >>> model = torch.nn.Linear(1, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> with watch(model) as watching:
    ...     for x in (1.0, float("inf"), 1.0):
    ...         optimizer.zero_grad()
    ...         model(torch.full((1, 1), x)).sum().backward()
    ...         optimizer.step()
    >>> print(watching.reports[0].message.replace(". ", ".\n"))
    The gradient of weight is not finite before step 1 uses it.
    The loss is Inf.
    The model's input is not finite: input contains 1 Inf in row 0.
    >>> [step.number for step in watching.steps]
    [2]
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"watch: model is {type_text(model)}: pass a torch.nn.Module.")
    if writer is not None and not callable(getattr(writer, "add_scalar", None)):
        raise TypeError(
            f"watch: writer is {type_text(writer)}: pass a SummaryWriter, what has its "
            "add_scalar(tag, value, step), or None."
        )
    if not isinstance(every, int) or isinstance(every, bool):
        raise TypeError(f"watch(every={every!r}): pass the number of steps, 1 or more.")
    if every < 1:
        raise ValueError(f"watch(every={every}): pass the number of steps, 1 or more.")
    norms = None if writer is None else ModuleNorms(model, writer, every, tag)
    to = None if folder is None else Path(folder)
    return Watching(model, norms, to, Selection.create(select, ignore))
