"""Parts of a page that share the selected node: a table, a program, a timeline.

Each is a small script that draws values as text; nothing of a recording is read as HTML.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import streamlit as st

from .language import translated
from .selection import select, selected

_HERE = Path(__file__).parent
MOST_ROWS = 1_000  # of a table, sent to the browser
_SHORT = 15  # characters that are never broken: "cuda:0 → cuda:1"


@functools.cache
def _component(name: str) -> Any:
    return st.components.v2.component(
        f"graphviz_torch_{name}",
        html='<div class="linked"></div>',
        css=(_HERE / "linked.css").read_text(encoding="utf-8"),
        js=(_HERE / f"{name}.js").read_text(encoding="utf-8"),
    )


def linked(
    name: Literal["table", "program", "timeline"], data: dict[str, Any], *, key: str, place: str
) -> None:
    """Draw one of the scripts; what is picked in it becomes the selection.

    Args:
        name: of the script.
        data: what it draws; the selection is added.
        key: whose selection it is.
        place: a name for this part on the page.
    """
    widget = f"{key} {place}"

    def picked() -> None:
        value = st.session_state[widget].picked
        if value is not None:
            node = value["node"]
            select(key, node if isinstance(node, int) else None)

    # In a tuple: of each value of a dict Streamlit asks whether it is a data frame, and for that it
    # loads pandas, a second of the first page.
    drawn = ({**data, "selected": selected(key)},)
    _component(name)(data=drawn, key=widget, on_picked_change=picked)


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
    """A table whose rows stand for nodes; any column can be sorted by.

    Args:
        rows: one dict for each row, with the same columns. A cell is a text, or a pair of a text
            and the number that it is sorted by.
        nodes: the node of each row, or None.
        key: whose selection it is.
        place: a name for this table on the page.
        label: what a screen reader calls the table.
        helps: what a column's title says when it is pointed at.
        announced: rows of what is still to come.
        spare: columns that a narrow table leaves out; a row says them when it is pointed at.
    """
    if not rows:
        return
    shown, names = rows[:MOST_ROWS], list(rows[0])
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
        "nodes": list(nodes[:MOST_ROWS]),
        "announced": [row for row in announced if row < MOST_ROWS],
    }
    linked("table", data, key=key, place=place)
    if len(rows) > MOST_ROWS:
        st.caption(f"The first {MOST_ROWS:,} of {len(rows):,} rows.")


def says(cell: Any) -> bool:
    """Return True for a cell of a table with a text."""
    return bool(cell[0] if isinstance(cell, tuple) else cell)


def _kind(rows: Sequence[dict[str, Any]], name: str) -> str:
    """How a column is set: numbers and short texts on one line, a long text on several."""
    if any(isinstance(row[name], tuple) for row in rows):
        return "number"
    return "short" if all(len(str(row[name])) <= _SHORT for row in rows) else "text"


def _cell(value: Any) -> list[Any]:
    if not isinstance(value, tuple):
        return [str(value)[:500]]
    text, number = value
    # JSON has no NaN and no infinity.
    finite = number is not None and abs(number) < float("inf")
    return [str(text), number if finite else None]
