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
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import compress, pairwise, repeat
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from ..graph import SavedKind, SavedTensor
from ..graph.nodes import CHECKPOINTED
from ..internals.hooks.checkpoints import is_holder
from ..internals.hooks.modes import unseen_calls
from ..internals.tensors.memory import PLAIN, is_dense, parts_of_each, storage_ids, storage_sizes
from ..internals.tensors.metadata import tensor_metas
from ..internals.tensors.pytree import tensors
from ..internals.tensors.saved_tensors import SAVED_NAMES, TELLS
from .checkpoints import Checkpoints

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
    """What the nodes of a live graph keep, read when it is first asked for.

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
        if not TELLS:
            return {}, {}, []
        with unseen_calls():  # no subclass is to see what is read
            return _saved(list(self._fns), self._known, self._named, self._checkpoints)

    @property
    def rows(self) -> Rows:
        """What each node keeps."""
        return self._read[0]

    @property
    def notes(self) -> dict[int, str]:
        """Notes on the nodes for which something is kept that is not known."""
        return self._read[1]

    @property
    def activations(self) -> list[Tensor]:
        """The tensors themselves, but for parameters, buffers and inputs, until the release."""
        return self._read[2]

    def release(self) -> None:
        """Backward may free what the nodes keep."""
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
    """Of which kind a memory is: of the first one's that has it."""
    parts = parts_of_each([tensor for _, tensor in known])
    keys = storage_ids([part for _, part in parts])
    pairs = list(zip(keys, parts, strict=True))
    return {key: known[i][0] for key, (i, _) in reversed(pairs)}


def _labels(named: Iterable[tuple[str, Tensor]]) -> dict[_Part, str]:
    """The names of data: of plain tensors that are not parameters and take no gradient."""
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
    """What each node keeps, and the activations. Each memory counts at the first node alone."""
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
    """Is a tensor without dimensions a number of Python's, which does not widen another's type."""
    other = _STRONGER.get(tensor.dtype)
    if other is None or not tensor.is_cpu:
        return False
    with unseen_calls():
        return torch.result_type(tensor, other) == other.dtype
