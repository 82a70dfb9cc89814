"""Test the experiment that repeats the batch: it finds losses that are sums over samples."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphviz_torch import record
from graphviz_torch.experiments import experiment
from tests.experiments.programs import net

pytestmark = pytest.mark.usefixtures("the_same_numbers")
X, Y, LABELS = torch.randn(6, 4), torch.randn(6, 3), torch.arange(6) % 3
MASK = torch.tensor([True, True, False, True, True, False])


def after(loss: Callable[[Tensor], Tensor]) -> Callable[[], Any]:
    """Return a step whose loss is computed outside of the module."""

    def program() -> Any:
        model = nn.Linear(4, 3)
        with record(model, experiments=True) as recording:
            loss(model(X)).backward()
        return recording

    return program


def inside(
    forward: Callable[..., Tensor],
    of_many: Callable[[Tensor], Tensor] = lambda loss: loss,
    **modules: nn.Module,
) -> Callable[[], Any]:
    """Return a step whose module returns its loss, alone or as one of several to add."""

    def program() -> Any:
        model = net(forward, fc=nn.Linear(4, 3), **modules)
        with record(model, experiments=True) as recording:
            of_many(model(X, Y)).backward()
        return recording

    return program


def one_by_one(y: Tensor) -> Tensor:
    loss: Any = 0
    for i in range(6):
        loss = loss + F.mse_loss(y[i], Y[i])  # one by one
    return loss


class Squares(nn.Module):
    """A loss that is written as a module."""

    def forward(self, y: Tensor, target: Tensor) -> Tensor:
        return (y - target).square().sum(1).sum()  # a module of its own


def multiplied(y: Tensor) -> Tensor:
    each = F.cross_entropy(y, LABELS, reduction="none")
    return -(each * (1 - each)).sum()  # multiplied


def loss_with_constant(self: Any, x: Tensor, y: Tensor) -> Tensor:
    return (self.fc(x) - y).square().sum() / 6  # the batch of then


def loss_of_loop(self: Any, x: Tensor, y: Tensor) -> Tensor:
    loss = x.new_zeros(())
    for row, target in zip(self.fc(x), y, strict=True):
        loss = loss + F.mse_loss(row, target)
    return loss


@pytest.mark.parametrize(
    ("program", "operation", "line"),
    [
        (after(lambda y: F.mse_loss(y, Y, reduction="sum")), "mse_loss", "mse_loss(y, Y, reduct"),
        (
            after(lambda y: F.cross_entropy(y, LABELS, reduction="sum")),
            "cross_entropy",
            "F.cross_entropy(y, LABELS, reduction",
        ),
        (after(lambda y: (y - Y).square().sum()), "sum", "(y - Y).square().sum())"),
        (after(lambda y: (y - Y).abs().sum() / 64), "sum", "(y - Y).abs().sum() / 64"),
        (after(one_by_one), "", "# one by one"),
        (after(lambda y: Squares()(y, Y)), "sum", "# a module of its own"),
        (after(multiplied), "sum", "# multiplied"),
        (inside(loss_with_constant), "sum", "# the batch of then"),
        (inside(loss_of_loop), "", ""),
        (inside(loss_of_loop, lambda loss: loss / 4), "", ""),
    ],
)
def test_a_loss_that_sums_over_the_samples_is_told_with_its_line(
    program: Callable[[], Any], operation: str, line: str
) -> None:
    [found] = experiment(program(), "batch_twice")
    assert found.finding is not None, str(found)
    assert (found.finding.rule, found.finding.severity) == ("sum-loss", "info")
    assert operation in found.operation
    number = int(found.where.rpartition(":")[2])
    assert line in Path(__file__).read_text().splitlines()[number - 1]


def contrastive(self: Any, x: Tensor, y: Tensor) -> Tensor:
    z = F.normalize(self.fc(x), dim=1)
    return F.cross_entropy(z @ z.mT / 0.1, torch.arange(len(x)))


def of_two_alike(self: Any, x: Tensor, y: Tensor) -> Tensor:
    """The logarithm of the number of samples: of 2, it doubles with them."""
    z = self.fc(x[:1].expand(len(x) // 3, -1)) * 0
    return F.cross_entropy(z @ z.mT, torch.arange(len(z)))


def vae(self: Any, x: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(self.fc(x), y, reduction="sum") / len(x)


def with_dropout(self: Any, x: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(self.drop(self.fc(x)), y)


@pytest.mark.parametrize(
    ("program", "holds"),
    [
        (after(lambda y: F.mse_loss(y, Y)), True),
        (after(lambda y: F.cross_entropy(y, LABELS, torch.ones(3))), True),
        (after(lambda y: F.kl_div(y.log_softmax(1), Y.softmax(1), reduction="batchmean")), True),
        (after(lambda y: (y - Y).square().mean()), None),
        (after(lambda y: (y - Y).square().sum(1).mean()), None),
        (after(lambda y: (y - Y).square().sum() / len(y)), None),
        (after(lambda y: (y - Y).square().sum() / y.numel()), None),
        (after(lambda y: F.mse_loss(y, Y, reduction="sum") / len(y)), None),
        (after(lambda y: ((y - Y).square().sum(1) * MASK).sum() / MASK.sum()), None),
        (after(lambda y: ((y - Y).square().sum(1) * MASK).sum() / MASK.sum().item()), None),
        (after(lambda y: (y - Y).square().sum() * (1 / 6)), None),
        (after(lambda y: one_by_one(y) / 6), None),
        (after(lambda y: ((y - Y).square() / 6).sum()), None),
        (after(lambda y: ((y - Y).square().sum(1) * torch.full((6,), 1 / 6)).sum()), None),
        (after(lambda y: ((y - Y).square().sum(1) * y.sum(1).softmax(0)).sum()), None),
        (after(lambda y: ((y - Y).abs() / (y - Y).abs().detach().sum()).sum()), None),
        (after(lambda y: 100 * (y - Y).square().sum() / 600), None),
        (inside(contrastive), None),
        (inside(of_two_alike), None),
        (inside(vae), True),
        (inside(with_dropout, drop=nn.Dropout()), True),
    ],
)
def test_a_loss_that_is_no_sum_over_the_samples_is_no_finding(
    program: Callable[[], Any], holds: bool | None
) -> None:
    [found] = experiment(program(), "batch_twice")
    assert found.finding is None, str(found)
    assert found.holds is holds, str(found)


def test_a_penalty_of_the_parameters_is_no_sum_over_the_samples() -> None:
    model = nn.Linear(6, 6)
    with record(model, experiments=True) as recording:
        loss = model(torch.randn(6, 6)).square().mean()
        (loss + sum(p.square().sum() for p in model.parameters())).backward()
    [found] = experiment(recording, "batch_twice")
    assert found.finding is None, str(found)


def test_a_number_beside_the_output_is_not_the_loss() -> None:
    """A count of tokens, or what is logged, of a model that is trained with a mean."""

    class Counted(nn.Linear):
        def forward(self, x: Tensor) -> Any:
            y = super().forward(x)
            return y, torch.ones(len(x)).sum(), (y > 0).float().sum()

    model = Counted(4, 3)
    with record(model, experiments=True) as recording:
        model(X)[0].square().mean().backward()
    [found] = experiment(recording, "batch_twice")
    assert found.finding is None, str(found)


def test_a_mask_beside_the_output_is_compared() -> None:
    class Masked(nn.Linear):
        def forward(self, x: Tensor) -> Any:
            y = super().forward(x)
            return y, y > 0

    model = Masked(4, 3)
    with record(model, experiments=True) as recording:
        model(X)[0].square().mean().backward()
    [found] = experiment(recording, "memory_order")
    assert found.holds is True, str(found)
