"""Test watch() in Lightning: the `training_step` runs again, and nothing counts twice."""

from __future__ import annotations

import inspect
from typing import Any

import lightning
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from graphviz_torch import watch
from graphviz_torch.recording.health.checks import WatchReport
from graphviz_torch.tensorboard.watch import Watching

pytestmark = pytest.mark.filterwarnings("ignore")


class Task(lightning.LightningModule):
    """A loss that its step computes; from batch `spoil` on its logarithm is NaN."""

    def __init__(self, spoil: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1)
        )
        self.spoil, self.batches, self.calls = spoil, list[int](), 0
        self.history: dict[str, list[int]] = {}
        self.total = torch.zeros(())  # changed in place, as metrics are

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.net(x)
        return result

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.loss(batch, batch_idx)

    def loss(self, batch: Any, number: int) -> Tensor:
        LOSSES.append(number)
        self.batches.append(number)
        self.history.setdefault("batches", []).append(number)
        self.calls += 1
        out = self(batch[0])
        self.total += 1
        loss = out.square().mean()
        if number >= self.spoil:
            loss = torch.log(out - 50).mean()  # cause
        self.log("calls", 1.0, on_epoch=True, on_step=False, reduce_fx="sum")
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class OnlyBatch(Task):
    def training_step(self, batch: Any) -> Tensor:  # type: ignore[override]
        return self.loss(batch, self.calls)


class Manual(Task):
    def __init__(self, spoil: int) -> None:
        super().__init__(spoil)
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:  # type: ignore[override]
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(self.loss(batch, batch_idx))
        optimizer.step()


LOSSES: list[int] = []  # each time that one is computed: no module holds it, so it is not put back


class Watches(lightning.Callback):
    watching: Watching

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.watching = watch(pl_module)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self.watching.remove()


def fit(
    kind: type[Task], *, watched: bool = True, spoil: int = 2, spoilt_data: bool = False
) -> tuple[list[WatchReport], Task, dict[str, Tensor], Tensor]:
    torch.manual_seed(0)
    LOSSES.clear()
    model, callback = kind(spoil), Watches()
    data = torch.randn(16, 3)
    if spoilt_data:
        data[9, 1] = float("nan")
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[callback] if watched else [],
    )
    trainer.fit(model, DataLoader(TensorDataset(data), batch_size=4))
    reports = callback.watching.reports if watched else []
    return reports, model, dict(trainer.callback_metrics), torch.get_rng_state()


def cause() -> str:
    code, first = inspect.getsourcelines(Task)
    [found] = [first + i for i, text in enumerate(code) if text.rstrip().endswith("# cause")]
    return f"test_watch_in_trainers.py:{found}"


@pytest.mark.parametrize("kind", [Task, OnlyBatch])
def test_an_operation_of_a_training_step_after_the_forward_is_named_with_its_line(
    kind: type[Task],
) -> None:
    step = kind.training_step
    [report] = fit(kind)[0]
    assert (report.step, report.rule) == (2, "nonfinite-loss")
    assert f"log at {cause()} made NaN" in report.message
    assert kind.training_step is step
    assert len(LOSSES) == 5  # of 4 batches: once more for the first NaN, and never again


def test_what_a_training_step_draws_counts_and_logs_is_as_without_a_second_look() -> None:
    reports, model, logged, drawn = fit(Task)
    _, plain, plainly_logged, plainly_drawn = fit(Task, watched=False)
    assert len(reports) == 1
    assert (model.batches, model.calls, model.total) == (plain.batches, plain.calls, plain.total)
    assert model.history == plain.history
    for mine, theirs in zip(model.state_dict().values(), plain.state_dict().values(), strict=True):
        assert torch.equal(mine.nan_to_num(7.0), theirs.nan_to_num(7.0))
    assert logged == plainly_logged == {"calls": 4.0}
    assert torch.equal(drawn, plainly_drawn)
    assert "log" not in vars(model)


def test_a_datum_of_a_batch_is_named() -> None:
    [report] = fit(Task, spoil=99, spoilt_data=True)[0]
    assert (report.step, report.rule) == (2, "nonfinite-loss")
    assert "The model's input is not finite: batch[0] contains 1 NaN in row 1." in report.message


def test_a_training_step_that_steps_its_optimizers_itself_is_not_made_again() -> None:
    [report] = fit(Manual)[0]
    assert (report.step, report.rule) == (2, "nonfinite-loss")
    assert "log after the model" in report.message
    assert LOSSES == [0, 1, 2, 3]
