"""The program that ran, line by line with its values, and below it the gradients that it gave."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from graphviz_torch import Graph

from .language import translated
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
            "value": value(graph, made[number]),
            "kind": "next" if ".backward(" in text and not ran else "code",
        }
        for number, text in program
    ]
    if graph is not None and ran:
        lines += [
            {"number": None, "text": text, "nodes": [node], "value": "", "kind": "result"}
            for node, text in gradients(graph)
        ]
    data = {"label": translated("The program"), "lines": lines, "height": height}
    linked("program", data, key=key, place="program")


def value(graph: Graph | None, nodes: Sequence[int]) -> str:
    """Return the value of what a line computed last; "" for a large one, and before it is known."""
    return graph.nodes[nodes[-1]].value_text if graph is not None and nodes else ""


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
    return [(node.id, f"{name(node)}.grad = {stats.value_text}") for node, stats in small]
