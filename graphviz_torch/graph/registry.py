"""Register functions that this package needs from packages that import it.

This package imports neither torch, rules nor drawing code. Therefore the package root registers the
functions that read tensors, load the events of rules, and display graphs in notebooks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# (value, inputs, names) -> the Graph of a tensor, a module or a program; None for other values.
Reader = Callable[[Any, tuple[Any, ...], Any], Any]
# (value, include, exclude) -> the MIME bundle that a notebook shows.
Display = Callable[[Any, Any, Any], dict[str, Any]]

_readers: list[Reader] = []
_displays: list[Display] = []
_loaders: list[Callable[[], object]] = []


def register_reader(reader: Reader) -> None:
    """Register a function that converts values that are not graphs to a Graph."""
    _readers.append(reader)


def register_display(display: Display) -> None:
    """Register the function that displays graphs and recordings in a notebook."""
    _displays.append(display)


def register_events(load: Callable[[], object]) -> None:
    """Register a function that imports all files which declare classes of events."""
    _loaders.append(load)


def load_events() -> None:
    """Import all files that declare classes of events."""
    for load in _loaders:
        load()


def read(value: Any, inputs: tuple[Any, ...], names: Any) -> Any:
    """Return the graph of `value` from the first reader that accepts it; None if none does."""
    for reader in _readers:
        if (graph := reader(value, inputs, names)) is not None:
            return graph
    return None


def mime_bundle(value: Any, include: Any = None, exclude: Any = None) -> dict[str, Any]:
    """Return MIME type -> data, with which a notebook shows `value`.

    If no display is registered, the data is the repr as plain text.
    """
    for display in _displays:
        return display(value, include, exclude)
    return {"text/plain": repr(value)}
