"""Test that fields of nodes and edges are read by name, so that fields can be added."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted(
    file
    for room in ("graphviz_torch", "app")
    for file in (ROOT / room).rglob("*.py")
    if "node_modules" not in file.parts
)
# Names of one node or edge, and of many.
ONE = {"node", "edge", "leaf", "last", "carrier", "stats", "saved"}
MANY = {"nodes", "edges"}
# In these, `edges` are rows of the engine's numbers, not yet `Edge`.
ROWS = ("tracing", "recording")


def _name(value: ast.expr) -> str:
    if isinstance(value, ast.Name):
        return value.id
    return value.attr if isinstance(value, ast.Attribute) else ""


def _constant(index: ast.expr) -> bool:
    parts = [index.lower, index.upper] if isinstance(index, ast.Slice) else [index]
    signs = [part.operand if isinstance(part, ast.UnaryOp) else part for part in parts if part]
    return bool(signs) and all(
        isinstance(part, ast.Constant) and type(part.value) is int for part in signs
    )


def by_position(tree: ast.AST, rows: bool = False) -> Iterator[int]:
    """Yield lines that read a field of a node or edge by its position."""
    for part in ast.walk(tree):
        if isinstance(part, ast.Subscript) and _constant(part.slice):
            inner = part.value
            of_many = isinstance(inner, ast.Subscript) and not isinstance(inner.slice, ast.Slice)
            if _name(inner) in ONE or (of_many and _name(inner.value) in MANY):  # type: ignore[attr-defined]
                yield part.lineno
        pairs: list[tuple[ast.expr, ast.expr]] = []
        if isinstance(part, (ast.For, ast.comprehension)):
            pairs = [(part.target, part.iter)]
            wanted = MANY
        elif isinstance(part, ast.Assign):
            pairs = [(target, part.value) for target in part.targets]
            wanted = ONE
        for target, value in pairs:
            known = _name(value) in wanted and not rows
            element = isinstance(value, ast.Subscript) and _name(value.value) in MANY
            if isinstance(target, (ast.Tuple, ast.List)) and (known or element):
                yield value.lineno


@pytest.mark.parametrize(
    "line",
    [
        "x = nodes[i][7]",
        "x = graph.nodes[source][2]",
        "x = edge[:2]",
        "x = node[-1]",
        "for source, target, _, _ in edges: pass",
        "x = [a for a, b, c, d in graph.edges]",
        "_, name, *_ = node",
        "_, name, *_ = graph.nodes[3]",
    ],
)
def test_a_reading_by_position_is_noticed(line: str) -> None:
    assert list(by_position(ast.parse(line))) == [1]


@pytest.mark.parametrize("line", ["nodes[i].name", "nodes[0]", "edges[:3]", "edge.source"])
def test_a_reading_by_name_is_not(line: str) -> None:
    assert not list(by_position(ast.parse(line)))


def test_no_field_of_a_node_or_edge_is_read_by_position() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{line}"
        for file in FILES
        for line in by_position(
            ast.parse(file.read_text()), rows=file.relative_to(ROOT).parts[1] in ROWS
        )
    ]
    assert not found
