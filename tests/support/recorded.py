"""Record models, and select findings."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from graphviz_torch import Finding, Graph, find, record


def trained(model: nn.Module, *inputs: Tensor, loss: Callable[..., Tensor] = torch.sum) -> Graph:
    """Record one forward and backward, and return the graph."""
    with record(model) as recording:
        loss(model(*inputs)).backward()
    return recording.graph


def every(rule: str, graph: Graph) -> list[Finding]:
    """Return the findings of a rule."""
    return [finding for finding in find(graph) if finding.rule == rule]


def only(rule: str, graph: Graph) -> Finding:
    """Return the finding of a rule that has exactly one."""
    (found,) = every(rule, graph)
    return found


def serious(graph: Graph, *previous: Graph) -> list[str]:
    """Return the findings that are warnings or errors, as text."""
    found = find(graph, previous)
    return [f"{f.rule}: {f.message}" for f in found if f.severity != "info"]


def tower(depth: int, activation: Callable[[], nn.Module], gain: float = 1.0) -> nn.Sequential:
    """Return alternating linear layers of width 64 and activations.

    If `gain` is not 1, weights are initialized with `gain` times He's scale.
    """
    parts: list[nn.Module] = []
    for _ in range(depth):
        linear = nn.Linear(64, 64)
        if gain != 1.0:
            nn.init.normal_(linear.weight, std=gain * (2 / 64) ** 0.5)
        parts += [linear, activation()]
    return nn.Sequential(*parts, nn.Linear(64, 4))


def classified(logits: Tensor) -> Tensor:
    """Return a cross entropy of four classes."""
    return cross_entropy(logits, torch.arange(len(logits)) % 4)


def blocks(count: int) -> Graph:
    """Return the graph of a backward through equal blocks with ever smaller gradients."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.out = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.fc(x).tanh()) * 0.1

    model = nn.Sequential(*(Block() for _ in range(count)))
    return trained(model, torch.ones(2, 4))
