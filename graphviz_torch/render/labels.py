"""Format nodes, tensors and gradients as the texts that all output formats share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final

from ..graph import GradientStats, Node, TensorMeta, Transfer, short_dtype
from ..graph.nodes import details as declared_details
from ..graph.nodes import is_recorded
from ..graph.text import drawable
from ..graph.units import bytes_text, number_text

Outputs = tuple[TensorMeta | None, ...]

TIMES = "\N{MULTIPLICATION SIGN}"
MINUS = "\N{MINUS SIGN}"
BETWEEN_RANKS = "between ranks"
MAX_ELEMENTS_SHOWN = 4  # maximum number of elements of a value that is written in full
_MAX_TEXT = 2000  # maximum number of characters of a label; Graphviz rejects much longer labels
LINE_WIDTH: Final = 60  # characters per line of a name
_NONFINITE = re.compile(r"(?<!\w)(NaN|Inf|Infinity)(?!\w)")


# Attributes to write after an operation's name: (start of the name, attribute, format, default
# value, which is not written).
_SHOWN_ATTRIBUTES: tuple[tuple[str, str, str, str], ...] = (
    ("pow", "exponent", "{}", ""),
    *((name, "other", "{}", "") for name in ("add", "sub", "rsub", "mul", "div", "remainder")),
    *((name, "data", "{}", "") for name in ("add", "sub", "mul", "div")),
    ("mul", "p", "dropout {}", ""),  # autograd records a dropout on the CPU as a product
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
_OPEN_END = str(2**63 - 1)  # the `end` that autograd saves for `x[1:]`


def with_class(name: str, kind: str) -> str:
    """Return the name of a module with its class. If both are equal, only the class is returned.

    >>> with_class("fc1", "Linear(4, 16)"), with_class("LSTM", "LSTM(8, 16)")
    ('fc1 · Linear(4, 16)', 'LSTM(8, 16)')
    >>> with_class("Policy#2", "Policy")
    'Policy#2'
    """
    if not kind or name == kind.partition("(")[0]:
        return kind or name
    if name.partition("#")[0] == kind:  # a call of the root
        return name
    return f"{name} · {kind}"


def row_ending(first: str, last: str) -> str:
    """Return the part of a range's last name that differs from its first name.

    >>> row_ending("transformer.h.0", "h.11"), row_ending("0", "3")
    ('11', '3')
    """
    stem = last.rpartition(".")[0]
    return last[len(stem) + 1 :] if stem and first.rpartition(".")[0].endswith(stem) else last


def clip(text: str) -> str:
    """Shorten a text so that it fits a picture.

    The number of omitted characters replaces the end of a very long text.
    """
    more = len(text) - _MAX_TEXT
    return drawable(text if more <= 0 else f"{text[:_MAX_TEXT]}… {more:,} more characters")


@lru_cache(maxsize=4096)
def wrap_name(name: str, width: int = LINE_WIDTH) -> str:
    """Break a long name into lines of at most `width`, after words or the names in a path.

    >>> print(wrap_name("encoder.layers.10.attention.self.query.projection.weight · Linear(4, 16)"))
    encoder.layers.10.attention.self.query.projection.weight ·
    Linear(4, 16)
    """
    lines = []
    for rest in name.split("\n"):
        while len(rest) > width:
            cut = max(rest.rfind(sign, width // 2, width) for sign in " ._/,-") + 1 or width
            lines.append(rest[:cut].rstrip(" "))
            rest = rest[cut:]
        lines.append(rest)
    return "\n".join(lines)


@lru_cache(maxsize=4096)
def attribute_suffix(title: str, attributes: tuple[str, ...]) -> str:
    """Return the attributes that distinguish an operation from others with the same name.

    >>> attribute_suffix("pow", ("exponent=2",))
    ' 2'
    >>> attribute_suffix("convolution", ("groups=1", "stride=(2, 2)"))
    ' stride 2'
    >>> attribute_suffix("native_dropout", ("p=0.30000000000000004",))
    ' 0.3'
    >>> attribute_suffix("permute", ("dims=(2, 0, 1)",))
    ' 2, 0, 1'
    >>> attribute_suffix("sub", ("alpha=1", "data=old f32[64]"))
    ' old'
    >>> attribute_suffix("mul", ("data=f32[8, 4]",))
    ''
    >>> attribute_suffix("slice", ("dim=1", "end=-1", "start=0", "step=1"))
    ' [:, :-1]'
    """
    known = _parse_attributes(attributes)
    if title == "slice":
        return _slice_suffix(known)
    parts = [
        form.format(value)
        for name, attribute, form, usual in _SHOWN_ATTRIBUTES
        if title.startswith(name) and attribute in known
        if (value := _short_value(known[attribute], attribute)) != usual
    ]
    return f" {', '.join(parts)}" if parts else ""


def _slice_suffix(known: Mapping[str, str]) -> str:
    """Return the text of a slice: as an index, or as a range if the dimension is unknown."""
    start, end, step = (known.get(name, "") for name in ("start", "end", "step"))
    part = f"{'' if start == '0' else start}:{'' if end == _OPEN_END else end}"
    part += "" if step in ("", "1") else f":{step}"
    dim = known.get("dim", "")
    if part == ":" or not dim:
        return ""
    return f" [{':, ' * int(dim)}{part}]" if dim in "01234" else f" dim {dim} {part}"


@lru_cache(maxsize=4096)
def operation_text(title: str, attributes: tuple[str, ...], call: str = "") -> str:
    """Return the name of an operation with its distinguishing attributes.

    On the CPU, autograd records a dropout as a product; it is named "dropout".

    Args:
        title: name of the operation.
        attributes: `Node.attributes`.
        call: `Node.call`. A name in it replaces `title`.

    >>> operation_text("pow", ("exponent=2",)), operation_text("mul", ("p=0.1",))
    ('pow 2', 'dropout 0.1')
    >>> operation_text("convolution", ("stride=(2, 2)",), "conv2d")
    'conv2d stride 2'
    """
    rate = _parse_attributes(attributes).get("p") if title.startswith("mul") else None
    if rate is not None:
        return f"dropout {_round_text(rate)}"
    name = program_name(title, call)
    if title == "rsub" and call:
        other = _parse_attributes(attributes).get("other")
        return f"{other} {MINUS} …" if other else "sub"
    return name if name == "square" else name + attribute_suffix(title, attributes)


# Method of an operator -> name of the function.
_METHOD_NAMES = {
    **dict.fromkeys(("iadd", "radd"), "add"),
    **dict.fromkeys(("isub",), "sub"),
    **dict.fromkeys(("imul", "rmul"), "mul"),
    **dict.fromkeys(("truediv", "itruediv"), "div"),
    "rtruediv": "div",
    "rpow": "pow",
    "ipow": "pow",
    "rmatmul": "matmul",
}
# Calls whose names say less than autograd's names. For example, autograd calls `x[0]` "select" and
# `x[1:]` "slice", but both are the call "getitem".
_GENERIC_CALLS = ("", "getitem", "get", "apply", "wrapper", "fn", "to", "type")


@lru_cache(maxsize=4096)
def program_name(operation: str, call: str) -> str:
    """Return the name that the program used to call an operation, or autograd's name.

    >>> program_name("max_pool2d_with_indices", "max_pool2d")
    'max_pool2d'
    >>> program_name("nll_loss", "loss/cross_entropy#2")
    'cross_entropy'
    >>> program_name("select", "getitem"), program_name("add", "iadd")
    ('select', 'add')
    """
    name = call.rpartition("/")[2].partition("#")[0]
    return operation if name in _GENERIC_CALLS else _METHOD_NAMES.get(name, name)


def _parse_attributes(attributes: tuple[str, ...]) -> dict[str, str]:
    """Return the attributes as name -> value."""
    return dict(text.partition("=")[::2] for text in attributes)


def _short_value(value: str, attribute: str) -> str:
    """Return an attribute's value as short text: "2" for "(2, 2)", except for kernel sizes."""
    if attribute == "data":  # "old" for "old f32[64]"
        return value.rpartition("[")[0].rpartition(" ")[0]
    parts = value.strip("()").rstrip(",").split(", ") if value.startswith("(") else [value]
    parts = list(map(_round_text, parts))
    once = len(set(parts)) == 1 and attribute != "kernel_size"
    same = parts[0] if once else (", " if attribute == "dims" else TIMES).join(parts)
    return same.replace("-", MINUS) if value.startswith("-") else same


def _round_text(value: str) -> str:
    """Return a number, given as text, with at most six significant digits.

    Other text is returned unchanged.
    """
    if "." not in value:
        return value
    try:
        return value if float(f"{float(value):.6g}") == float(value) else f"{float(value):.6g}"
    except ValueError:
        return value


@lru_cache(maxsize=4096)
def shape(meta: TensorMeta) -> str:
    """Return dtype and shape without the device: "f32[8, 128]"."""
    return f"{short_dtype(meta.dtype)}{list(meta.shape)}"


def shapes(metas: Sequence[TensorMeta]) -> str:
    """Return the dtype and shape of tensors that may differ in the size of an axis.

    A size that differs is written as a range.

    >>> shapes([TensorMeta((rows, 64), "float32", "cpu") for rows in (7, 3, 9)])
    'f32[3…9, 64]'
    """
    axes = [sorted(set(sizes)) for sizes in zip(*[meta.shape for meta in metas], strict=True)]
    sizes = [str(axis[0]) if len(axis) == 1 else f"{axis[0]}…{axis[-1]}" for axis in axes]
    return f"{short_dtype(metas[0].dtype)}[{', '.join(sizes)}]"


@lru_cache(maxsize=4096)
def tensors(outputs: Outputs, *others: Outputs, device: bool = True) -> str:
    """Return the text of a node's outputs in one line, such as "2 outputs, f32[2, 4] cpu".

    Args:
        outputs: outputs of the drawn node.
        others: outputs of the other nodes that the drawn node represents, which may differ in the
            size of an axis.
        device: True to end the line with the device.
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
    """Return the text of a gradient in one line: its elements if there are few, else its norm.

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
    """Return True if the text of a value or gradient contains NaN or Inf.

    >>> is_spoilt("value [1, NaN]"), is_spoilt("grad norm 2, 3 Inf"), is_spoilt("value 2")
    (True, True, False)
    """
    return line.startswith(("value ", "grad ")) and _NONFINITE.search(line) is not None


def is_small(stats: GradientStats) -> bool:
    """Return True if a gradient has few enough elements to write all of them."""
    return stats.values is not None and len(stats.values) <= MAX_ELEMENTS_SHOWN


def copies(transfers: Iterable[Transfer]) -> list[str]:
    """Return a line for each pair of devices between which data was copied.

    >>> meta = TensorMeta((5, 8), "float32", "cuda:0")
    >>> copies([Transfer("HtoD", "cpu", "cuda:0", meta, "forward")] * 2)
    ['cpu → cuda:0, 2 copies, 320 B']
    """
    pairs: dict[tuple[str, str], list[int | None]] = {}
    for each in transfers:
        pairs.setdefault((each.source, each.target), []).append(each.nbytes)
    lines = []
    for (source, target), sizes in pairs.items():
        known = [size for size in sizes if size is not None]
        parts = [f"{source} → {target}"]
        parts += [f"{len(sizes):,} copies"] if len(sizes) > 1 else []
        parts += [bytes_text(sum(known))] if len(known) == len(sizes) else []
        lines.append(", ".join(parts))
    return lines


def leaf_gradient(leaf: Node) -> str:
    """Return a space and the gradient norm of a leaf; "" if the norm is unknown.

    >>> leaf_gradient(Node(0, "AccumulateGrad", (), grad_outputs=(GradientStats(3, 2, 1, 0),)))
    ' grad 3'
    """
    [stats] = leaf.grad_outputs or (None,)
    if stats is None:
        return ""
    return f" {gradient(stats._replace(values=None)).replace('grad norm', 'grad')}"


@lru_cache(maxsize=4096)
def cast(before: Outputs, after: Outputs) -> str:
    """Return " as bf16" if two dtypes differ; else "".

    Args:
        before: outputs of a leaf.
        after: outputs of the last cast or view between the leaf and its user.
    """
    old, new = ([meta.dtype for meta in metas if meta is not None] for metas in (before, after))
    return f" as {short_dtype(new[0])}" if new and old != new else ""


def number(value: object) -> str:
    """Return a number with four significant digits ("2.667", "1.20e-5"); other values as str."""
    return number_text(value) if isinstance(value, (int, float)) else str(value)


def details(node: Node) -> list[str]:
    """Return a line for each field of a node with `Column(detail=True)`, such as `Node.note`."""
    found: list[str] = []
    for name, column in declared_details(Node):
        value = getattr(node, name)
        if is_recorded(value):
            found += clip(column.words(value)).splitlines()
    return found


def count(value: float) -> str:
    """Return a large number with a unit prefix: "950", "7.1 M"."""
    for unit, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= 0.9995 * size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f}"


def local_name(node: Node, label: str) -> str:
    """Return the label of a parameter, without the path of the module that `node` belongs to.

    >>> local_name(Node(0, "TBackward0", (), module="fc1", scope="fc1"), "model.fc1.weight")
    'weight'
    """
    if not node.scope:
        return label
    path = f".{node.module}."
    start = f".{label}".find(path)
    return label[start + len(path) - 1 :] if start >= 0 else label
