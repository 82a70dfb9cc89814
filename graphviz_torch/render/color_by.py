"""Read the number or name of a node that the option `color_by` turns into a color.

options.py documents the values of `color_by`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import attrgetter
from typing import Any, Literal, get_origin, get_type_hints

from ..graph import Graph, ModuleRow, Node, short_dtype
from ..graph.immutable import NamedTuple
from ..graph.nodes import columns_of
from ..graph.terminal import is_shell, option
from ..graph.units import bytes_text, seconds_text
from . import labels

ColorName = Literal[
    "device", "dtype", "module", "trainable", "mode", "gradient", "time", "saved", "influence"
]
# A name, or a function that returns a number or category for a node, or None.
ColorBy = ColorName | Callable[[Node], float | str | None]


class NumberReader(NamedTuple):
    """A function that reads a number from a node, with texts to draw beside the number."""

    read: Callable[[Node], float | None]
    words: Callable[[float], str]
    says: str  # label written before the number, as in "saved 4 KiB"
    advice: str  # advice in the error if no node has a number
    title: str  # title of the legend
    missing: str = ""  # legend text for nodes without a number; "": such nodes are not marked
    # True if a group of nodes shows the sum of their numbers, False if it shows the largest
    summed: bool = False
    own: bool = False  # True if the user passed the function
    # smallest and largest number of the scale; None: those in the drawing
    bounds: tuple[float, float] | None = None


class NameReader(NamedTuple):
    """A function that reads a name from a node, and the legend's title."""

    read: Callable[[Node], str]
    title: str  # title of the legend


def colors_by_number(color_by: ColorBy | None) -> bool:
    """Return True if `color_by` is the name of a number, or a function."""
    field = None if callable(color_by) else _of_field(Graph(()), color_by)
    return callable(color_by) or color_by in _VALUES or isinstance(field, NumberReader)


def reader(graph: Graph, color_by: ColorBy) -> NumberReader | NameReader:
    """Return the reader of numbers or names for a value of the option `color_by`.

    Raises:
        TypeError: if a function returns neither a number nor text for a node, or mixes the two.
        ValueError: if `color_by` is unknown.
    """
    if callable(color_by):
        return _read_function(graph, color_by)
    if color_by == "trainable":
        return NameReader(_trainable(graph), "parameters")
    if color_by in _NAMES:
        return _NAMES[color_by]
    if color_by in _VALUES:
        return _VALUES[color_by]
    field = _of_field(graph, color_by)
    if field is not None:
        return field
    columns = (columns_of(ModuleRow) | columns_of(Node)).items()
    fields = [name for name, column in columns if column.color]
    names = dict.fromkeys((*_NAMES, "trainable", *_VALUES, *fields))
    known = ", ".join(names if is_shell() else map(repr, names))
    function = "" if is_shell() else ", and a function of a node"
    raise ValueError(f"{option('color_by', color_by)} is unknown. Choose from {known}{function}.")


_NAMES: dict[str, NameReader] = {
    "device": NameReader(lambda node: node.device, "device"),
    "dtype": NameReader(
        lambda node: next((short_dtype(m.dtype) for m in node.outputs if m is not None), ""),
        "dtype",
    ),
    "module": NameReader(lambda node: ".".join(node.module.split(".")[:2]), "module"),
}


def _norm(node: Node) -> float | None:
    norms = [math.nan if g.nonfinite else g.norm for g in node.grad_outputs if g is not None]
    return max(norms, key=lambda norm: (math.isnan(norm), norm)) if norms else None


_VALUES: dict[str, NumberReader] = {
    "gradient": NumberReader(
        _norm,
        labels.number,
        "grad norm up to",
        "Run a backward inside record().",
        "gradient norm",
        missing="no gradient",
    ),
    "time": NumberReader(
        lambda node: node.seconds,
        seconds_text,
        "backward",
        "Run a backward inside record().",
        "time in backward",
        missing="not timed",
        summed=True,
    ),
    # Nodes that save nothing for backward have no number, so they keep their usual fill.
    "saved": NumberReader(
        lambda node: node.saved_bytes if node.saved else None,
        lambda value: bytes_text(int(value)),
        "saved",
        "Run the program inside record().",
        "bytes kept for backward",
        summed=True,
    ),
    "influence": NumberReader(
        attrgetter("influence"),
        "{:.0%}".format,
        "changes by",
        "Draw the result of influence(recording, ...).",
        "fraction that changes",
        missing="not reached in the module",
        bounds=(0.0, 1.0),
    ),
}


def _of_field(graph: Graph, name: str | None) -> NumberReader | NameReader | None:
    """Return the reader for a field of `Node` or `ModuleRow`.

    Return None unless the field is declared with `color=True`.
    """
    cls: Any = Node if name in columns_of(Node) else ModuleRow
    column = columns_of(cls).get(name or "")
    if name is None or column is None or not column.color:
        return None
    read: Callable[[Node], Any] = attrgetter(name)
    if cls is ModuleRow:
        values = {row.path: getattr(row, name) for row in graph.modules}
        read = lambda node: values.get(node.module)  # noqa: E731
    kind = get_type_hints(cls)[name]
    if kind in (str, str | None) or get_origin(kind) is Literal:
        return NameReader(lambda node: column.text(read(node)), column.title)
    title, advice = column.title, "Run the program inside record()."
    return NumberReader(
        read, column.words, title, advice, title, missing="no value", summed=column.summed
    )


def color_name(color_by: ColorBy) -> str:
    """Return the name of `color_by` for a legend; for a function, this is its `__name__`."""
    if not callable(color_by):
        return color_by
    name = getattr(color_by, "__name__", "")
    return name if name.isidentifier() else "value"


def _read_function(
    graph: Graph, function: Callable[[Node], float | str | None]
) -> NumberReader | NameReader:
    """Return the reader for a function of the user that returns numbers or text."""
    name = color_name(function)
    given = [function(node) for node in graph.nodes]
    texts = [value if isinstance(value, str) else "" for value in given]
    if any(texts) and all(isinstance(value, str) for value in given if value is not None):
        return NameReader(lambda node: texts[node.id], name)
    values = [_number(name, node, value) for node, value in zip(graph.nodes, given, strict=True)]
    advice = "The function returned None for every node."
    read: Callable[[Node], float | None] = lambda node: values[node.id]  # noqa: E731
    return NumberReader(read, labels.number, name, advice, name, missing="no value", own=True)


def _number(name: str, node: Node, value: object) -> float | None:
    if value is None:
        return None
    try:
        if not isinstance(value, str):
            return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        pass
    raise TypeError(
        f"color_by: {name} returned {value!r} for node {node.id} ({node.title}). Return a number "
        "for every node, or a category as text for every node; None for a node without either."
    )


def _trainable(graph: Graph) -> Callable[[Node], str]:
    """Return a function that maps a node to "trainable", "frozen" or "partly frozen".

    An operation is as trainable as the parameters of its module. If the module has no parameters,
    the function returns "". A traced graph contains no frozen parameters.
    """
    found: dict[str, set[bool]] = {}  # requires_grad of the parameters, by module
    for parameter in graph.parameters:
        module = parameter.name.rpartition(".")[0]
        found.setdefault(module, set()).add(parameter.requires_grad)
    for node in graph.nodes:
        if node.leaf == "parameter":
            found.setdefault(node.module, set()).add(True)
    names = {(True,): "trainable", (False,): "frozen", (False, True): "partly frozen"}

    def read(node: Node) -> str:
        if node.leaf:
            return "trainable" if node.leaf == "parameter" else ""
        return names.get(tuple(sorted(found.get(node.module, ()))), "")

    return read
