"""A callback for Transformers: `Trainer(..., callbacks=[AutogradRecorder(every=100)])`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

try:
    from transformers import TrainerCallback
except ImportError:
    raise ImportError(
        "graphviz_torch.integrations.transformers needs Transformers: pip install transformers."
    ) from None

from .steps import Compiled, StepRecorder, due_steps
from .training import RaiseOn, Report


class AutogradRecorder(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """A callback that records training steps and logs findings, graphs and gradient norms.

    Findings go to the log "graphviz_torch". Graphs and norms go to `loggers`, and to the wandb and
    MLflow runs that `report_to` has started. The `SummaryWriter` of `report_to` belongs to another
    callback, so pass a writer of your own in `loggers`.

    Args:
        at, every, nonfinite, loggers, folder, raise_on, compiled: as for `record_steps`.
    """

    def __init__(
        self,
        *,
        at: int | Sequence[int] | None = None,
        every: int | None = None,
        nonfinite: bool = False,
        loggers: Sequence[Any] = (),
        folder: str | Path | None = None,
        raise_on: RaiseOn = "never",
        compiled: Compiled = "open",
    ) -> None:
        self.report = Report(nonfinite=nonfinite, loggers=loggers, folder=folder, raise_on=raise_on)
        self._given = list(loggers)
        due = due_steps(at=at, every=every)
        self._steps = StepRecorder(due, self.report, compiled=compiled)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start recording if this step is to be recorded."""
        self._steps.model = kwargs.get("model")
        self._steps.begin(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End the recording of this step and report it, if the step is recorded."""
        self.report.loggers = [*self._given, *_active_loggers()]
        self._steps.end()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Release the model and the recording."""
        self._steps.drop()
        self._steps.model = None


def _active_loggers() -> list[Any]:
    """Return the loggers with an active run: the wandb run, and the module `mlflow`."""
    found = []
    wandb, mlflow = sys.modules.get("wandb"), sys.modules.get("mlflow")
    if wandb is not None and getattr(wandb, "run", None) is not None:
        found.append(wandb.run)
    if mlflow is not None and hasattr(mlflow, "active_run") and mlflow.active_run() is not None:
        found.append(mlflow)
    return found
