"""Define tensor metadata, gradient statistics, fingerprints and saved tensors as plain values."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Literal

from .ids import NodeId
from .immutable import NamedTuple
from .text import short_repr
from .units import number_text

SavedKind = Literal["activation", "parameter", "buffer", "input"]
# The part of a tensor that statistics describe: the whole tensor (""), the local part of a DTensor,
# or the inner tensors of a wrapper subclass.
Extent = Literal["", "local part", "inner tensors"]

MOST_ELEMENTS = 8  # maximum number of elements of a tensor whose values a graph contains

_SHORT_DTYPES = {"bool": "bool", "bfloat16": "bf16"}
_LETTERS = {"float": "f", "complex": "c", "int": "i", "uint": "u", "qint": "q", "quint": "qu"}


@lru_cache(maxsize=256)
def short_dtype(dtype: str) -> str:
    """Return a short dtype name: `"float32"` -> `"f32"`; an unknown name is returned unchanged."""
    if dtype in _SHORT_DTYPES:
        return _SHORT_DTYPES[dtype]
    match = re.fullmatch(r"([a-z]+)(\d+)(_\w+)?", dtype)
    if match is None or match[1] not in _LETTERS:
        return dtype
    return _LETTERS[match[1]] + match[2] + (match[3] or "").replace("_", "")


@lru_cache(maxsize=256)
def itemsize(dtype: str) -> int | None:
    """Return the bytes of one element of `dtype`; None for an unknown name."""
    if dtype == "bool":
        return 1
    match = re.match(r"[a-z]+?(\d+)", dtype)
    bits = int(match[1]) if match else 0
    return bits // 8 if bits and bits % 8 == 0 else None


# Classes with an instance for each node are named tuples, because a frozen dataclass takes five
# times as long to create.
class TensorMeta(NamedTuple):
    """Shape, dtype and device of a tensor. A ragged dimension of a nested tensor is -1.

    >>> meta = TensorMeta((8, 128), "float32", "cuda:0")
    >>> str(meta), meta.nbytes
    ('f32[8, 128] cuda:0', 4096)
    """

    shape: tuple[int, ...]
    dtype: str  # torch's name without "torch.": "float32"
    device: str  # "cpu", "cuda:0", "sim:1"; "" if unknown

    @property
    def nbytes(self) -> int | None:
        """Bytes of the tensor's elements; the allocator may reserve more.

        None if a dimension is ragged, or if an element does not take a whole number of bytes.
        """
        size = itemsize(self.dtype)
        if size is None or min(self.shape, default=0) < 0:
            return None
        return math.prod(self.shape) * size

    def __str__(self) -> str:
        return f"{short_dtype(self.dtype)}{list(self.shape)} {self.device}".rstrip()


class GradientStats(NamedTuple):
    """Statistics of a gradient as it arrived at a node's output in backward.

    NaN and Inf elements are counted in `nan` and `inf`; `norm`, `max_abs` and `mean` ignore them.

    >>> import torch
    >>> from graphviz_torch import record
    >>> with record() as recording:
    ...     x = torch.ones(4, requires_grad=True)
    ...     (x * 2).sum().backward()
    >>> [stats] = recording.graph.nodes[0].grad_outputs
    >>> stats.norm, stats.max_abs
    (4.0, 2.0)
    """

    norm: float  # Euclidean norm of the finite elements
    max_abs: float
    mean: float
    zero_fraction: float  # fraction of all elements that are zero
    nan: int = 0
    inf: int = 0
    values: tuple[Any, ...] | None = None  # flat, row-major; only for small gradients
    tensor: TensorMeta | None = None  # the gradient's shape, dtype and device
    extent: Extent = ""  # part of the gradient that `tensor` and the statistics describe

    def __repr__(self) -> str:
        return short_repr(self)

    @property
    def nonfinite(self) -> int:
        """Number of NaN and Inf elements."""
        return self.nan + self.inf

    @property
    def whole_norm(self) -> float:
        """Norm of all elements, as in PyTorch: NaN if one is NaN, else Inf if one is Inf."""
        if self.nan:
            return math.nan
        return math.inf if self.inf else self.norm

    @property
    def value_text(self) -> str:
        """Elements of a small gradient as text, "[2, 2.667, 3.333]"; "" for a large gradient.

        >>> meta = TensorMeta((1,), "float32", "cpu")
        >>> GradientStats(2.0, 2.0, 2.0, 0.0, values=(2.0,), tensor=meta).value_text
        '[2]'
        """
        return elements_text(self.values or (), self.tensor and self.tensor.shape)


def elements_text(values: Sequence[Any], shape: Sequence[int] | None = None) -> str:
    """Return the elements of a small tensor as text, nested by its shape.

    Args:
        values: the elements, flat and row-major.
        shape: shape of the tensor. If None, one element is a scalar, and several are a vector.

    >>> elements_text((59 / 3,)), elements_text((3.0, 4.0, 5.0))
    ('19.67', '[3, 4, 5]')
    >>> elements_text((1.0, 2.0, 3.0, float("nan")), (2, 2)), elements_text((True,), (1,))
    ('[[1, 2], [3, NaN]]', '[True]')
    """
    if shape is None or math.prod(shape) != len(values):
        shape = () if len(values) == 1 else (len(values),)
    if not shape:
        return _element_text(values[0]) if values else ""
    if len(shape) == 1 or not values:
        return f"[{', '.join(map(_element_text, values))}]"
    step = len(values) // shape[0]
    rows = (values[start : start + step] for start in range(0, len(values), step))
    return f"[{', '.join(elements_text(row, shape[1:]) for row in rows)}]"


def _element_text(value: Any) -> str:
    if isinstance(value, complex):
        sign = "-" if math.copysign(1.0, value.imag) < 0 else "+"
        return f"{number_text(value.real)}{sign}{number_text(abs(value.imag))}j"
    return number_text(value) if isinstance(value, float) else str(value)


def total_norm(norms: Iterable[float]) -> float:
    """Return the Euclidean norm over several tensors, given the norm of each tensor.

    The result is NaN if any norm is NaN.

    >>> total_norm([3.0, 4.0]), total_norm([math.inf, math.nan])
    (5.0, nan)
    """
    norms = list(norms)
    return math.nan if any(map(math.isnan, norms)) else math.hypot(*norms)


class Fingerprint(NamedTuple):
    """Sums over the elements of a forward result, which show whether two results are equal.

    Each of the first six projections is a sum of all elements times a factor. The factor depends on
    the element's position along the last dimension (cos, sin), along the second-last dimension
    (cos, sin), along the first dimension, and in the flat tensor. The last two projections do not
    depend on positions: the sum of absolute values, and the sum of cubes divided by the square of
    the norm. All projections scale with the norm. NaN elements count as infinite.

    >>> import torch
    >>> from graphviz_torch import record
    >>> with record(fingerprints=True) as recording:
    ...     (torch.arange(3.0, requires_grad=True) * 2).sum().backward()
    >>> [value] = recording.graph.nodes[1].fingerprints
    >>> value.elements, value.mean, value.least, value.greatest
    (3, 2.0, 0.0, 4.0)
    """

    elements: int  # number of elements that were read; for a large leaf, a sample of its elements
    norm: float
    mean: float
    least: float
    greatest: float
    projections: tuple[float, ...] = (0.0,) * 8

    def __repr__(self) -> str:
        return short_repr(self)


class SavedTensor(NamedTuple):
    """A tensor that a node keeps for backward.

    >>> import torch
    >>> from graphviz_torch import record
    >>> with record() as recording:
    ...     torch.ones(3, requires_grad=True).sin().sum().backward()
    >>> [saved] = recording.graph.nodes[1].saved
    >>> saved.name, str(saved.tensor)
    ('self', 'f32[3] cpu')
    """

    name: str  # autograd's name: "self", "weight", "result"; "" in a custom Function
    tensor: TensorMeta
    nbytes: int  # bytes of the tensor's storage; 0 if another node (`shared_with`) counts them
    kind: SavedKind = "activation"
    shared_with: NodeId | None = None  # id of the node that counts the same storage
    label: str = ""  # for data or a target, name of the caller's variable: "image"

    def __repr__(self) -> str:
        return short_repr(self)
