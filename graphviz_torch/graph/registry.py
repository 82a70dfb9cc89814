"""Functions that the package root registers: read tensors as graphs, and display graphs in
notebooks.

This package imports neither torch nor drawing code, so the package root registers the functions
that need either.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# Returns the Graph of a tensor, a module with inputs, or a program; None for any other value.
Reader = Callable[[Any, tuple[Any, ...], Any], Any]
# Returns the MIME bundle that a notebook shows.
Display = Callable[[Any, Any, Any], dict[str, Any]]

_readers: list[Reader] = []
_displays: list[Display] = []


def register_reader(reader: Reader) -> None:
    """Register a function that returns the Graph of other values, such as tensors."""
    _readers.append(reader)


def register_display(display: Display) -> None:
    """Register the function that displays graphs and recordings in a notebook."""
    _displays.append(display)


def read(value: Any, inputs: tuple[Any, ...], names: Any) -> Any:
    """Return the graph that a registered reader makes of `value`; None if no reader accepts
    `value`.
    """
    for reader in _readers:
        if (graph := reader(value, inputs, names)) is not None:
            return graph
    return None


def mime_bundle(value: Any, include: Any = None, exclude: Any = None) -> dict[str, Any]:
    """Return the notebook display of `value`, by MIME type; if no display is registered, the
    repr.
    """
    for display in _displays:
        return display(value, include, exclude)
    return {"text/plain": repr(value)}
