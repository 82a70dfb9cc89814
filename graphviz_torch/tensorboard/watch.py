"""`watch`: check every step of a training run at low cost, and record the steps after a problem.

The gradients in `parameter.grad` are measured just before an optimizer steps: after accumulation,
after unscaling by a GradScaler, and after clipping. Errors inside `watch` are logged, and do not
reach the training program.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from threading import get_ident

import torch

from ..findings.table import Selection
from ..graph import TrainingStep
from ..graph.text import type_text
from ..graph.training_file import TrainingFile
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
# Gradients of intermediate results are kept only if a step takes less than this many seconds.
_MAX_SECONDS_KEPT = 1e-2
_STEPS_AFTER_REPORT, _MAX_RECORDED_STEPS = 2, 8  # steps to record: after each report, and in total


class _Hooks:
    """The hooks of `watch`, which are installed and removed together."""

    def __init__(self, *watches: Watch) -> None:
        self._watches = watches

    def open(self) -> None:
        for hook in self._watches:
            hook.open()

    def close(self) -> None:
        for hook in self._watches:
            hook.close()


class Watching:
    """The result of `watch`: a context manager with `reports`, `steps` and `remove()`.

    Args:
        model: the model to watch.
        norms: writer of the gradient norms, or None.
        folder: folder for the file with recorded steps; None writes no file.
        reported: the rules to report.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        norms: ModuleNorms | None,
        folder: Path | None,
        reported: Selection,
    ) -> None:
        self.reports: list[WatchReport] = []  # problems, in the order in which they were reported
        self.steps: list[TrainingStep] = []  # recorded steps
        self._model, self._norms, self._reported = model, norms, reported
        self._health = Health(model, self._add_report)
        self._file = None if folder is None else TrainingFile(folder / "run.json.gz")
        # (current recording, number of its step, `id` of the optimizer whose next step ends it).
        self._recording: tuple[Recording, int, int] | None = None
        self._due = 0  # number of steps that are still to be recorded
        self._failed = False
        self._rerun = NonfiniteRerun(model)
        # Message about an infinite loss. It is reported only if an optimizer uses its gradients.
        self._infinite = ""
        self._thread = get_ident()
        with record():  # the first recording has to register hooks outside of any hook
            pass
        self._watch = _Hooks(
            StepWatch(self._before_step, self._after_step),
            EngineWatch(self._before_backward, self._after_backward),
            CaptureWatch(),  # suspends the hooks during a CUDA graph capture
            self._rerun.model_calls,
        )
        self._watch.open()

    @property
    def step(self) -> int:
        """Number of training steps so far. One step of each optimizer makes a training step."""
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
        """Report a NaN loss. For an infinite loss, only store the message for a later report.

        An infinite loss is harmless if a GradScaler skips the optimizer step.
        """
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
        """End the recorded step if its optimizer has stepped again; start recording the next."""
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
            self._rerun.model_calls.close()  # the origin is searched for only once
        if not self._reported.includes(report):
            return
        self.reports.append(report)
        self._due = _STEPS_AFTER_REPORT
        _LOG.warning("step %d: %s [%s]", report.step, report.message, report.rule)

    def _log_failure(self, error: Exception) -> None:
        """Log the first exception of this module, instead of raising it in the training program."""
        if not self._failed:
            self._failed = True
            _LOG.warning("watch() may miss problems: %s: %s", type(error).__name__, error)


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
    r"""Watch every step of a training run from now on, and report problems.

    Each problem is reported once, in `reports` and in the log "graphviz_torch", with the step in
    which it began. These problems are reported:

    - A loss or a gradient that is not finite, before the optimizer uses it. The report names the
      origin: the first operation with its line, or the row of the data. To find the origin, the
      model is run again on the same arguments, and its state is restored. For a Lightning module
      with automatic optimization, the whole `training_step` is run again.
    - Parameters that get no gradient, or a gradient of zero, in 20 steps.
    - A gradient norm of more than ten times the largest of the last 50 steps; a weight that changes
      by a tenth of its norm in one step; weights that no longer change; weights that have shrunk to
      a thousandth of their norm.
    - A learning rate that is 0 for 10 steps, or 500 times the largest earlier one; gradients that
      are not cleared in 5 steps; an optimizer that is re-created for each step; parameters that
      were replaced while an optimizer keeps the old ones.
    - Graphs of 24 steps that are still alive, with the references that keep them alive; growing
      memory.
    - An average of the weights, such as an EMA, that is written but keeps its values, or that keeps
      its values for 1,000 steps (a target network: 20,000 steps). Averages are found by the names
      of their variables: "ema", "average", "shadow", "target".

    Consequences of a reported problem are not reported in the next 1,000 steps. The two steps after
    a report are recorded completely.

    With a writer, each module's gradient norm is also written, in every `every`-th step. If the
    model has several optimizers, a training step is one step of each optimizer, and each module is
    measured before its own optimizer steps. If a parameter belongs to no optimizer, the norms of a
    step are written when the next step begins. If the writer fails, for example because the disk is
    full, there is one warning and the training continues.

    An infinite loss whose gradients are finite is not reported, nor is one after which a GradScaler
    skips the optimizer step. On CUDA nothing is synchronized, so NaN and Inf are reported when the
    next step begins, without their origin. The origin has no line if it is outside of the model's
    forward, or in a call whose arguments are larger than 64 MiB or have changed since the call. The
    arguments of calls are kept alive until the step ends.

    Args:
        model: the model whose parameters are watched.
        writer: a TensorBoard `SummaryWriter`, or any object with its method `add_scalar`. A
            `SummaryWriter` also gets a chart of all modules over the steps, and a ridge plot of the
            modules in order of depth; the scalars of the first step are written with the second
            step. None writes nothing.
        every: interval in steps between two measurements for the writer, from the first step.
        tag: first part of the names of scalars, such as "gradient_norm/encoder.layers.0.fc1".
        folder: folder for the file "run.json.gz" with the recorded steps. None writes no file.
        select: ids of the rules whose problems are reported. None selects all rules.
        ignore: ids of rules whose problems are not reported.

    Returns:
        A context manager with `reports`, `steps` (the recorded steps) and `remove()`. Watching
        begins at once, even if the result is not used in a `with` statement.

    Raises:
        TypeError: if `model` is not a module, `writer` has no `add_scalar`, or `every` is not an
            integer.
        ValueError: if `every` is less than 1, or if no rule has an id in `select` or `ignore`.

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
            f"watch: writer is {type_text(writer)}: pass a SummaryWriter, another object with "
            "add_scalar(tag, value, step), or None."
        )
    if not isinstance(every, int) or isinstance(every, bool):
        raise TypeError(f"watch(every={every!r}): pass an integer, 1 or more.")
    if every < 1:
        raise ValueError(f"watch(every={every}): pass an integer, 1 or more.")
    norms = None if writer is None else ModuleNorms(model, writer, every, tag)
    to = None if folder is None else Path(folder)
    return Watching(model, norms, to, Selection.create(select, ignore))
