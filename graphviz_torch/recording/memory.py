"""What each node keeps for backward, and how many bytes.

Counted: the storage of every saved tensor, once, at the first node in the order of the graph that
keeps it; so the sum is what the graph keeps alive, parameters, buffers and inputs included, the
indices of sparse tensors and the offsets of nested ones too. Not counted: what a custom Function
keeps as plain attributes, what kernels keep inside and in MKL-DNN's own layout, what a compiled
region keeps in Python, and the numbers of `x * 2.5`, which PyTorch keeps as tensors that no hook
sees (`True` counts its one byte: it cannot be told from a tensor).

Nothing is unpacked. Where somebody's `saved_tensors_hooks` packed a tensor, the tensors in the pack
are counted: on the device and with the bytes they have there. A checkpointed region keeps no tensor
in its nodes, and its nodes say so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..graph import SavedKind, SavedTensor, TensorMeta
from ..internals.hooks.modes import unseen_calls
from ..internals.tensors.memory import PLAIN, parts, storage_bytes, storage_id
from ..internals.tensors.metadata import tensor_meta
from ..internals.tensors.pytree import tensors
from ..internals.tensors.saved_tensors import SAVED_NAMES, TELLS

CHECKPOINTED = "checkpointed: keeps nothing, its forward runs again in backward"
_new: Any = tuple.__new__  # a SavedTensor from a row of its fields, without a call of Python's
# By the type that a Python number has as a tensor: one that it would give way to.
_STRONGER = {
    torch.float64: torch.ones((), dtype=torch.float32),
    torch.int64: torch.ones((), dtype=torch.int32),
    torch.complex128: torch.ones((), dtype=torch.complex64),
}


Rows = dict[int, tuple[SavedTensor, ...]]  # by node


class Memory:
    """What the nodes of a live graph keep, read when it is first asked for.

    Args:
        fns: live nodes, in the order of `Graph.nodes`.
        known: parameters, buffers and inputs: a saved tensor that shares memory with one is of its
            kind, the first one's.
    """

    def __init__(self, fns: Iterable[Any], known: Iterable[tuple[SavedKind, Tensor]]) -> None:
        self._fns = fns
        self._known = known

    @cached_property
    def _read(self) -> tuple[Rows, dict[int, str], list[Tensor]]:
        if not TELLS:
            return {}, {}, []
        with unseen_calls():  # no subclass is to see what is read
            return _saved(list(self._fns), self._known)

    @property
    def rows(self) -> Rows:
        """What each node keeps."""
        return self._read[0]

    @property
    def notes(self) -> dict[int, str]:
        """Notes on the nodes that keep nothing because they are checkpointed."""
        return self._read[1]

    @property
    def activations(self) -> list[Tensor]:
        """The tensors themselves, but for parameters, buffers and inputs, until the release."""
        return self._read[2]

    def release(self) -> None:
        """Backward may free what the nodes keep."""
        if "_read" in vars(self):
            self._read[2].clear()
        self._fns, self._known = (), ()


def _saved(
    fns: Sequence[Any], known: Iterable[tuple[SavedKind, Tensor]]
) -> tuple[Rows, dict[int, str], list[Tensor]]:
    kept = _Tensors(known)
    rows: Rows = {}
    notes: dict[int, str] = {}
    for node, fn in enumerate(fns):
        row: list[SavedTensor] = []
        for attribute, name in SAVED_NAMES[type(fn)]:
            try:
                raw = getattr(fn, attribute)
            except RuntimeError:
                continue  # an earlier backward has freed it
            for one in raw if type(raw) is tuple else (raw,):
                data: Any = None if one is None else one.data
                if type(data) in PLAIN:
                    if data.ndim or not _is_number(data):
                        row.append(kept.saved(name, data, node))
                elif data is not None:
                    if type(data).__module__ == "torch.utils.checkpoint":
                        notes[node] = CHECKPOINTED
                    row += [kept.saved(name, tensor, node) for tensor in tensors(data)]
        if row:
            rows[node] = tuple(row)
    return rows, notes, kept.activations


def _is_number(tensor: Tensor) -> bool:
    """Is a tensor without dimensions a number of Python's, which does not widen another's type."""
    other = _STRONGER.get(tensor.dtype)
    if other is None or not tensor.is_cpu:
        return False
    with unseen_calls():
        return torch.result_type(tensor, other) == other.dtype


class _Tensors:
    """The tensors that are kept, and at which node their memory is counted."""

    def __init__(self, known: Iterable[tuple[SavedKind, Tensor]]) -> None:
        self._kinds: dict[int, SavedKind] = {}
        for kind, tensor in known:
            for part in parts(tensor):
                self._kinds.setdefault(storage_id(part), kind)
        self._metas: dict[Any, TensorMeta] = {}
        self._counted: dict[int, int] = {}  # nodes by memory
        self.activations: list[Tensor] = []

    def saved(self, name: str, tensor: Tensor, node: int) -> SavedTensor:
        """What `node` keeps under a name."""
        counted = self._counted
        nbytes = 0
        shared: int | None = None
        kind: SavedKind = "activation"
        for part in parts(tensor):
            key = storage_id(part)
            kind = self._kinds.get(key, kind)
            if key in counted:
                shared = counted[key]
            else:
                counted[key] = node
                nbytes += storage_bytes(part)
        if kind == "activation":
            self.activations.append(tensor)
        row = (name, self._meta(tensor), nbytes, kind, None if nbytes else shared)
        return _new(SavedTensor, row)  # type: ignore[no-any-return]

    def _meta(self, tensor: Tensor) -> TensorMeta:
        if tensor.is_nested:  # it has no plain shape
            return tensor_meta(tensor)
        like = (tensor.shape, tensor.dtype, tensor.device)
        try:
            known = self._metas.get(like)
        except (RuntimeError, TypeError):  # symbolic sizes have no hash
            return tensor_meta(tensor)
        if known is None:
            known = self._metas[like] = tensor_meta(tensor)
        return known
