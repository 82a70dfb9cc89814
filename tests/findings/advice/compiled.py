"""Programs for advice on code that compiled regions cannot contain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.findings.advice.rows import follows
from tests.findings.corpus.cases import Record

CLASSES = torch.arange(8) % 3


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(function, backend="aot_eager", **options)


def trained(
    record: Record, between: Callable[[Tensor], Tensor], *, at_last: Callable[[], object] = int
) -> Tensor:
    """The loss of a compiled forward: two layers with something between them."""
    body, head = nn.Linear(6, 8), nn.Linear(8, 3)
    forward = compiled(lambda x: head(between(body(x))))
    with record(nn.ModuleList([body, head])):
        loss = F.cross_entropy(forward(torch.randn(8, 6)), CLASSES)
        loss.backward()
        at_last()
    return loss


@follows("compile-graph-break", "Compute with the tensor")
def divided_by_a_number(record: Record, followed: bool) -> Tensor:
    return trained(record, lambda h: h / (h.abs().max() if followed else h.abs().max().item()))


@follows("compile-graph-break", "choose with torch.where()")
def branch_on_a_value(record: Record, followed: bool) -> Tensor:
    def between(h: Tensor) -> Tensor:
        if followed:
            return torch.where(h.sum() > 0, h, -h)
        return h if h.sum() > 0 else -h

    return trained(record, between)


@follows("compile-graph-break", "Use a mask and torch.where()")
def values_picked_by_a_mask(record: Record, followed: bool) -> Tensor:
    def between(h: Tensor) -> Tensor:
        positive = torch.where(h > 0, h, 0) if followed else h[h > 0]
        return h + positive.sum()

    return trained(record, between)


@follows("compile-graph-break", "out of the compiled function")
def print_inside(record: Record, followed: bool) -> Tensor:
    def between(h: Tensor) -> Tensor:
        if not followed:
            print("shape", h.shape)
        return h.relu()

    return trained(record, between, at_last=print if followed else int)


@follows("compile-graph-break", "Call backward() outside")
def backward_inside(record: Record, followed: bool) -> Tensor:
    model, x = nn.Linear(6, 3), torch.randn(8, 6)

    def step() -> Tensor:
        loss = F.cross_entropy(model(x), CLASSES)
        if not followed:
            loss.backward()
        return loss

    with record(model):
        loss: Tensor = compiled(step)()
        if followed:
            loss.backward()
    return loss


@follows("compile-recompile", "torch.compile(dynamic=True)")
def batches_of_several_sizes(record: Record, followed: bool) -> Tensor:
    model, losses = nn.Linear(6, 3), []
    forward = compiled(lambda x: model(x).relu(), dynamic=True if followed else None)
    with record(model):
        for size in (8, 7):
            loss = F.cross_entropy(forward(torch.randn(size, 6)), CLASSES[:size])
            loss.backward()
            losses.append(loss)
    return losses[0]


@follows("compile-recompile", "Pass scale as a tensor")
def number_that_changes(record: Record, followed: bool) -> Tensor:
    model, losses = nn.Linear(6, 3), []
    forward = compiled(lambda x, scale: model(x) * scale)
    with record(model):
        for i in range(2):
            scale = 1.0 + i / 3
            given = torch.tensor(scale) if followed else scale
            loss = F.cross_entropy(forward(torch.randn(8, 6), given), CLASSES)
            loss.backward()
            losses.append(loss)
    return losses[0]
