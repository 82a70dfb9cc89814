"""What each node keeps for backward, and how many bytes.

Counted: the storage of every saved tensor, once, at the first node in the order of the graph that
keeps it; so the sum is what the graph keeps alive, parameters, buffers and inputs included, the
indices of sparse tensors and the offsets of nested ones too. Not counted: what a custom Function
keeps as plain attributes, what kernels keep inside and in MKL-DNN's own layout, what a compiled
region keeps in Python, and the numbers of `x * 2.5`, which PyTorch keeps as tensors that no hook
sees (`True` counts its one byte: it cannot be told from a tensor).

Nothing is unpacked. Where somebody's `saved_tensors_hooks` packed a tensor, the tensors in the pack
are counted: on the device and with the bytes they have there. What a checkpointed part keeps to run
again counts at the first of its nodes.

A checkpointed part keeps what it needs to run its forward again:
`torch.utils.checkpoint.checkpoint(..., use_reentrant=False)`. Its nodes are in the graph, and keep
nothing themselves. Kept are the tensors among the arguments, those by keyword too, and what a
policy keeps. Not counted: the state of the random numbers (5,056 bytes on the CPU), and what the
function holds.

PyTorch ends the second forward as soon as all is there that the first one has saved, unless
`early_stop` is off: an operation that is the last to save, and saves its operands alone, does not
run again, and nothing after it does. Which operations a policy runs again is not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import compress, pairwise, repeat
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction

from ..graph import SavedKind, SavedTensor
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
from ..internals.tensors.metadata import tensor_metas
from ..internals.tensors.pytree import tensors
from ..internals.tensors.saved_tensors import HAS_SAVED_TENSOR_DATA, SAVED_NAMES

_ATTENTION = "ScaledDotProduct"  # what it saves last are results


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpointed part, and its number of reruns. Keeps no tensor."""

    nodes: frozenset[int]  # those that save something
    start: int  # the nodes start <= sequence number < stop run again
    stop: int
    saved: int  # how many tensors its forward saves
    saved_again: Mapping[Any, int]  # the same by backward, as PyTorch counts while one runs
    selects: bool  # does a policy keep some of its results
    before: int = 0  # how often it had run again when the graph was read
    position: CodePosition | None = None  # the user's line that called checkpoint

    def times(self) -> int:
        """Return how often its forward ran again, or the part of it that the policy did not
        keep.
        """
        return sum(count == self.saved for count in self.saved_again.values()) - self.before


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """The checkpointed parts of a live graph."""

    parts: list[Checkpoint] = field(default_factory=list)
    kept: list[tuple[int, Tensor]] = field(default_factory=list)  # each with the part's first node


class _Place(NamedTuple):
    """A place where a tensor is saved."""

    node: int
    start: int  # the nodes before this sequence number have run when it is saved
    stop: int  # those before this one have when a later node saves one


def checkpoints_of(fns: Iterable[Any], frames: Sequence[tuple[Frame, int]]) -> Checkpoints:
    """Return the checkpointed parts of a graph.

    Args:
        fns: live nodes, in the order of `Graph.nodes`.
        frames: of the parts that are alive, the inner before the outer, each with the sequence
            number of the first node in it.
    """
    found = Checkpoints()
    places = _places(fns) if frames else {}
    for frame, start in frames:
        holders = holders_of(frame)
        known = [places[id(holder)] for holder in holders if id(holder) in places]
        if not known:
            continue  # it is of another graph
        ends = frame.early_stop and id(holders[-1]) in places
        stop = known[-1].start if ends else known[-1].stop
        nodes, counts = frozenset(place.node for place in known), frame.recomp_counter
        selects = cache_of(frame) is not None
        part = Checkpoint(nodes, start, stop, len(holders), counts, selects)
        position = calling_position(frame)
        found.parts.append(replace(part, before=part.times(), position=position))
        for each in contents_of(frame):
            if is_holder(each):  # the part around this one makes it again
                places[id(each)] = _Place(min(nodes), start, known[-1].stop)
            else:
                found.kept.extend((min(nodes), tensor) for tensor in tensors(each))
    return found


def _places(fns: Iterable[Any]) -> dict[int, _Place]:
    """Return the places of saved tensors, by id() of their stand-in."""
    found = {}
    for node, fn in enumerate(fns):
        kind = type(fn)
        for attribute, name in SAVED_NAMES[kind]:
            try:
                raw = getattr(fn, attribute)
            except RuntimeError:
                continue  # an earlier backward has freed it
            for one in raw if type(raw) is tuple else (raw,):
                if one is not None and is_holder(one.data):
                    number = fn._sequence_nr()
                    ran = name.startswith("result") or issubclass(kind, BackwardCFunction)
                    ran = ran or kind.__name__.startswith(_ATTENTION)
                    found[id(one.data)] = _Place(node, number + ran, number + 1)
    return found


_BEFORE = f"{CHECKPOINTED} before the recording: what that keeps is not counted"
_OF_CHECKPOINT = "checkpointed tensor"
_new: Any = tuple.__new__  # a SavedTensor from a row of its fields, without a call of Python's
# By the type that a Python number has as a tensor: one that it would give way to.
_STRONGER = {
    torch.float64: torch.ones((), dtype=torch.float32),
    torch.int64: torch.ones((), dtype=torch.int32),
    torch.complex128: torch.ones((), dtype=torch.complex64),
}


Rows = dict[int, tuple[SavedTensor, ...]]  # by node
# Storage, offset, shape and strides.
_Part = tuple[int, int | torch.SymInt, torch.Size, tuple[int, ...]]


class Memory:
    """The saved tensors of a live graph, read on first use.

    Args:
        fns: live nodes, in the order of `Graph.nodes`.
        known: parameters, buffers and inputs: a saved tensor that shares memory with one is of its
            kind, the first one's.
        named: what the program calls its tensors: an input, or a target, has the first name.
        checkpoints: those of the graph.
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
    def _read(self) -> tuple[Rows, dict[int, str], list[Tensor]]:
        if not HAS_SAVED_TENSOR_DATA:
            return {}, {}, []
        with unseen_calls():  # no subclass is to see what is read
            return _saved(list(self._fns), self._known, self._named, self._checkpoints)

    @property
    def rows(self) -> Rows:
        """Return the saved tensors of each node."""
        return self._read[0]

    @property
    def notes(self) -> dict[int, str]:
        """Return notes for nodes with unreadable saved tensors.

        Notes on the nodes for which something is kept that is not known.
        """
        return self._read[1]

    @property
    def activations(self) -> list[Tensor]:
        """Return the saved tensors that are not parameters, buffers or inputs, until `release`."""
        return self._read[2]

    def release(self) -> None:
        """Let backward free the saved tensors."""
        if "_read" in vars(self):
            self._read[2].clear()
        self._checkpoints.kept.clear()
        self._fns, self._known, self._named = (), (), ()


def _saved(
    fns: Sequence[Any],
    known: Iterable[tuple[SavedKind, Tensor]],
    named: Iterable[tuple[str, Tensor]],
    checkpoints: Checkpoints,
) -> tuple[Rows, dict[int, str], list[Tensor]]:
    kept: list[tuple[int, str, Tensor]] = []  # by which node, under which name
    kept += [(node, _OF_CHECKPOINT, tensor) for node, tensor in checkpoints.kept]
    inside = {node for part in checkpoints.parts for node in part.nodes}
    notes: dict[int, str] = {}
    names = list(map(SAVED_NAMES.__getitem__, map(type, fns)))
    saving = compress(zip(range(len(fns)), fns, names, strict=True), names)
    for node, fn, own in saving:  # half of the nodes keep nothing
        for attribute, name in own:
            try:
                raw = getattr(fn, attribute)
            except RuntimeError:
                continue  # an earlier backward has freed it
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
    rows, activations = _described(kept, _kinds(list(known)), _labels(named))
    return rows, notes, activations


def _kinds(known: Sequence[tuple[SavedKind, Tensor]]) -> dict[int, SavedKind]:
    """Return the kind of each memory: that of its first owner."""
    parts = parts_of_each([tensor for _, tensor in known])
    keys = storage_ids([part for _, part in parts])
    pairs = list(zip(keys, parts, strict=True))
    return {key: known[i][0] for key, (i, _) in reversed(pairs)}


def _labels(named: Iterable[tuple[str, Tensor]]) -> dict[_Part, str]:
    """Return names of data: plain tensors that are not parameters and require no gradient."""
    data = [
        (name, tensor)
        for name, tensor in named
        if type(name) is str and type(tensor) in PLAIN  # not that of a parameter, or a buffer
        if is_dense(tensor) and not tensor.requires_grad
    ]
    keys = storage_ids([tensor for _, tensor in data])
    pairs = zip(keys, data, strict=True)
    return {_part(key, tensor): name for key, (name, tensor) in reversed([*pairs])}


def _part(key: int, tensor: Tensor) -> _Part:
    return key, tensor.storage_offset(), tensor.shape, tensor.stride()


def _described(
    kept: Sequence[tuple[int, str, Tensor]],
    kinds: Mapping[int, SavedKind],
    labels: Mapping[_Part, str],
) -> tuple[Rows, list[Tensor]]:
    """Return the saved tensors of each node, and the activations. Each memory counts once, at
    its first node.
    """
    given = [tensor for _, _, tensor in kept]
    parts = parts_of_each(given)
    keys = storage_ids([part for _, part in parts])
    memories = {key: part for key, (_, part) in zip(keys, parts, strict=True)}
    sizes = dict(zip(memories, storage_sizes(list(memories.values())), strict=True))
    counted: dict[int, int] = {}  # nodes by memory
    values: list[list[Any]] = [[0, "activation", None, ""] for _ in kept]  # the last fields
    for (i, part), key in zip(parts, keys, strict=True):
        value = values[i]
        if (kind := kinds.get(key)) is not None:
            value[1] = kind
        if labels and part is given[i] and (value[1] == "input" or kept[i][1] == "target"):
            value[3] = labels.get(_part(key, part), "")
        if key in counted:
            value[2] = counted[key]
        else:
            counted[key] = kept[i][0]
            value[0] += sizes[key]
    fields = [
        (name, meta, nbytes, kind, None if nbytes else shared, label)
        for (_, name, _), meta, (nbytes, kind, shared, label) in zip(
            kept, tensor_metas(given), values, strict=True
        )
    ]
    saved = tuple(map(_new, repeat(SavedTensor), fields))
    first: dict[int, int] = {}  # positions by node
    for i, (node, _, _) in enumerate(kept):
        if node not in first:
            first[node] = i
    spans = pairwise([*first.values(), len(kept)])
    rows = {node: saved[start:end] for node, (start, end) in zip(first, spans, strict=True)}
    activations = [
        tensor for tensor, value in zip(given, values, strict=True) if value[1] == "activation"
    ]
    return rows, activations


def _is_number(tensor: Tensor) -> bool:
    """Return True for a tensor without dimensions that stands for a Python number, which does
    not widen dtypes.
    """
    other = _STRONGER.get(tensor.dtype)
    if other is None or not tensor.is_cpu:
        return False
    with unseen_calls():
        return torch.result_type(tensor, other) == other.dtype
