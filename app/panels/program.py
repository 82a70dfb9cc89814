"""Draw the program that ran: each line with its value, and the gradients below."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from graphviz_torch import Graph

from .language import translated
from .linked import draw_linked, name

_MAX_VALUES = 16  # largest number of elements in a gradient that is printed in full
_MAX_GRADIENTS = 4


def draw_program(
    program: Sequence[tuple[int, str]],
    graph: Graph | None,
    *,
    key: str,
    ran: bool,
    height: int | None = None,
) -> None:
    """Draw the lines of the program. A click on a line selects a node that the line created.

    Args:
        program: numbers and texts of the lines, as in `Run.program`.
        graph: the recorded graph, or None after an error.
        key: key of the selection.
        ran: whether backward has run. If not, the line that calls backward is marked as next.
        height: height in CSS pixels. A longer program can be scrolled.
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
    draw_linked("program", data, key=key, place="program")


def value(graph: Graph | None, nodes: Sequence[int]) -> str:
    """Return the value that a line's last node computed, as text; "" if it is large or unknown."""
    return graph.nodes[nodes[-1]].value_text if graph is not None and nodes else ""


def gradients(graph: Graph) -> list[tuple[int, str]]:
    """Return (node, text) for each small leaf with a gradient: (0, "x.grad = [2, 2.667]")."""
    small = [
        (node, stats)
        for node in graph.nodes
        if node.leaf
        for stats in [next((each for each in node.grad_outputs if each is not None), None)]
        if stats is not None and stats.values and len(stats.values) <= _MAX_VALUES
    ]
    if len(small) > _MAX_GRADIENTS:
        return []
    return [(node.id, f"{name(node)}.grad = {stats.value_text}") for node, stats in small]
