"""Graphs that trigger the rules on roles, and similar ones that do not."""

from __future__ import annotations

from dataclasses import replace

from graphviz_torch.graph import Graph
from tests.findings.by_hand.graphs import Case, made


def bootstrapped(target: str) -> Graph:
    """A value, and a target that is a discounted value of the same network, or of another."""
    leaf = 0 if target == "w" else 1
    return made(
        ("w", (8,), ()),
        ("v", (8,), ()),
        ("sin", (8,), (0,)),
        ("sin", (8,), (leaf,)),
        ("mul", (8,), (3,)),
        ("add", (8,), (4,)),
        ("mse_loss", (), (2, 5)),
        mul="other=0.99",
    )


def weighted(by: int) -> Graph:
    return made(
        ("w", (8, 3), ()),
        ("v", (8,), ()),
        ("log_softmax", (8, 3), (0,)),
        ("gather", (8, 1), (2,)),
        ("squeeze", (8,), (3,)),
        ("sin", (8,), (by,)),
        ("mul", (8,), (4, 5)),
    )


CASES: dict[str, Case] = {
    "target-not-detached": Case(
        bootstrapped("w"),
        "warning",
        "Both arguments of mse_loss at net.py:6 take gradients through w: add changes with the "
        "parameters.",
        [bootstrapped("v"), replace(bootstrapped("w"), parameters=())],
    ),
    "undetached-advantage": Case(
        weighted(1),
        "warning",
        "A log_prob at net.py:6 is weighted by sin, which requires grad: the loss of the policy "
        "also trains v.",
        [weighted(0)],  # a focal loss, which weights it by itself
    ),
}
