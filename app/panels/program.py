"""The program that ran, line by line, and below it the gradients that it gave."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from graphviz_torch import Graph
from graphviz_torch.graph import GradientStats

from .linked import linked
from .selection import name

_SHORT = 16  # a gradient of at most so many values is spelled out
_FEW = 4  # so many gradients are spelled out


def draw_program(
    program: Sequence[tuple[int, str]],
    graph: Graph | None,
    *,
    key: str,
    ran: bool,
    height: int | None = None,
) -> None:
    """The lines, each with the nodes that it made.

    Args:
        program: numbers and texts of the lines, as `Run.program`.
        graph: what came of it, if something did.
        key: whose selection it is.
        ran: False while backward is still to come: its line is then marked as the next one.
        height: of a long program, in CSS pixels; more is scrolled.
    """
    made: dict[int, list[int]] = defaultdict(list)
    for node in graph.nodes if graph is not None else ():
        line = node.line.rpartition(":")[2]
        if line.isdecimal() and len(line) < 7:
            made[int(line)].append(node.id)
    lines: list[dict[str, Any]] = [
        {
            "number": number,
            "text": text,
            "nodes": made[number],
            "kind": "next" if ".backward(" in text and not ran else "code",
        }
        for number, text in program
    ]
    if graph is not None and ran:
        lines += [
            {"number": None, "text": text, "nodes": [node], "kind": "result"}
            for node, text in gradients(graph)
        ]
    data = {"label": "The program", "lines": lines, "height": height}
    linked("program", data, key=key, place="program")


def gradients(graph: Graph) -> list[tuple[int, str]]:
    """The gradients of a few small leaves: `[(0, "x.grad = [2, 2.667, 3.333]")]`."""
    small = [
        (node, stats)
        for node in graph.nodes
        if node.leaf
        for stats in [next((each for each in node.grad_outputs if each is not None), None)]
        if stats is not None and stats.values and len(stats.values) <= _SHORT
    ]
    if len(small) > _FEW:
        return []
    return [(node.id, f"{name(node)}.grad = {_spelled(stats)}") for node, stats in small]


def _spelled(stats: GradientStats) -> str:
    """The values as nested lists of the gradient's shape; a flat list where that is not known."""
    parts = [
        f"{value:.4g}" if value == 0 or 1e-3 <= abs(value) < 1e5 else f"{value:.2e}"
        for value in stats.values or ()
    ]
    shape = (len(parts),) if stats.tensor is None else stats.tensor.shape
    if min(shape, default=1) < 1 or math.prod(shape) != len(parts):  # ragged, or a wrong file
        shape = (len(parts),)
    for size in reversed(shape):
        parts = [
            f"[{', '.join(parts[start : start + size])}]" for start in range(0, len(parts), size)
        ]
    return ", ".join(parts)
