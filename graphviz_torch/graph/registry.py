"""Functions that the package root adds to the values: reading tensors, and notebook display.

`graph/` knows neither torch nor pictures. The root of the package registers here what turns a
tensor into a Graph and what shows a Graph in a notebook.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# Reads a tensor, a module called with inputs, or a program; None for any other value.
Reader = Callable[[Any, tuple[Any, ...], Any], Any]
# Returns the MIME bundle that a notebook shows.
Display = Callable[[Any, Any, Any], dict[str, Any]]

_readers: list[Reader] = []
_displays: list[Display] = []


def register_reader(reader: Reader) -> None:
    """Add a function that turns other values than graphs into a Graph."""
    _readers.append(reader)


def register_display(display: Display) -> None:
    """Add the function that shows graphs and recordings in a notebook."""
    _displays.append(display)


def read(value: Any, inputs: tuple[Any, ...], names: Any) -> Any:
    """Return the graph that a registered reader makes of `value`; None if none can."""
    for reader in _readers:
        if (graph := reader(value, inputs, names)) is not None:
            return graph
    return None


def mime_bundle(value: Any, include: Any = None, exclude: Any = None) -> dict[str, Any]:
    """Return what a notebook shows of `value`, by MIME type; its repr if nothing is registered."""
    for display in _displays:
        return display(value, include, exclude)
    return {"text/plain": repr(value)}
