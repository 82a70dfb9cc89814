"""Read the tensors that each node saved for backward, and count their bytes.

The storage of every saved tensor is counted once, at the first node in graph order that saves it.
The sum is therefore the memory that the graph keeps alive. It includes parameters, buffers, inputs,
indices of sparse tensors and offsets of nested tensors. It does not include plain attributes of
custom Functions, buffers inside kernels, tensors in MKL-DNN's layout, Python objects in compiled
regions, and numbers such as the 2.5 of `x * 2.5`, which PyTorch saves as tensors that no hook sees.
The number `True` counts as one byte, because it cannot be distinguished from a tensor.

Saved tensors are not unpacked. If `saved_tensors_hooks` packed a tensor, the tensors in the packed
object are counted, with the device and bytes that they have in this object.

A segment under `torch.utils.checkpoint.checkpoint(..., use_reentrant=False)` keeps the tensors
among its arguments, and the results that a selective policy saves. Both are counted at the first
node of the segment. The segment's random state (5,056 bytes on the CPU) and the tensors in closures
of its function are not counted.

When backward runs the forward of a segment again, PyTorch stops this second forward as soon as it
has computed every tensor that the first forward saved, unless `early_stop` is off. An operation at
the end of the segment that saves only its operands is therefore not repeated. With a selective
policy it is unknown which operations run again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from itertools import compress, pairwise, repeat
from operator import itemgetter, ne
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction

from ..graph import SavedKind, SavedTensor
from ..graph.immutable import NamedTuple, immutable
from ..graph.nodes import CHECKPOINTED
from ..internals.frames import CodePosition
from ..internals.hooks.checkpoints import (
    Frame,
    cache_of,
    calling_position,
    contents_of,
    holders_of,
    is_holder,
)
from ..internals.hooks.modes import unseen_calls
from ..internals.tensors.memory import PLAIN, is_dense, parts_of_each, storage_ids, storage_sizes
from ..internals.tensors.metadata import HAS_SAVED_TENSOR_DATA, SAVED_NAMES, tensor_metas
from ..internals.tensors.pytree import tensors

_ATTENTION = "ScaledDotProduct"  # prefix of node types that save results after their operands


@immutable
class Checkpoint:
    """A segment of `torch.utils.checkpoint`, and how often backward recomputed it."""

    nodes: frozenset[int]  # ids of the segment's nodes that save tensors
    start: int  # backward repeats the operations of nodes with start <= sequence number < stop
    stop: int
    saved: int  # number of tensors that the segment's forward saves
    # PyTorch's own counter: backward -> number of tensors that the repeated forward has saved
    saved_again: Mapping[Any, int]
    selects: bool  # True if the segment has a selective-checkpoint policy
    before: int = 0  # number of reruns before the graph was read
    position: CodePosition | None = None  # the user's line that called checkpoint

    def times(self) -> int:
        """Return how often backward ran the segment's forward again.

        With a selective policy, only the operations whose results were not saved run again.
        """
        return sum(count == self.saved for count in self.saved_again.values()) - self.before


@immutable
class Checkpoints:
    """The `torch.utils.checkpoint` segments of a graph, and the tensors that they keep."""

    parts: list[Checkpoint] = field(default_factory=list)
    # For each tensor that a segment keeps: the id of the segment's first node, and the tensor.
    kept: list[tuple[int, Tensor]] = field(default_factory=list)


class _SavePoint(NamedTuple):
    """The point of the forward at which a tensor is saved."""

    node: int  # id of the node that saves the tensor
    start: int  # operations with smaller sequence numbers have run when the tensor is saved
    stop: int  # operations with smaller sequence numbers have run when this operation ends


def checkpoints_of(fns: Iterable[Any], frames: Sequence[tuple[Frame, int]]) -> Checkpoints:
    """Return the segments of a graph that `torch.utils.checkpoint` recomputes in backward.

    Args:
        fns: live nodes, in the order of `Graph.nodes`.
        frames: PyTorch's `_CheckpointFrame` objects of live segments, inner segments first, each
            with the sequence number of the segment's first node.
    """
    found = Checkpoints()
    places = _places(fns) if frames else {}
    for frame, start in frames:
        holders = holders_of(frame)
        known = [places[id(holder)] for holder in holders if id(holder) in places]
        if not known:
            continue  # the segment belongs to another graph
        ends = frame.early_stop and id(holders[-1]) in places
        stop = known[-1].start if ends else known[-1].stop
        nodes, counts = frozenset(place.node for place in known), frame.recomp_counter
        selects = cache_of(frame) is not None
        part = Checkpoint(nodes, start, stop, len(holders), counts, selects)
        position = calling_position(frame)
        found.parts.append(replace(part, before=part.times(), position=position))
        for each in contents_of(frame):
            if is_holder(each):  # a placeholder of a tensor that the outer segment computes again
                places[id(each)] = _SavePoint(min(nodes), start, known[-1].stop)
            else:
                found.kept.extend((min(nodes), tensor) for tensor in tensors(each))
    return found


def _places(fns: Iterable[Any]) -> dict[int, _SavePoint]:
    """Return where each tensor in a checkpointed segment is saved in forward.

    The keys are the id() of the placeholders that nodes save instead of these tensors.
    """
    found = {}
    for node, fn in enumerate(fns):
        kind = type(fn)
        for attribute, name in SAVED_NAMES[kind]:
            try:
                raw = getattr(fn, attribute)
            except RuntimeError:
                continue  # an earlier backward has freed the tensor
            for one in raw if type(raw) is tuple else (raw,):
                if one is not None and is_holder(one.data):
                    number = fn._sequence_nr()
                    ran = name.startswith("result") or issubclass(kind, BackwardCFunction)
                    ran = ran or kind.__name__.startswith(_ATTENTION)
                    found[id(one.data)] = _SavePoint(node, number + ran, number + 1)
    return found


_BEFORE = f"{CHECKPOINTED} before the recording: what that keeps is not counted"
_OF_CHECKPOINT = "checkpointed tensor"
_new: Any = tuple.__new__  # creates a SavedTensor without a Python-level call
# Dtype -> a tensor of a smaller dtype. Type promotion with this tensor returns the smaller dtype
# for a tensor made from a Python number, but the original dtype for an ordinary tensor.
_STRONGER = {
    torch.float64: torch.ones((), dtype=torch.float32),
    torch.int64: torch.ones((), dtype=torch.int32),
    torch.complex128: torch.ones((), dtype=torch.complex64),
}


SavedRows = dict[int, tuple[SavedTensor, ...]]  # by node id
# Key that identifies a view: storage id, offset, shape, strides.
_ViewKey = tuple[int, int | torch.SymInt, torch.Size, tuple[int, ...]]


class Memory:
    """The tensors that the autograd nodes of a graph saved; they are read on first use.

    Args:
        fns: live nodes, in the order of `Graph.nodes`.
        known: parameters, buffers and inputs with their kinds. A saved tensor gets the kind of the
            known tensor with which it shares memory.
        named: tensors with the program's names, which label saved inputs and targets.
        checkpoints: the checkpointed segments of the graph.
    """

    def __init__(
        self,
        fns: Iterable[Any],
        known: Iterable[tuple[SavedKind, Tensor]],
        named: Iterable[tuple[str, Tensor]] = (),
        checkpoints: Checkpoints | None = None,
    ) -> None:
        self._fns = fns
        self._known = known
        self._named = named
        self._checkpoints = Checkpoints() if checkpoints is None else checkpoints

    @cached_property
    def _read(self) -> tuple[SavedRows, dict[int, str], list[Tensor]]:
        if not HAS_SAVED_TENSOR_DATA:
            return {}, {}, []
        with unseen_calls():  # hidden from tensor subclasses
            return _read_saved(list(self._fns), self._known, self._named, self._checkpoints)

    @property
    def rows(self) -> SavedRows:
        """Return the saved tensors by node id."""
        return self._read[0]

    @property
    def notes(self) -> dict[int, str]:
        """Return notes on the nodes whose saved tensors could not be counted, by node id."""
        return self._read[1]

    @property
    def activations(self) -> list[Tensor]:
        """Return the saved tensors that are not parameters, buffers or inputs.

        The list is empty after `release`.
        """
        return self._read[2]

    def release(self) -> None:
        """Drop the references to saved tensors, so that backward can free them."""
        if "_read" in vars(self):
            self._read[2].clear()
        self._checkpoints.kept.clear()
        self._fns, self._known, self._named = (), (), ()


def _read_saved(
    fns: Sequence[Any],
    known: Iterable[tuple[SavedKind, Tensor]],
    named: Iterable[tuple[str, Tensor]],
    checkpoints: Checkpoints,
) -> tuple[SavedRows, dict[int, str], list[Tensor]]:
    kept: list[tuple[int, str, Tensor]] = []  # (node id, attribute name, tensor)
    kept += [(node, _OF_CHECKPOINT, tensor) for node, tensor in checkpoints.kept]
    inside = {node for part in checkpoints.parts for node in part.nodes}
    notes: dict[int, str] = {}
    names = list(map(SAVED_NAMES.__getitem__, map(type, fns)))
    saving = compress(zip(range(len(fns)), fns, names, strict=True), names)
    for node, fn, own in saving:  # half of the nodes save nothing
        for attribute, name in own:
            try:
                raw = getattr(fn, attribute)
            except RuntimeError:
                continue  # an earlier backward has freed the tensor
            for one in raw if type(raw) is tuple else (raw,):
                data: Any = None if one is None else one.data
                if type(data) in PLAIN:
                    if data.ndim or not _is_number(data):
                        kept.append((node, name, data))
                elif is_holder(data):
                    if node not in inside:
                        notes[node] = _BEFORE
                elif data is not None:
                    kept += [(node, name, tensor) for tensor in tensors(data)]
    if checkpoints.kept:
        kept.sort(key=itemgetter(0))
    rows, activations = _describe(kept, _kinds(list(known)), _labels(named))
    return rows, notes, activations


def _kinds(known: Sequence[tuple[SavedKind, Tensor]]) -> dict[int, SavedKind]:
    """Return the kind of each storage, by storage id.

    If several tensors share a storage, the first one determines the kind.

    Args:
        known: the kind of each known tensor, with the tensor.
    """
    parts, keys = parts_of_each([tensor for _, tensor in known])
    pairs = list(zip(keys, parts, strict=True))
    return {key: known[i][0] for key, (i, _) in reversed(pairs)}


def _labels(named: Iterable[tuple[str, Tensor]]) -> dict[_ViewKey, str]:
    """Return the program's names for data tensors, by the key of their view.

    Data tensors are plain tensors that require no gradient and are neither parameters nor buffers.

    Args:
        named: the program's (name, tensor) pairs.
    """
    data = [
        (name, tensor)
        for name, tensor in named
        # The names of parameters and buffers are left out: their type is a subclass of str.
        if type(name) is str and type(tensor) in PLAIN
        if is_dense(tensor) and not tensor.requires_grad
    ]
    keys = storage_ids([tensor for _, tensor in data])
    pairs = zip(keys, data, strict=True)
    return {_view_key(key, tensor): name for key, (name, tensor) in reversed([*pairs])}


def _view_key(key: int, tensor: Tensor) -> _ViewKey:
    return key, tensor.storage_offset(), tensor.shape, tensor.stride()


def _describe(
    kept: Sequence[tuple[int, str, Tensor]],
    kinds: Mapping[int, SavedKind],
    labels: Mapping[_ViewKey, str],
) -> tuple[SavedRows, list[Tensor]]:
    """Return a description of each node's saved tensors, and the activations among them.

    The description consists of plain values by node id. The activations are the tensors themselves.

    The bytes of a storage are counted at the first node that saves a tensor in this storage.

    Args:
        kept: node id, attribute name and tensor of each saved tensor, in graph order.
        kinds: kinds of storages, by storage id.
        labels: the program's names for data tensors, by the key of their view.
    """
    nodes, names = [node for node, _, _ in kept], [name for _, name, _ in kept]
    given = [tensor for _, _, tensor in kept]
    parts, keys = parts_of_each(given)
    # Storage id -> index in `parts` of the first part that is in the storage.
    first = dict(zip(reversed(keys), reversed(range(len(keys))), strict=True))
    sizes = storage_sizes([parts[at][1] for at in first.values()])
    # Columns with a row for each saved tensor. `shared` is the node at which a tensor's storage is
    # counted, if an earlier part is in the same storage.
    nbytes, known_as = [0] * len(kept), [""] * len(kept)
    saved_as: list[SavedKind] = ["activation"] * len(kept)
    shared: list[int | None] = [None] * len(kept)
    for at, size in zip(first.values(), sizes, strict=True):
        nbytes[parts[at][0]] += size
    for (i, _), key in compress(zip(parts, keys, strict=True), map(kinds.__contains__, keys)):
        saved_as[i] = kinds[key]
    firsts = list(map(first.__getitem__, keys))
    for (i, _), at in compress(zip(parts, firsts, strict=True), map(ne, firsts, range(len(keys)))):
        shared[i] = None if nbytes[i] else nodes[parts[at][0]]
    for (i, part), key in zip(parts, keys, strict=True) if labels else ():
        if part is given[i] and (saved_as[i] == "input" or names[i] == "target"):
            known_as[i] = labels.get(_view_key(key, part), "")
    columns = names, tensor_metas(given), nbytes, saved_as, shared, known_as
    saved = tuple(map(_new, repeat(SavedTensor), zip(*columns, strict=True)))
    starts = [i for i, node in enumerate(nodes) if not i or node != nodes[i - 1]]
    spans = pairwise([*starts, len(nodes)])
    rows = {nodes[start]: saved[start:end] for start, end in spans}
    activations = list(compress(given, map("activation".__eq__, saved_as)))
    return rows, activations


def _is_number(tensor: Tensor) -> bool:
    """Return True if PyTorch made this zero-dimensional tensor from a Python number.

    Such a tensor does not determine the result's dtype in type promotion.
    """
    other = _STRONGER.get(tensor.dtype)
    if other is None or not tensor.is_cpu:
        return False
    with unseen_calls():
        return torch.result_type(tensor, other) == other.dtype
