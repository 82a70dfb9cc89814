"""Test that watch() reports faults that occur late and change no number at once."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from graphviz_torch import watch
from graphviz_torch.recording.health.checks import WatchReport
from tests.tensorboard.trainings import Net, _time_enough, batch, loss_of  # noqa: F401


def replaced_head(steps: int, at: int) -> list[WatchReport]:
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with watch(model) as watching:
        for step in range(steps):
            if step == at:
                model.head = nn.Linear(8, 1)
            optimizer.zero_grad()
            loss_of(model).backward()
            optimizer.step()  # cause
    return watching.reports


def head_of_other_modules(steps: int, at: int) -> list[WatchReport]:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with watch(model) as watching:
        for step in range(steps):
            if step == at:
                model.head = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 1))
            optimizer.zero_grad()
            loss_of(model).backward()
            optimizer.step()  # cause
    return watching.reports


def optimizer_of_each_step(steps: int, at: int) -> list[WatchReport]:
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with watch(model) as watching:
        for step in range(steps):
            if step >= at:
                optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
            optimizer.zero_grad()
            loss_of(model).backward()
            optimizer.step()  # cause
    assert watching.step == steps
    return watching.reports


def losses_in_a_list(steps: int, at: int) -> list[WatchReport]:
    model, losses = Net(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with watch(model) as watching:
        for step in range(steps):
            optimizer.zero_grad()
            loss = loss_of(model)
            loss.backward()
            optimizer.step()
            if step >= at:
                losses.append(loss)
    return watching.reports


def sum_with_its_history(steps: int, at: int) -> list[WatchReport]:
    model, total = Net(), torch.zeros(())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with watch(model) as watching:
        for step in range(steps):
            optimizer.zero_grad()
            loss = loss_of(model)
            loss.backward()
            optimizer.step()
            total = total + (loss if step >= at else loss.item())
    return watching.reports


def rate(value: float) -> Callable[[int, int], list[WatchReport]]:
    def run(steps: int, at: int) -> list[WatchReport]:
        model = Net()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        with watch(model) as watching:
            for step in range(steps):
                if step == at:
                    optimizer.param_groups[0]["lr"] = value
                optimizer.zero_grad()
                loss_of(model).backward()
                optimizer.step()  # cause
        return watching.reports

    return run


def gradients_clipped_to_nothing(steps: int, at: int) -> list[WatchReport]:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with watch(model) as watching:
        for step in range(steps):
            optimizer.zero_grad()
            loss_of(model).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1e-12 if step >= at else 1.0)
            optimizer.step()
    return watching.reports


def weights_made_tiny(steps: int, at: int) -> list[WatchReport]:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with watch(model) as watching:
        for step in range(steps):
            if step == at:
                with torch.no_grad():
                    for p in model.parameters():
                        p.mul_(1e-6)
            optimizer.zero_grad()
            loss_of(model).backward()
            optimizer.step()
    return watching.reports


def gradients_not_cleared(optimizer: Any, to_none: bool) -> Callable[[int, int], list[WatchReport]]:
    def run(steps: int, at: int) -> list[WatchReport]:
        model = Net()
        using = optimizer(model.parameters(), lr=1e-4)
        with watch(model) as watching:
            for step in range(steps):
                if step < at:
                    using.zero_grad(set_to_none=to_none)
                loss_of(model).backward()
                using.step()  # cause
        return watching.reports

    return run


def average(update: Callable[[Tensor, Tensor], object]) -> Callable[[int, int], list[WatchReport]]:
    def run(steps: int, at: int) -> list[WatchReport]:
        model = Net()
        ema = copy.deepcopy(model).requires_grad_(False)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        with watch(model) as watching:
            for step in range(steps):
                optimizer.zero_grad()
                loss_of(model).backward()
                optimizer.step()
                for mean, p in zip(ema.parameters(), model.parameters(), strict=True):
                    mean.lerp_(p.detach(), 0.1) if step < at else update(mean, p.detach())
        return watching.reports

    return run


class Follower:
    """Keeps an average of the weights by their names."""

    def __init__(self, model: nn.Module) -> None:
        self.shadow = {name: p.detach().clone() for name, p in model.named_parameters()}


def average_by_name(steps: int, at: int) -> list[WatchReport]:
    model = Net()
    follower = Follower(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with watch(model) as watching:
        for _ in range(steps):
            optimizer.zero_grad()
            loss_of(model).backward()
            optimizer.step()
            for name, p in model.named_parameters():
                follower.shadow[name].lerp_(p.detach(), 0.0)
    return watching.reports


def rebound(mean: Tensor, p: Tensor) -> None:
    mean = 0.9 * mean + 0.1 * p


FAULTS: dict[str, tuple[Callable[[int, int], list[WatchReport]], str, int, int, str]] = {
    # run, kind, at, told by, words
    "a head replaced": (
        replaced_head,
        "replaced-parameters",
        64,
        70,
        "head.weight and head.bias were replaced before step 64, but Adam at {} still updates",
    ),
    "a head of other modules": (
        head_of_other_modules,
        "replaced-parameters",
        64,
        70,
        "head.0.weight, head.0.bias, head.2.weight and 1 more were replaced before step 64",
    ),
    "an optimizer for each step": (
        optimizer_of_each_step,
        "recreated-optimizer",
        50,
        60,
        "Adam at {} is re-created for each step, from step 50 on",
    ),
    "losses in a list": (
        losses_in_a_list,
        "retained-graph",
        60,
        110,
        "losses in losses_in_a_list() keeps the graph of each step alive, from step 60 on",
    ),
    "a sum with its history": (
        sum_with_its_history,
        "retained-graph",
        60,
        110,
        "total in sum_with_its_history() keeps the graph of each step alive, from step 60 on",
    ),
    "a rate of zero": (
        rate(0.0),
        "zero-learning-rate",
        60,
        70,
        "The learning rate of Adam at {} is 0 from step 60 on",
    ),
    "a rate a thousand times larger": (
        rate(1.0),
        "learning-rate-jump",
        60,
        60,
        "The learning rate of Adam at {} is 1 in step 60: the largest before was 0.001",
    ),
    "gradients clipped to nothing": (
        gradients_clipped_to_nothing,
        "no-update",
        60,
        110,
        "no step has changed any weight since a step between 49 and 64",
    ),
    "gradients not cleared (SGD)": (
        gradients_not_cleared(torch.optim.SGD, True),
        "missing-zero-grad",
        60,
        70,
        "The gradients are not cleared from step 60 on: SGD at {}",
    ),
    "gradients not cleared (AdamW)": (
        gradients_not_cleared(torch.optim.AdamW, False),
        "missing-zero-grad",
        60,
        70,
        "The gradients are not cleared from step 60 on: AdamW at {}",
    ),
    "weights of 1e-6": (
        weights_made_tiny,
        "collapsed-weight",
        100,
        160,
        "of its value between step",
    ),
    "an average that is written and stays": (
        average(lambda mean, p: mean.lerp_(p, 0.0)),
        "stale-average",
        0,
        512,
        "ema has had the same weights since step 0, although the program writes to it",
    ),
    "an average that an object keeps by name": (
        average_by_name,
        "stale-average",
        0,
        512,
        "follower.shadow has had the same weights since step 0, although the program writes",
    ),
    "an average that is bound anew": (
        average(rebound),
        "stale-average",
        0,
        1200,
        "ema has had the same weights since step 0. The steps",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_that_changes_no_number_at_once_is_told_with_the_step_where_it_began(
    name: str,
) -> None:
    run, kind, at, by, words = FAULTS[name]
    reports = run(1300 if by > 1000 else max(400, by + 1), at)
    assert [each.rule for each in reports] == [kind], reports
    assert reports[0].step <= by
    code, first = inspect.getsourcelines(run)
    cause = [first + i for i, line in enumerate(code) if line.rstrip().endswith("# cause")]
    line = f"test_watch_faults.py:{cause[0]}" if cause else ""
    assert words.replace("{}", line) in reports[0].message
