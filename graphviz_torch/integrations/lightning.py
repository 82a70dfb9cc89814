"""A callback for Lightning's Trainer: `Trainer(callbacks=[AutogradRecorder(every=100)])`.

With Lightning Fabric, call `record_steps` before your training loop instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

try:
    from lightning.pytorch import Callback
except ImportError:
    try:
        from pytorch_lightning import Callback  # type: ignore[assignment, unused-ignore]
    except ImportError:
        raise ImportError(
            "graphviz_torch.integrations.lightning needs Lightning: pip install lightning."
        ) from None

from .steps import Compiled, StepRecorder, due_steps
from .training import RaiseOn, Report


class AutogradRecorder(Callback):  # type: ignore[misc, unused-ignore]
    """A callback that records training batches and logs findings, graphs and gradient norms.

    Findings go to the log "graphviz_torch", graphs and norms to the Trainer's loggers.

    Args:
        at, every, nonfinite, folder, raise_on, compiled: as for `record_steps`. Each batch counts
            as a step.
    """

    def __init__(
        self,
        *,
        at: int | Sequence[int] | None = None,
        every: int | None = None,
        nonfinite: bool = False,
        folder: str | Path | None = None,
        raise_on: RaiseOn = "never",
        compiled: Compiled = "open",
    ) -> None:
        self.report = Report(nonfinite=nonfinite, folder=folder, raise_on=raise_on)
        due = due_steps(at=at, every=every)
        self._steps = StepRecorder(due, self.report, compiled=compiled)
        self._batch = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Set the model to record, and the Trainer's loggers."""
        self._steps.model = pl_module
        self.report.loggers = [
            logger.experiment if hasattr(logger.experiment, "add_scalar") else logger
            for logger in trainer.loggers
        ]

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Start recording if this batch is to be recorded."""
        self._steps.begin(self._batch)
        self._batch += 1

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """End the recording of this batch and report it, if the batch is recorded."""
        self._steps.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Report the part of the batch that ran before the exception."""
        self._steps.end(exception)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Release the model and the recording."""
        self._steps.drop()
        self._steps.model = None
