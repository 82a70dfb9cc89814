"""Draw components that share the selected node of a page: a table, a program, a timeline.

Each component is a small script, which inserts text of a recording as text and never as HTML.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import streamlit as st

from graphviz_torch import Graph
from graphviz_torch.graph import Node

from .language import translated

_MAX_DIGITS = 9  # largest number of digits of a node's id in a link


def follow(graph: Graph, *, key: str, start: int | None = None) -> None:
    """Select the node that the page's URL names, or `start`. For a new graph, clear the selection.

    A graph with the same nodes, such as the graph after backward, keeps the selection.
    """
    state = st.session_state
    nodes = [node.name for node in graph.nodes]
    before = state.get(f"{key} followed")
    if before is None:
        named = st.query_params.get("node", "")
        known = named.isascii() and named.isdecimal() and len(named) <= _MAX_DIGITS
        state[f"{key} node"] = int(named) if known else start
    elif before != nodes:
        select(key, None)
    node = selected_node(key)
    if node is not None and node >= len(graph.nodes):
        select(key, None)
    state[f"{key} followed"] = nodes


def selected_node(key: str) -> int | None:
    """Return the id of the selected node, or None."""
    node: int | None = st.session_state.get(f"{key} node")
    return node


def select(key: str, node: int | None) -> None:
    """Select a node, or no node, and write the selection into the page's link."""
    st.session_state[f"{key} node"] = node
    if node is None:
        st.query_params.pop("node", None)
    else:
        st.query_params["node"] = str(node)


def name(node: Node) -> str:
    """Return a node's label, or its operation and id if the node has no label."""
    return node.label or f"{node.title} #{node.id}"


_FOLDER = Path(__file__).parent
MAX_ROWS = 1_000  # largest number of rows that are sent to the browser
_SHORT_CELL = 15  # largest number of characters in a cell that is not wrapped


@functools.cache
def _component(name: str) -> Any:
    return st.components.v2.component(
        f"graphviz_torch_{name}",
        html='<div class="linked"></div>',
        css=(_FOLDER / "linked.css").read_text(encoding="utf-8"),
        js=(_FOLDER / f"{name}.js").read_text(encoding="utf-8"),
    )


def draw_linked(
    name: Literal["table", "program", "timeline"], data: dict[str, Any], *, key: str, place: str
) -> None:
    """Draw a component. A node that a visitor clicks becomes the selected node of the page.

    Args:
        name: name of the component's script.
        data: input of the script, to which the selected node is added.
        key: key of the selection.
        place: unique name of this component on the page.
    """
    widget = f"{key} {place}"

    def on_picked() -> None:
        value = st.session_state[widget].picked
        if value is not None:
            node = value["node"]
            select(key, node if isinstance(node, int) else None)

    # The dict is inside a tuple, because for a dict Streamlit imports pandas to check for data
    # frames, which takes a second.
    drawn = ({**data, "selected": selected_node(key)},)
    _component(name)(data=drawn, key=widget, on_picked_change=on_picked)


def table(
    rows: Sequence[dict[str, Any]],
    nodes: Sequence[int | None],
    *,
    key: str,
    place: str,
    label: str,
    helps: dict[str, str] | None = None,
    announced: Sequence[int] = (),
    spare: Sequence[str] = (),
) -> None:
    """Draw a sortable table whose rows may belong to nodes.

    Args:
        rows: a dict for each row, with equal keys. A cell is a text, or a pair of a text and the
            number to sort by.
        nodes: id of each row's node, or None.
        key: key of the selection.
        place: unique name of this table on the page.
        label: name of the table for screen readers.
        helps: column -> tooltip of its title.
        announced: indices of rows that are predictions, which are drawn in a pale color.
        spare: columns that a narrow table shows only in the tooltips of rows.
    """
    if not rows:
        return
    shown, names = rows[:MAX_ROWS], list(rows[0])
    columns = [
        {
            "name": translated(name),
            "kind": f"{_kind(shown, name)}{' spare' if name in spare else ''}",
            "help": translated((helps or {}).get(name) or "Sort by this column"),
        }
        for name in names
    ]
    data = {
        "label": translated(label),
        "columns": columns,
        "rows": [[_cell(row[name]) for name in names] for row in shown],
        "nodes": list(nodes[:MAX_ROWS]),
        "announced": [row for row in announced if row < MAX_ROWS],
    }
    draw_linked("table", data, key=key, place=place)
    if len(rows) > MAX_ROWS:
        st.caption(f"The first {MAX_ROWS:,} of {len(rows):,} rows.")


def has_text(cell: Any) -> bool:
    """Return True if a table's cell has a text."""
    return bool(cell[0] if isinstance(cell, tuple) else cell)


def _kind(rows: Sequence[dict[str, Any]], name: str) -> str:
    """Return a column's style. Only long texts are wrapped."""
    if any(isinstance(row[name], tuple) for row in rows):
        return "number"
    return "short" if all(len(str(row[name])) <= _SHORT_CELL for row in rows) else "text"


def _cell(value: Any) -> list[Any]:
    if not isinstance(value, tuple):
        return [str(value)[:500]]
    text, number = value
    # JSON can represent neither NaN nor infinity.
    finite = number is not None and abs(number) < float("inf")
    return [str(text), number if finite else None]
