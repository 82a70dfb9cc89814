"""`color_by`: the names that it knows, and the value or name that each gives a node.

What each means is documented with the options of drawing, in options.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import attrgetter
from typing import Any, Literal, NamedTuple, get_origin, get_type_hints

from ..graph import Graph, ModuleRow, Node, short_dtype
from ..graph.column import declared
from ..graph.terminal import is_shell, option
from ..graph.units import bytes_text, seconds_text
from . import labels

ColorName = Literal[
    "device", "dtype", "module", "trainable", "mode", "gradient", "time", "saved", "influence"
]
# A name, or a function that gives a node's value or category, or None for a node without one.
ColorBy = ColorName | Callable[[Node], float | str | None]


class Value(NamedTuple):
    """A number that a node may have."""

    read: Callable[[Node], float | None]
    words: Callable[[float], str]
    says: str  # before the number
    advice: str  # where no node has one
    title: str  # of the legend
    missing: str = ""  # what a node without one is; "": nothing to point at
    summed: bool = False  # over a group; else its largest counts
    own: bool = False  # is it a function of the user's
    bounds: tuple[float, float] | None = None  # of the scale; None: those of what is drawn


class Name(NamedTuple):
    """A name that a node may have."""

    read: Callable[[Node], str]
    title: str  # of the legend


def in_values(color_by: ColorBy | None) -> bool:
    """Has each closed group a value of its own under this `color_by`?"""
    field = None if callable(color_by) else _of_field(Graph(()), color_by)
    return callable(color_by) or color_by in _VALUES or isinstance(field, Value)


def reading(graph: Graph, color_by: ColorBy) -> Value | Name:
    """How to read the value or name of a node of `graph`.

    Raises:
        TypeError: for a function that gives neither numbers nor texts, or both.
        ValueError: for a `color_by` that is unknown.
    """
    if callable(color_by):
        return _own(graph, color_by)
    if color_by == "trainable":
        return Name(_trainable(graph), "parameters")
    if color_by in _NAMES:
        return _NAMES[color_by]
    if color_by in _VALUES:
        return _VALUES[color_by]
    field = _of_field(graph, color_by)
    if field is not None:
        return field
    columns = (declared(ModuleRow) | declared(Node)).items()
    fields = [name for name, column in columns if column.color]
    names = dict.fromkeys((*_NAMES, "trainable", *_VALUES, *fields))
    known = ", ".join(names if is_shell() else map(repr, names))
    function = "" if is_shell() else ", and a function of a node"
    raise ValueError(f"{option('color_by', color_by)} is unknown. Known are {known}{function}.")


_NAMES: dict[str, Name] = {
    "device": Name(lambda node: node.device, "device"),
    "dtype": Name(
        lambda node: next((short_dtype(m.dtype) for m in node.outputs if m is not None), ""),
        "dtype",
    ),
    "module": Name(lambda node: ".".join(node.module.split(".")[:2]), "module"),
}


def _norm(node: Node) -> float | None:
    norms = [math.nan if g.nonfinite else g.norm for g in node.grad_outputs if g is not None]
    return max(norms, key=lambda norm: (math.isnan(norm), norm)) if norms else None


_VALUES: dict[str, Value] = {
    "gradient": Value(
        _norm,
        labels.number,
        "grad norm up to",
        "Run a backward inside record().",
        "gradient norm",
        missing="no gradient",
    ),
    "time": Value(
        lambda node: node.seconds,
        seconds_text,
        "backward",
        "Run a backward inside record().",
        "time in backward",
        missing="not timed",
        summed=True,
    ),
    # A node that keeps nothing for backward is nothing to point at.
    "saved": Value(
        lambda node: node.saved_bytes if node.saved else None,
        lambda value: bytes_text(int(value)),
        "saved",
        "Run it inside record().",
        "bytes kept for backward",
        summed=True,
    ),
    "influence": Value(
        attrgetter("influence"),
        "{:.0%}".format,
        "changes by",
        "Draw what influence(recording, ...) gives.",
        "share that changes",
        missing="not reached in the module",
        bounds=(0.0, 1.0),
    ),
}


def _of_field(graph: Graph, name: str | None) -> Value | Name | None:
    """How to read a field that declares itself a `color_by`: of a node, or of its module."""
    cls: Any = Node if name in declared(Node) else ModuleRow
    column = declared(cls).get(name or "")
    if name is None or column is None or not column.color:
        return None
    read: Callable[[Node], Any] = attrgetter(name)
    if cls is ModuleRow:
        values = {row.path: getattr(row, name) for row in graph.modules}
        read = lambda node: values.get(node.module)  # noqa: E731
    kind = get_type_hints(cls)[name]
    if kind in (str, str | None) or get_origin(kind) is Literal:
        return Name(lambda node: column.text(read(node)), column.title)
    title, advice = column.title, "Run it inside record()."
    return Value(read, column.words, title, advice, title, missing="no value", summed=column.summed)


def name_of(color_by: ColorBy) -> str:
    """What a legend calls it: a function by its own name."""
    if not callable(color_by):
        return color_by
    name = getattr(color_by, "__name__", "")
    return name if name.isidentifier() else "value"


def _own(graph: Graph, function: Callable[[Node], float | str | None]) -> Value | Name:
    """How to read and write what a user's function gives: numbers, or texts as categories."""
    name = name_of(function)
    given = [function(node) for node in graph.nodes]
    texts = [value if isinstance(value, str) else "" for value in given]
    if any(texts) and all(isinstance(value, str) for value in given if value is not None):
        return Name(lambda node: texts[node.id], name)
    values = [_number(name, node, value) for node, value in zip(graph.nodes, given, strict=True)]
    advice = "The function gave None for every node."
    read: Callable[[Node], float | None] = lambda node: values[node.id]  # noqa: E731
    return Value(read, labels.number, name, advice, name, missing="no value", own=True)


def _number(name: str, node: Node, value: object) -> float | None:
    if value is None:
        return None
    try:
        if not isinstance(value, str):
            return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        pass
    raise TypeError(
        f"color_by: {name} gave {value!r} for node {node.id} ({node.title}). Return a number for "
        "every node, or a text for every node as its category; None for a node without one."
    )


def _trainable(graph: Graph) -> Callable[[Node], str]:
    """Whether a parameter, or all those of an operation's own module, require a gradient.

    A recording lists the frozen parameters. Of a trace those in the graph are known: trainable.
    """
    found: dict[str, set[bool]] = {}  # by module
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
