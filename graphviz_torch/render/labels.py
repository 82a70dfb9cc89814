"""What a drawing says of nodes and values, in words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from textwrap import wrap

from ..graph import GradientStats, Node, TensorMeta, short_dtype
from ..graph.column import details as declared_details
from ..graph.column import recorded
from ..graph.text import drawable
from ..graph.units import number_text

Outputs = tuple[TensorMeta | None, ...]

TIMES = "\N{MULTIPLICATION SIGN}"
MINUS = "\N{MINUS SIGN}"
BETWEEN_RANKS = "between ranks"
FEW = 4  # elements of a value or a gradient that a picture writes out
_LONGEST = 2000  # characters of a text in a picture: Graphviz refuses much longer ones
_WIDEST = 60  # characters of a line of a name
_NARROW = 26  # the same of what a unit computes
_NONFINITE = re.compile(r"(?<!\w)(NaN|Inf|Infinity)(?!\w)")


# Of an operation's attributes, those that tell it from another of its kind: by what its name starts
# with, the attribute, and how to write it. One that equals the last entry goes without saying.
_TELLING: tuple[tuple[str, str, str, str], ...] = (
    ("pow", "exponent", "{}", ""),
    *((name, "other", "{}", "") for name in ("add", "sub", "rsub", "mul", "div", "remainder")),
    *((name, "data", "{}", "") for name in ("add", "sub", "mul", "div")),
    ("mul", "p", "dropout {}", ""),  # what a dropout is on the CPU
    ("convolution", "kernel_size", "{}", ""),
    ("convolution", "stride", "stride {}", "1"),
    ("convolution", "dilation", "dilation {}", "1"),
    ("convolution", "groups", "groups {}", "1"),
    ("max_pool", "kernel_size", "{}", ""),
    ("avg_pool", "kernel_size", "{}", ""),
    ("softmax", "dim", "dim {}", ""),
    ("log_softmax", "dim", "dim {}", ""),
    ("cat", "dim", "dim {}", ""),
    ("stack", "dim", "dim {}", ""),
    ("select", "index", "index {}", ""),
    ("native_dropout", "p", "{}", ""),
    ("dropout", "p", "{}", ""),
    ("leaky_relu", "negative_slope", "slope {}", ""),
    ("transpose", "dim0", "{}", ""),
    ("transpose", "dim1", "{}", ""),
    ("permute", "dims", "{}", ""),
)


def classed(name: str, kind: str) -> str:
    """A module's name with its class, which alone stands where the name is that of the class.

    >>> classed("fc1", "Linear(4, 16)"), classed("LSTM", "LSTM(8, 16)")
    ('fc1 · Linear(4, 16)', 'LSTM(8, 16)')
    """
    if not kind or name == kind.partition("(")[0]:
        return kind or name
    return f"{name} · {kind}"


def ending(first: str, last: str) -> str:
    """Return what of the last name of a row differs from the first.

    >>> ending("transformer.h.0", "h.11"), ending("0", "3")
    ('11', '3')
    """
    stem = last.rpartition(".")[0]
    return last[len(stem) + 1 :] if stem and first.rpartition(".")[0].endswith(stem) else last


def clipped(text: str) -> str:
    """Return a text that a picture can hold: the beginning of a long one, and how much follows."""
    more = len(text) - _LONGEST
    return drawable(text if more <= 0 else f"{text[:_LONGEST]}… {more:,} more characters")


@lru_cache(maxsize=4096)
def wrapped(name: str) -> str:
    """A long name in several lines, that end behind a word or a part of a path.

    >>> print(wrapped("encoder.layers.10.attention.self.query.projection.weight · Linear(4, 16)"))
    encoder.layers.10.attention.self.query.projection.weight ·
    Linear(4, 16)
    """
    lines = []
    for rest in name.split("\n"):
        while len(rest) > _WIDEST:
            cut = max(rest.rfind(sign, _WIDEST // 2, _WIDEST) for sign in " ._/,-") + 1 or _WIDEST
            lines.append(rest[:cut].rstrip(" "))
            rest = rest[cut:]
        lines.append(rest)
    return "\n".join(lines)


@lru_cache(maxsize=4096)
def in_lines(text: str) -> list[str]:
    """What a unit computes, in lines that are not much wider than the name of an operation.

    >>> in_lines("view → transpose 1, 2 → expand → clone → unsafe_view")
    ['view → transpose 1, 2 →', 'expand → clone →', 'unsafe_view']
    """
    return wrap(text, _NARROW, break_long_words=False) or [text]


@lru_cache(maxsize=4096)
def telling(title: str, attributes: tuple[str, ...]) -> str:
    """The attributes that tell an operation from another of its kind, after its name.

    >>> telling("pow", ("exponent=2",)), telling("convolution", ("groups=1", "stride=(2, 2)"))
    (' 2', ' stride 2')
    >>> telling("native_dropout", ("p=0.30000000000000004",))
    ' 0.3'
    >>> telling("permute", ("dims=(2, 0, 1)",))
    ' 2, 0, 1'
    >>> telling("sub", ("alpha=1", "data=old f32[64]")), telling("mul", ("data=f32[8, 4]",))
    (' old', ' data')
    """
    known = _values(attributes)
    parts = [
        form.format(value)
        for name, attribute, form, usual in _TELLING
        if title.startswith(name) and attribute in known
        if (value := _shortly(known[attribute], attribute)) != usual
    ]
    return f" {', '.join(parts)}" if parts else ""


@lru_cache(maxsize=4096)
def called(title: str, attributes: tuple[str, ...], call: str = "") -> str:
    """An operation with what tells it from another: on the CPU, a dropout is a product.

    Args:
        call: `Node.call`; the program's own name takes the place of the operation's.

    >>> called("pow", ("exponent=2",)), called("mul", ("p=0.1",))
    ('pow 2', 'dropout 0.1')
    >>> called("convolution", ("stride=(2, 2)",), "conv2d")
    'conv2d stride 2'
    """
    rate = _values(attributes).get("p") if title.startswith("mul") else None
    if rate is not None:
        return f"dropout {_rounded(rate)}"
    name = word(title, call)
    if title == "rsub" and call:
        other = _values(attributes).get("other")
        return f"{other} {MINUS} …" if other else "sub"
    return name if name == "square" else name + telling(title, attributes)


# Methods whose names Python gives, and what the program's text has for them.
_WORDS = {
    **dict.fromkeys(("iadd", "radd"), "add"),
    **dict.fromkeys(("isub",), "sub"),
    **dict.fromkeys(("imul", "rmul"), "mul"),
    **dict.fromkeys(("truediv", "itruediv"), "div"),
    "rtruediv": "div",
    "rpow": "pow",
    "ipow": "pow",
    "rmatmul": "matmul",
}
# Calls of which the operation says more: `x[0]` selects, `x[1:]` slices.
_GENERAL = ("", "getitem", "get", "apply", "wrapper", "fn", "to", "type")


@lru_cache(maxsize=4096)
def word(operation: str, call: str) -> str:
    """The name under which the program called an operation; that of the operation if none is known.

    >>> word("max_pool2d_with_indices", "max_pool2d"), word("nll_loss", "loss/cross_entropy#2")
    ('max_pool2d', 'cross_entropy')
    >>> word("select", "getitem"), word("add", "iadd")
    ('select', 'add')
    """
    name = call.rpartition("/")[2].partition("#")[0]
    return operation if name in _GENERAL else _WORDS.get(name, name)


def _values(attributes: tuple[str, ...]) -> dict[str, str]:
    """By name."""
    return dict(text.partition("=")[::2] for text in attributes)


def _shortly(value: str, attribute: str) -> str:
    """A value as text. Equal sizes are written once, "(2, 2)" as "2", except a kernel's."""
    if attribute == "data":  # of "old f32[64]" the name
        return value.rpartition("[")[0].rpartition(" ")[0] or "data"
    parts = value.strip("()").rstrip(",").split(", ") if value.startswith("(") else [value]
    parts = list(map(_rounded, parts))
    once = len(set(parts)) == 1 and attribute != "kernel_size"
    same = parts[0] if once else (", " if attribute == "dims" else TIMES).join(parts)
    return same.replace("-", MINUS) if value.startswith("-") else same


def _rounded(value: str) -> str:
    """A number with more than six significant digits with six; any other text as it is."""
    if "." not in value:
        return value
    try:
        return value if float(f"{float(value):.6g}") == float(value) else f"{float(value):.6g}"
    except ValueError:
        return value


@lru_cache(maxsize=4096)
def shape(meta: TensorMeta) -> str:
    """Dtype and shape without the device: "f32[8, 128]"."""
    return f"{short_dtype(meta.dtype)}{list(meta.shape)}"


def shapes(metas: Sequence[TensorMeta]) -> str:
    """The same of tensors that differ in the size of an axis: with its range.

    >>> shapes([TensorMeta((rows, 64), "float32", "cpu") for rows in (7, 3, 9)])
    'f32[3…9, 64]'
    """
    axes = [sorted(set(sizes)) for sizes in zip(*[meta.shape for meta in metas], strict=True)]
    sizes = [str(axis[0]) if len(axis) == 1 else f"{axis[0]}…{axis[-1]}" for axis in axes]
    return f"{short_dtype(metas[0].dtype)}[{', '.join(sizes)}]"


@lru_cache(maxsize=4096)
def tensors(outputs: Outputs, *others: Outputs, device: bool = True) -> str:
    """All outputs of a node in one line: "f32[2, 4] cpu", "2 outputs, f32[2, 4] cpu".

    Args:
        others: those of nodes that it is drawn for, which may differ in the size of an axis.
        device: whether the line ends with the device.
    """
    if not outputs:
        return "shape not known"
    metas = [meta for meta in outputs if meta is not None]
    if not metas:
        return "no tensor"
    columns = [c for c in zip(outputs, *others, strict=True) if None not in c]
    distinct = list(dict.fromkeys(map(shapes, columns)))
    listed = ", ".join(distinct[:3]) + (", …" if len(distinct) > 3 else "")
    many = f"{len(outputs)} outputs, " if len(outputs) > 1 else ""
    return f"{many}{listed} {metas[0].device}" if device else f"{many}{listed}"


def gradient(stats: GradientStats) -> str:
    """A gradient in one line: its values where there are few, else its norm.

    >>> gradient(GradientStats(1.5, 1.5, 0.75, 0.5, values=(1.5, 0.0)))
    'grad [1.5, 0]'
    >>> gradient(GradientStats(1.5, 1.5, 0.75, 0.5, extent="local part"))
    'grad norm 1.5 of the local part'
    """
    of = f" of the {stats.extent}" if stats.extent else ""
    if is_small(stats):
        assert stats.values is not None
        return f"grad [{', '.join(number(value) for value in stats.values)}]{of}"
    wrong = [f"{n} {name}" for n, name in ((stats.nan, "NaN"), (stats.inf, "Inf")) if n]
    return f"grad norm {number(stats.norm)}{of}" + (f", {' and '.join(wrong)}" if wrong else "")


def is_spoilt(line: str) -> bool:
    """Return True for a line of a value or a gradient that has NaN or Inf.

    >>> is_spoilt("value [1, NaN]"), is_spoilt("grad norm 2, 3 Inf"), is_spoilt("value 2")
    (True, True, False)
    """
    return line.startswith(("value ", "grad ")) and _NONFINITE.search(line) is not None


def is_small(stats: GradientStats) -> bool:
    """Are the elements of a gradient so few that a picture writes each?"""
    return stats.values is not None and len(stats.values) <= FEW


def leaf_gradient(leaf: Node) -> str:
    """The norm of a leaf's gradient behind its name, after a space; "" where none is known.

    >>> leaf_gradient(Node(0, "AccumulateGrad", (), grad_outputs=(GradientStats(3, 2, 1, 0),)))
    ' grad 3'
    """
    [stats] = leaf.grad_outputs or (None,)
    if stats is None:
        return ""
    return f" {gradient(stats._replace(values=None)).replace('grad norm', 'grad')}"


@lru_cache(maxsize=4096)
def cast(before: Outputs, after: Outputs) -> str:
    """The dtype that a tensor is handed on in, where that is another: " as bf16"."""
    old, new = ([meta.dtype for meta in metas if meta is not None] for metas in (before, after))
    return f" as {short_dtype(new[0])}" if new and old != new else ""


def number(value: object) -> str:
    """Four significant digits: "2.667", "1.20e-5"."""
    return number_text(value) if isinstance(value, (int, float)) else str(value)


def details(node: Node) -> list[str]:
    """The lines of what a field declares as a detail of its node, such as a note."""
    found: list[str] = []
    for name, column in declared_details(Node):
        value = getattr(node, name)
        if recorded(value):
            found += clipped(column.words(value)).splitlines()
    return found


def count(value: float) -> str:
    """A large number in short: "950", "7.1 M"."""
    for unit, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= 0.9995 * size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f}"


def within(node: Node, label: str) -> str:
    """A parameter's label inside the operation that uses it: without the path of the cluster.

    >>> within(Node(0, "TBackward0", (), module="fc1", scope="fc1"), "model.fc1.weight")
    'weight'
    """
    if not node.scope:
        return label
    path = f".{node.module}."
    start = f".{label}".find(path)
    return label[start + len(path) - 1 :] if start >= 0 else label
