"""Test that a user's modes see each call of the program once, and no call of the recording."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from graphviz_torch import record
from tests.recording.side_effects import test_leftovers as programs
from tests.support.programs import Functions, Operators, function

Double = function(lambda ctx, x: x * 2, lambda ctx, gradient: gradient * 2)
OPTIONS: list[dict[str, Any]] = [
    *({}, {"gradients": False}, {"gradients": "finite"}, {"memory": False}),
    *({"transfers": False}, {"notes": False}),
]


def clamp(gradient: Tensor) -> None:
    gradient.data.clamp_(-1, 1)


def train() -> None:
    """Run two training steps that use everything that rules check."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Linear(8, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    x, labels, losses = torch.randn(6, 4), torch.randint(0, 3, (6,)), []
    for _ in range(2):
        optimizer.zero_grad()
        h = model(x)
        h.register_hook(clamp)
        (h * 1).topk(2).values.sort().indices.tolist()
        y = Double.apply(h.clone().mul_(2).relu_())[:, :2].split(1, 1)[0]  # type: ignore[no-untyped-call]
        loss = (
            F.cross_entropy(h, labels) + (h.detach() * h).mean() + F.mse_loss(y, y.detach()[:, 0])
        )
        (slope,) = torch.autograd.grad(loss, h, create_graph=True)
        (loss + slope.square().sum() * 1e-3).backward(retain_graph=True)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        losses += [loss.item(), loss, f"{loss}", h.data.numpy(), h.argmax(1)]
        with torch.no_grad():
            h.detach_()
            model[0].weight.mul_(0.9)
            torch.cat([model(x), model(x).to(torch.float64)]).nonzero()
        with suppress(RuntimeError):
            h @ x
        with suppress(RuntimeError):
            loss.backward()
            loss.backward()


def seen(mode: Any, program: Callable[[Any], Any], block: Any, order: str) -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if order == "inside":
            with block(), mode:
                program(nullcontext)
        else:
            with mode:
                program(block)
    return list(mode.calls)


def step(block: Any) -> None:
    with block():
        train()


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("order", ["inside", "around"])
@pytest.mark.parametrize("mode", [Functions, Operators])
def test_a_mode_sees_of_a_training_step_what_it_sees_without(
    mode: Any, order: str, options: dict[str, Any]
) -> None:
    expected = seen(mode(), step, nullcontext, order)
    assert len(expected) > 300
    assert seen(mode(), step, lambda: record(**options), order) == expected


@pytest.mark.parametrize("mode", [Functions, Operators])
@pytest.mark.parametrize(
    "program",
    [programs.nested, programs.autocast, programs.hooks_of_others, programs.failures],
    ids=lambda program: program.__name__,
)
def test_a_mode_around_a_program_sees_what_it_sees_without(program: Any, mode: Any) -> None:
    expected = seen(mode(), program, lambda *_: nullcontext(), "around")
    assert seen(mode(), program, record, "around") == expected
