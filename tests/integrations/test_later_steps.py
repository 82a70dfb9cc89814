"""Facts about a whole run that only steps after the last recorded one show."""

from __future__ import annotations

import copy
import gc
import math
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, SequentialLR, StepLR
from torch.utils.data import DataLoader, Dataset

from graphviz_torch import Finding
from graphviz_torch.graph import TrainingStep
from graphviz_torch.integrations.steps import LoopSteps, due_steps
from graphviz_torch.recording.steps.later_losses import NEVER, since_on_device
from tests.integrations.scripts import python

_LINES = Path(__file__).read_text("utf-8").split("\n")


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 1) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 6)).square().mean().backward()
        optimizer.step()


def found_in(program: Callable[[], Any], recorded: int = 3) -> list[Finding]:
    """Return the findings about a program of which only the first steps are recorded."""
    found: list[Finding] = []

    def done(step: TrainingStep, findings: list[Finding]) -> None:
        found.extend(each for each in findings if each not in found)

    steps, error = LoopSteps(due_steps(every=1, most=recorded), done), None
    try:
        program()
    except KeyboardInterrupt as interrupt:
        error = interrupt
    steps.close(error)
    return found


def schedule_that_ends() -> None:
    model = nn.Linear(6, 3)
    optimizer = SGD(model.parameters(), lr=0.1)
    scheduler = LambdaLR(optimizer, lambda step: max(0.0, 1 - step / 4))
    for _ in range(8):
        train(model, optimizer)
        scheduler.step()


def scheduler_that_never_steps() -> None:
    model = nn.Linear(6, 3)
    optimizer = SGD(model.parameters(), lr=0.1)
    scheduler = StepLR(optimizer, 2)
    train(model, optimizer, steps=6)
    assert scheduler.last_epoch == 0


def scheduler_that_starts_again() -> None:
    model = nn.Linear(6, 3)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = StepLR(optimizer, 2)
    for _ in range(5):
        train(model, optimizer)
        scheduler.step()
    state = optimizer.state_dict()
    resumed = SGD(model.parameters(), lr=0.1, momentum=0.9)
    resumed_scheduler = StepLR(resumed, 2)
    resumed.load_state_dict(state)
    for _ in range(2):
        train(model, resumed)
        resumed_scheduler.step()


def optimizer_of_each_epoch() -> None:
    model = nn.Linear(6, 3)
    for _ in range(4):
        train(model, Adam(model.parameters()), steps=2)


def loss_that_overflows() -> None:
    model = nn.Linear(6, 3)
    optimizer = SGD(model.parameters(), lr=0.1)
    for step in range(8):
        optimizer.zero_grad()
        (model(torch.ones(8, 6)) * (1e30 if step > 4 else 1)).square().mean().backward()
        if step < 5:
            optimizer.step()


def gradient_that_is_nan_once() -> None:
    model = nn.Linear(6, 3)
    optimizer = SGD(model.parameters(), lr=0.1)
    for step in range(9):
        optimizer.zero_grad()
        (model(torch.ones(8, 6)) * (step != 5)).square().sum().sqrt().backward()
        optimizer.step()


def loss_that_is_nan_at_the_interrupt() -> None:
    gradient_that_is_nan_once()
    raise KeyboardInterrupt


class Average:
    """An average of a model's parameters, which can be swapped with them."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.average = [each.detach().clone() for each in model.parameters()]
        self.stored: list[torch.Tensor] = []

    @torch.no_grad()
    def update(self) -> None:
        for mine, theirs in zip(self.average, self.model.parameters(), strict=True):
            mine.lerp_(theirs, 0.1)

    def swap_in(self) -> None:
        self.stored = [each.detach().clone() for each in self.model.parameters()]
        for mine, theirs in zip(self.average, self.model.parameters(), strict=True):
            theirs.data.copy_(mine)

    def restore(self) -> None:
        for mine, theirs in zip(self.stored, self.model.parameters(), strict=True):
            theirs.data.copy_(mine)


def average_for_an_evaluation(*, restores: bool) -> None:
    model = nn.Linear(6, 3)
    optimizer = SGD(model.parameters(), lr=0.1)
    average = Average(model)
    for step in range(8):
        train(model, optimizer)
        average.update()
        if step == 5:
            average.swap_in()
            model(torch.randn(8, 6)).mean().item()
            if restores:
                average.restore()


def average_that_is_left_in_the_model() -> None:
    average_for_an_evaluation(restores=False)


def average_that_is_taken_out_of_the_model() -> None:
    average_for_an_evaluation(restores=True)


def return_to_the_best_weights() -> None:
    model = nn.Linear(6, 3)
    optimizer = SGD(model.parameters(), lr=0.1)
    best = copy.deepcopy(model.state_dict())
    for step in range(8):
        train(model, optimizer)
        if step == 5:
            model.load_state_dict(best)


def lookahead() -> None:
    model = nn.Linear(6, 3)
    optimizer = SGD(model.parameters(), lr=0.1)
    average = Average(model)
    for step in range(8):
        train(model, optimizer)
        if step % 5 == 4:
            average.update()
            for slow, fast in zip(average.average, model.parameters(), strict=True):
                fast.data.copy_(slow)


def clients_that_start_from_shared_weights() -> None:
    model = nn.Linear(6, 3)
    shared, trained = copy.deepcopy(model.state_dict()), []
    for _ in range(4):
        model.load_state_dict(shared)
        optimizer = SGD(model.parameters(), lr=0.1)
        train(model, optimizer, steps=2)
        trained.append(copy.deepcopy(model.state_dict()))


def average_with_batch_norm(*, buffers: bool) -> None:
    model = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        average.eval()
        train(model, optimizer, steps=3)
        with torch.no_grad():
            for mine, theirs in zip(average.parameters(), model.parameters(), strict=True):
                mine.lerp_(theirs, 0.5)
            if buffers:
                for mine, theirs in zip(average.buffers(), model.buffers(), strict=True):
                    mine.copy_(theirs)
        average(torch.randn(8, 6)).mean().item()


def average_that_keeps_its_statistics() -> None:
    average_with_batch_norm(buffers=False)


def average_with_copied_statistics() -> None:
    average_with_batch_norm(buffers=True)


class Numbered(Dataset[torch.Tensor]):
    """A dataset whose samples depend on the epoch."""

    epoch = 0

    def __init__(self) -> None:
        self.epoch = 0

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.arange(6.0) + index + 100 * self.epoch


def epochs_of_workers(persistent: bool) -> None:
    model, data = nn.Linear(6, 3), Numbered()
    optimizer = SGD(model.parameters(), lr=1e-4)
    loader = DataLoader(data, 4, num_workers=1, persistent_workers=persistent)
    for epoch in range(2):
        data.epoch = epoch
        for batch in loader:
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()


@pytest.mark.parametrize(
    ("program", "rule", "text"),
    [
        (schedule_that_ends, "zero-learning-rate", "in the last 4 of 8 steps"),
        (scheduler_that_never_steps, "scheduler-out-of-step", "never stepped, while optimizer"),
        (optimizer_of_each_epoch, "recreated-optimizer", "in 4 of 8 steps"),
        (lambda: epochs_of_workers(True), "repeated-batch", "changed the attribute epoch"),
        (loss_that_overflows, "nonfinite-loss", "infinite from step 6 of 6 on, although all"),
        (gradient_that_is_nan_once, "nonfinite-loss", "NaN from step 7 of 9 on, because step 6"),
        (
            average_that_is_left_in_the_model,
            "overwritten-weights",
            "average.average replace the trained weights at test_later_steps.py:{swap_in}, and "
            "step 7 continues from them: average.stored, which has the trained weights, was not",
        ),
        (
            average_that_keeps_its_statistics,
            "stale-average",
            "The parameters of average, an average, are changed at test_later_steps.py",
        ),
        (loss_that_is_nan_at_the_interrupt, "nonfinite-loss", "because step 6 had made"),
    ],
)
def test_a_fact_of_a_later_step_is_reported(
    program: Callable[[], None], rule: str, text: str
) -> None:
    found = found_in(program)
    assert [each.rule for each in found if each.severity != "info" or each.rule == rule] == [rule]
    lines = {"swap_in": _LINES.index("            average.swap_in()") + 1}
    assert text.format(**lines) in found[-1].message


COMMAND = str(Path(sys.executable).with_name("graphviz-torch"))  # as pip installs it


@pytest.mark.parametrize("command", [["-m", "graphviz_torch"], [COMMAND]])
def test_a_scheduler_that_starts_again_is_reported_by_run(
    command: list[str], tmp_path: Path
) -> None:
    # Only a recording that began before the script knows that the optimizer has not stepped. The
    # file of the command, which is no file of this package, does not count as the script.
    name = scheduler_that_starts_again.__name__
    script = tmp_path / "resumed.py"
    script.write_text(f"from {__name__} import {name}\n{name}()\n")
    ran = python(*command, "run", str(script), folder=Path.cwd())
    assert "warning[scheduler-out-of-step]: optimizer has loaded the state" in ran.stderr


def scheduler_of_a_single_epoch() -> None:
    model = nn.Linear(6, 3)
    optimizer = SGD(model.parameters(), lr=0.1)
    scheduler = StepLR(optimizer, 2)
    train(model, optimizer, steps=6)
    scheduler.step()


def schedulers_that_take_turns() -> None:
    model = nn.Linear(6, 3)
    optimizer = SGD(model.parameters(), lr=0.1)
    warm, later = StepLR(optimizer, 2), StepLR(optimizer, 3)
    scheduler: LRScheduler = SequentialLR(optimizer, [warm, later], [20])
    for _ in range(6):
        train(model, optimizer)
        scheduler.step()


def scheduler_that_is_loaded() -> None:
    model = nn.Linear(6, 3)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = StepLR(optimizer, 2)
    for _ in range(5):
        train(model, optimizer)
        scheduler.step()
    resumed = SGD(model.parameters(), lr=0.1, momentum=0.9)
    resumed_scheduler = StepLR(resumed, 2)
    resumed.load_state_dict(optimizer.state_dict())
    resumed_scheduler.load_state_dict(scheduler.state_dict())
    for _ in range(2):
        train(model, resumed)
        resumed_scheduler.step()


def a_new_model_for_each_fold() -> None:
    for _ in range(4):
        model = nn.Linear(6, 3)
        train(model, Adam(model.parameters()), steps=2)


def losses_that_are_skipped_once() -> None:
    """Clear the gradients of a loss that is not finite, as a GradScaler skips its step."""
    model = nn.Linear(6, 3)
    optimizer = SGD(model.parameters(), lr=0.1)
    for step in range(8):
        optimizer.zero_grad()
        loss = (model(torch.ones(8, 6)) * (1e30 if step == 5 else 1)).square().mean()
        loss.backward()
        if loss.isfinite():
            optimizer.step()


@pytest.mark.parametrize(
    "program",
    [
        losses_that_are_skipped_once,
        average_that_is_taken_out_of_the_model,
        average_with_copied_statistics,
        return_to_the_best_weights,
        lookahead,
        clients_that_start_from_shared_weights,
        scheduler_of_a_single_epoch,
        schedulers_that_take_turns,
        scheduler_that_is_loaded,
        a_new_model_for_each_fold,
        lambda: epochs_of_workers(False),
    ],
)
def test_nothing_is_reported_about_a_healthy_run(program: Callable[[], None]) -> None:
    assert [each for each in found_in(program) if each.severity != "info"] == []
    rules = {each.rule for each in found_in(program)}
    assert rules.isdisjoint({"recreated-optimizer", "scheduler-out-of-step", "repeated-batch"})


def test_a_loss_on_a_device_is_checked_there() -> None:
    known: list[torch.Tensor | None] = [None]
    for step, value in enumerate([1.0, math.inf, 2.0, math.nan, -math.inf]):
        known.append(since_on_device(known[-1], torch.tensor([value]), step))
    assert [None if each is None else each.item() for each in known[1:]] == [NEVER, 1, NEVER, 3, 3]


def test_the_observation_of_later_steps_keeps_nothing_alive() -> None:
    refs: list[weakref.ref[Any]] = []

    def program() -> None:
        model = nn.Linear(6, 3)
        optimizer = Adam(model.parameters())
        train(model, optimizer, steps=6)
        refs.extend([weakref.ref(model), weakref.ref(model.weight), weakref.ref(optimizer)])

    steps = LoopSteps(due_steps(every=1, most=3), lambda step, findings: None)
    program()
    gc.collect()
    assert [ref() for ref in refs] == [None] * 3
    steps.close()
