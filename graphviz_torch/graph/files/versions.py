"""Columns of older files under the names of today.

A change of names raises `VERSION` in file.py and adds an entry here. What an entry does not know it
leaves as it is: the reading of the columns says what is wrong with it.
"""

from __future__ import annotations

from typing import Any

from .old_events import typed_events

# Version 1 -> 2: the fields of a step stood in the graph itself.
_STEP = {
    "loss_scale": "loss_scale",
    "kept": "retained",
    "uncleared": "stale_gradients",
    "spoilt": "nonfinite_since",
}
_PARAMETER = {
    "called": "module_called",
    "in_optimizer": "stepped",
    "reached": "got_gradient",
    "held": "in_optimizer",
}
_FAILURE = {"kept": "modified", "earlier": "causes"}


def upgraded(columns: dict[str, Any], version: int) -> dict[str, Any]:
    """The columns of a file of this version, with the names of today."""
    if version < 2:
        columns = _with_step(columns)
    if version < 3 and "events" in columns:
        columns = {**columns, "events": typed_events(columns["events"], "graph.events")}
    return columns


def _with_step(columns: dict[str, Any]) -> dict[str, Any]:
    graph = {name: column for name, column in columns.items() if name not in _STEP}
    step = {_STEP[name]: column for name, column in columns.items() if name in _STEP}
    if step:
        graph["step"] = step
    for name, names in (("parameters", _PARAMETER), ("failure", _FAILURE)):
        if name in graph:
            graph[name] = _renamed(graph[name], names)
    return graph


def _renamed(column: Any, names: dict[str, str]) -> Any:
    """A column of tuples, with the fields of their items renamed."""
    items = column.get("items") if isinstance(column, dict) else None
    if not isinstance(items, dict):
        return column
    return {**column, "items": {names.get(name, name): field for name, field in items.items()}}
