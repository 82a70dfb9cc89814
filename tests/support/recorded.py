"""Recordings of models, and what to ask of their findings."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from graphviz_torch import Finding, Graph, find, record


def trained(model: nn.Module, *inputs: Tensor, loss: Callable[..., Tensor] = torch.sum) -> Graph:
    """The recording of one forward and backward."""
    with record(model) as recording:
        loss(model(*inputs)).backward()
    return recording.graph


def every(rule: str, graph: Graph) -> list[Finding]:
    """The findings of a rule."""
    return [finding for finding in find(graph) if finding.rule == rule]


def only(rule: str, graph: Graph) -> Finding:
    """The one finding of a rule."""
    (found,) = every(rule, graph)
    return found


def serious(graph: Graph, *previous: Graph) -> list[str]:
    """What is said louder than a note."""
    found = find(graph, previous)
    return [f"{f.rule}: {f.message}" for f in found if f.severity != "info"]


def tower(depth: int, activation: Callable[[], nn.Module], gain: float = 1.0) -> nn.Sequential:
    """Linear and activation in turn, 64 wide; `gain` times He's scale where it is not 1."""
    parts: list[nn.Module] = []
    for _ in range(depth):
        linear = nn.Linear(64, 64)
        if gain != 1.0:
            nn.init.normal_(linear.weight, std=gain * (2 / 64) ** 0.5)
        parts += [linear, activation()]
    return nn.Sequential(*parts, nn.Linear(64, 4))


def classified(logits: Tensor) -> Tensor:
    """A loss of four classes."""
    return cross_entropy(logits, torch.arange(len(logits)) % 4)


def blocks(count: int) -> Graph:
    """Of a backward through blocks alike, each with a smaller gradient than the one behind it."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.out = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.fc(x).tanh()) * 0.1

    model = nn.Sequential(*(Block() for _ in range(count)))
    return trained(model, torch.ones(2, 4))
