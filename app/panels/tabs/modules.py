"""Draw a table with each module's outputs, parameters, FLOPs, saved bytes and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import streamlit as st

from graphviz_torch.export import Summary

from ..linked import has_text, table
from ..text import count, duration, short, size

_Cell = str | tuple[str, float | None]


def _number(value: float | None, text: Callable[[float], str]) -> tuple[str, float | None]:
    return ("" if value is None else text(value)), value


_Row = dict[str, Any]  # a row of `Summary.rows`
_COLUMNS: dict[str, Callable[[_Row], _Cell]] = {
    "class": lambda row: row["module_class"],
    "calls": lambda row: _number(row["calls"], str),
    "output": lambda row: row["output"] or "",
    "parameters": lambda row: _number(row["parameters"], short),
    "trainable": lambda row: _number(row["trainable"], short),
    "FLOPs": lambda row: _number(row["flops_forward"], short),
    "FLOPs of backward": lambda row: _number(row["flops_backward"], short),
    "saved": lambda row: _number(row["saved_bytes"], size),
    "gradient": lambda row: _number(row["gradient_norm"], "{:.3g}".format),
    "relative": lambda row: _number(row["gradient_ratio"], "{:.2g}".format),
    "backward": lambda row: _number(row["seconds"], duration),
}
_HELPS = {
    "FLOPs": "FLOPs of forward, by PyTorch's formulas, from operations and shapes",
    "saved": "Bytes saved for backward",
    "gradient": "Norm of the gradients of all parameters of the module",
    "relative": "Norm of the gradients, divided by the norm of the parameters",
    "backward": "Time in backward",
}


def draw_modules(found: Summary, *, key: str) -> None:
    """Draw a table with a row for each module in forward order, and the total."""
    rows = module_rows(found)
    table(
        rows, [None] * len(rows), key=key, place="modules", label="Summary by module", helps=_HELPS,
        spare=("class", "calls", "output"),
    )  # fmt: skip
    notes = []
    if found.depth < found.deepest:
        notes.append(f"Modules below depth {found.depth} of {found.deepest} are added up.")
    if found.total.flops_unknown:
        nodes = count(found.total.flops_unknown, "node")
        notes.append(f"The FLOPs of {nodes} are not known, and are not counted.")
    if notes:
        st.caption(" ".join(notes))


def module_rows(found: Summary) -> list[dict[str, Any]]:
    """Return the rows of the table, without columns that are empty for all modules."""
    modules = found.rows()
    columns = {
        name: [cell(row) for row in modules]
        for name, cell in _COLUMNS.items()
        if name != "trainable" or any(row["trainable"] != row["parameters"] for row in modules)
    }
    for name, column in found.recorded_columns.items():
        columns[column.title] = [_cell(row[name], column.text) for row in modules]
    used = {name: cells for name, cells in columns.items() if any(map(has_text, cells))}
    return [
        {"module": _title(row), **{name: cells[place] for name, cells in used.items()}}
        for place, row in enumerate(modules)
    ]


def _cell(value: Any, text: Callable[[Any], str]) -> _Cell:
    return (text(value), value) if isinstance(value, (int, float)) else text(value)


def _title(row: _Row) -> str:
    above, _, last = row["module"].rpartition(".")
    depth = above.count(".") + 1 if above else 0
    return "\N{NO-BREAK SPACE}" * 3 * depth + last or row["module_class"] or "total"
