"""Compare operations that differ in the size of one axis, such as the number of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ...graph import Node, TensorMeta
from .attributes import distinguishing

# Attributes of an addition of the constant 0, as in `total = 0; total += loss`.
ADDED_ZERO: Final = ("other=0", "other=0.0")
_Outputs = tuple[TensorMeta | None, ...]


def without_sizes(node: Node) -> tuple[object, ...]:
    """Return a key for an operation that does not depend on the sizes of its outputs."""
    metas = [meta and (meta.dtype, meta.device, len(meta.shape)) for meta in node.outputs]
    attributes = distinguishing(node.name, node.attributes)
    return node.name, tuple(metas), tuple([each for each in attributes if each not in ADDED_ZERO])


def differ_in_one_axis(outputs: Sequence[_Outputs]) -> bool:
    """Return True if the shapes of corresponding outputs differ in at most one axis.

    >>> few, many = (TensorMeta((rows, 4), "float32", "cpu") for rows in (3, 9))
    >>> differ_in_one_axis([(few,), (many,)])
    True
    >>> differ_in_one_axis([(few,), (many._replace(shape=(9, 5)),)])
    False
    """
    if len(set(outputs)) == 1:
        return True
    for column in zip(*outputs, strict=True):
        metas = [meta for meta in column if meta is not None]
        shapes = [meta.shape for meta in metas]
        if len({(len(meta.shape), meta.dtype, meta.device) for meta in metas}) > 1:
            return False
        if sum([len(set(sizes)) > 1 for sizes in zip(*shapes, strict=True)]) > 1:
            return False
    return True
