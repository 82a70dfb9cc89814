"""Find messages of a graph network that are added up at the nodes from which they come.

A layer reads the features of each edge's source, and adds them up by the edge's target. If both use
the same index, each node gets its own features.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from torch import Tensor

from ...findings.rules.meaning.messages import ReturnedMessages
from ...internals.functions import TensorBase, functions_named
from ...internals.hooks.calls import Called
from ...internals.tensors.memory import has_memory, storage_id
from ...internals.tensors.metadata import saved_index
from ...tracing.nodes import GradFn, sources_of
from ..program import Program
from ..program.events import NodeLine
from ..program.log import Found, Query, RowsOf

_READING = ("IndexBackward0", "IndexSelectBackward0", "GatherBackward0")
_LAYERS = ("AddmmBackward0", "MmBackward0")
# Operations that compute a message from the features of its edge.
_COMPUTING = {
    *("Add", "Sub", "Mul", "Div", "Neg", "Exp", "Pow", "Relu", "LeakyRelu", "Elu", "Gelu", "Silu"),
    *("Sigmoid", "Tanh", "Softplus", "NativeDropout", "View", "UnsafeView", "Unsqueeze", "Squeeze"),
    *("Cat", "Expand", "Clone", "Transpose", "Permute", "T", "Sum", "NativeLayerNorm", "ToCopy"),
}
_MAX_NODES = 256  # maximum number of nodes of a message
_MIN_EDGES = 8  # fewer edges are no graph

Index = tuple[int, int, int, int]  # storage, offset, number of rows, and stride


def returned_messages(event: Called, program: Program) -> Iterable[Found]:
    """Return an event if a call adds up messages by the index that read them."""
    args, kwargs = event.args, event.kwargs or {}
    given = dict(zip(("self", "dim", "index", "source"), args, strict=False)) | kwargs
    dim, index, source = given.get("dim"), given.get("index"), given.get("source")
    source = kwargs.get("src", source)
    if not isinstance(index, Tensor) or not isinstance(source, Tensor):
        return ()
    if source.grad_fn is None or dim not in (0, -TensorBase.dim(source)):
        return ()
    own = _key(index)
    if own is None or own[2] < _MIN_EDGES or event.result.grad_fn is None:
        return ()
    reads = _reads(source.grad_fn)
    # The query of a pooling is also read and added up by one index, beside other features.
    if [*reads] != [own] or not (_is_of_pairs(index) or _is_read_only(source.grad_fn)):
        return ()
    found = ReturnedMessages(function=event.func.__name__.strip("_"))
    numbers = (int(event.result.grad_fn._sequence_nr()),)
    read = NodeLine(int(reads[own]._sequence_nr()))
    return (Found(found, program.place(event.frame), numbers, latest={"read": read}),)


class GraphMessages(Query):
    """Find messages that are added up by the index that read them."""

    functions = functions_named(
        "index_add index_add_ scatter_add scatter_add_ scatter_reduce scatter_reduce_"
        " index_reduce index_reduce_"
    )
    rows_of: ClassVar[RowsOf] = {"on_call_end": returned_messages}


def _key(index: Any) -> Index | None:
    """Return a key that is equal for indices that are the same part of a storage."""
    if not isinstance(index, Tensor) or not has_memory(index) or not TensorBase.dim(index):
        return None
    offset, stride = int(TensorBase.storage_offset(index)), TensorBase.stride(index)[0]
    return storage_id(index), offset, int(index.shape[0]), stride


def _reads(start: GradFn) -> dict[Index | None, GradFn]:
    """Return the nodes that read the features of a message, by their index; None if unknown."""
    found, seen, stack = dict[Index | None, GradFn](), {start}, [start]
    for fn in stack:
        if fn.name() in _READING:
            found.setdefault(_key(saved_index(fn)), fn)
            continue
        if len(stack) > _MAX_NODES:
            found[None] = fn
            break
        before = [each for each in sources_of(fn) if each not in seen]
        seen.update(before)
        stack += before
    return found


def _is_of_pairs(index: Tensor) -> bool:
    """Return True if an index is the row of sources or of targets of a list of edges."""
    base = index._base
    sizes = () if base is None else tuple(base.shape)
    return len(sizes) == 2 and min(sizes) == 2 and max(sizes) == index.shape[0]


def _is_read_only(start: GradFn) -> bool:
    """Return True if a message consists of features that an index read, and of parameters."""
    found: dict[GradFn, bool | None] = {}

    def origin(fn: GradFn) -> bool | None:
        """Return None for a node that parameters alone compute."""
        if fn not in found:
            found[fn] = False
            found[fn] = visit(fn) if len(found) < _MAX_NODES else False
        return found[fn]

    def visit(fn: GradFn) -> bool | None:
        name = fn.name()
        if name.endswith("AccumulateGrad"):
            return None
        if name in _READING:
            return True
        if name not in _LAYERS and name.removesuffix("Backward0") not in _COMPUTING:
            return False
        known = [each for each in map(origin, sources_of(fn)) if each is not None]
        if not known:  # the input of a layer without a gradient is data of the edges
            return False if name in _LAYERS else None
        return all(known)

    return origin(start) is True
