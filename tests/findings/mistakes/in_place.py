"""Backwards that fail because of an in-place change, with the expected node and line.

Two sources give the expected line: the exception that PyTorch raises, and comments in the program.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional as F
from torch.optim import SGD, Adam

from tests.findings.corpus.cases import Record
from tests.findings.mistakes.rows import Program, says, silent
from tests.support.failing import leaf

RULE = "changed-in-place"


@says(
    RULE,
    "needs the original values of a tensor (f32[3, 3] cpu), but mul_",
    advice="h = h * ... instead of h *= ....",
)
def operand_of_another_operation(record: Record) -> None:
    with record():
        h = leaf() * 2
        y = h.sin()  # uses
        h *= 3  # cause
        (y + h).sum().backward()  # backward


@says(RULE, "but add_ at {cause} (h += 1) and add_ at {again} (h += 2) changed")
def two_changes_beside_others(record: Record) -> None:
    with record():
        h = leaf() * 2
        h += 5  # before it was used
        other = leaf() * 3
        y = h.cos()  # uses
        other += 1
        h += 1  # cause
        h += 2  # again
        (y * other).sum().backward()  # backward


@says(
    RULE,
    "needs the original values of 1.weight (f32[3, 1] cpu)",
    "the optimizer's step at {cause} changed it",
    advice="Call backward before the step",
)
def step_between_forward_and_backward(record: Record) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    optimizer = Adam(model.parameters())
    with record(model):
        loss = model(torch.ones(2, 3)).sum()
        other = loss * 2
        loss.backward(retain_graph=True)
        optimizer.step()  # cause
        other.backward()


class Twice(Function):
    """Twice its input squared, with what it needs kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return 2 * x**2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 4 * gradient * x


@says(RULE, "Twice at {uses} needs")
def what_a_custom_function_keeps(record: Record) -> None:
    with record():
        h = leaf() * 2
        y = Twice.apply(h)  # uses
        h.zero_()  # cause
        y.sum().backward()  # backward


@says(RULE, "needs the original values of a tensor (f32[3, 3] cpu)")
def input_that_needs_no_gradient(record: Record) -> None:
    with record():
        x = torch.ones(3, 3)
        y = x @ leaf()  # uses
        x.zero_()  # cause
        y.sum().backward()  # backward


@says(RULE)
def change_without_statistics_and_memory(record: Record) -> None:
    with record(gradients=False, transfers=False, memory=False):
        y = leaf().exp()
        z = y.sin().exp()
        y += 1  # cause
        z.sum().backward()  # backward


@silent(RULE, "exception")
def change_through_data_that_pytorch_does_not_see(record: Record) -> None:
    with record():
        y = leaf().exp()
        y.data += 1
        y.sum().backward()


@silent(RULE, "exception")
def changes_that_nothing_needs(record: Record) -> None:
    with record():
        h = leaf() * 2
        h += 1
        h[0] = 3
        F.relu(h, inplace=True).sum().backward()


@says(RULE, "but the optimizer's step at {cause}")
def step_after_what_backward_needs_and_one_before(record: Record) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))
    one, other = (SGD(model.parameters(), lr=0.1) for _ in range(2))
    with record(model):
        model(torch.ones(2, 3)).sum().backward()
        one.step()
        y = model(torch.ones(2, 3))
        loss = y.square().sum()
        y.sum().backward(retain_graph=True)
        other.step()  # cause
        loss.backward()


@says(RULE, "the optimizer's step at {cause} and clamp_ at {clamps}")
def step_and_a_change_after_it(record: Record) -> None:
    weight = nn.Parameter(torch.randn(3, 3))
    optimizer = SGD([weight], lr=0.1)
    with record():
        a = (leaf() @ weight).sum()
        b = a * 2
        a.backward(retain_graph=True)
        optimizer.step()  # cause
        with torch.no_grad():
            weight.clamp_(-1, 1)  # clamps
        b.backward()


class Plain(torch.optim.Optimizer):
    """A user's own optimizer."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                p -= 0.1 * p.grad
                p *= 0.99


@says(RULE, "but the optimizer's step at {cause} changed it")
def step_of_a_users_own_optimizer_and_a_change_of_data(record: Record) -> None:
    weight = nn.Parameter(torch.randn(3, 3))
    optimizer = Plain([weight])
    with record():
        a = (leaf() @ weight).sum()
        b = a * 2
        a.backward(retain_graph=True)
        optimizer.step()  # cause
        weight.data.clamp_(-1, 1)
        b.backward()


def read(call: Callable[[Tensor], object], name: str) -> Program:
    """A call that could change its input, and does not."""

    def program(record: Record) -> None:
        with record():
            h = leaf() * 2
            y = h.sin()  # uses
            h += 1  # cause
            call(h)
            (y + h).sum().backward()  # backward

    program.__name__ = f"change_before_{name}"
    return program


READS: dict[str, Callable[[Tensor], object]] = {
    "a_norm": torch.norm,
    "normalize": F.normalize,
    "dropout_of_an_evaluation": lambda h: F.dropout(h, training=False, inplace=True),
    "out_None": lambda h: torch.add(h, 1, out=None),
}
for name, call in READS.items():
    says(RULE, "but add_ at {cause} (h += 1) changed")(read(call, name))


@says(RULE, "but an operation that was not recorded changed it in place")
def change_that_was_not_seen(record: Record) -> None:
    @torch.jit.script
    def unseen(h: Tensor) -> None:
        h.mul_(2)

    with record():
        for _ in range(20):
            noise = torch.zeros(3, 3)
            noise += 1
        del noise
        h = leaf().exp()
        with torch.no_grad():
            unseen(h)
        h.sum().backward()  # cause


@says(RULE, "embedding(max_norm=)")
def embedding_that_norms_its_weight(record: Record) -> None:
    table = nn.Embedding(4, 3, max_norm=0.1)
    with record(table):
        product = table.weight.sum() * 1 + table.weight.pow(2).sum()
        (product + table(torch.tensor([0, 1])).sum()).backward()


@says(
    RULE,
    "the optimizer's step at {cause} changed it",
    "; backward at {backward} had already run it, and ",
    advice="Detach h between the steps, with h = h.detach(). ",
)
def state_kept_with_its_graph_and_changed_by_the_step(record: Record) -> None:
    cell = nn.RNNCell(3, 3)
    optimizer = SGD(cell.parameters(), lr=0.1)
    with record(cell):
        h = torch.zeros(2, 3)
        for _ in range(3):
            h = cell(torch.ones(2, 3), h)
            optimizer.zero_grad()
            h.sum().backward(retain_graph=True)  # backward
            optimizer.step()  # cause
