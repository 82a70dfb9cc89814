"""What each node keeps for backward, and how many bytes.

Counted: the storage of every saved tensor, once, at the first node in the order of the graph that
keeps it; so the sum is what the graph keeps alive, parameters, buffers and inputs included. Not
counted: what a custom Function keeps as plain attributes, what kernels keep inside, and what a
compiled region keeps in Python.

Nothing is unpacked. Where somebody's `saved_tensors_hooks` packed a tensor, the tensors in the pack
are counted: on the device and with the bytes they have there. A checkpointed region keeps no tensor
in its nodes, and its nodes say so.

Private: `fn._raw_saved_<name>` gives a SavedTensor whose `data` is what is kept (2.13).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from .following import tensors
from .graph import SavedKind, SavedTensor
from .tracer import tensor_meta

CHECKPOINTED = "checkpointed: keeps nothing, its forward runs again in backward"
_PREFIX = "_raw_saved_"
_names: dict[type, list[tuple[str, str]]] = {}


def saved(
    fns: Sequence[Any], known: Iterable[tuple[SavedKind, Tensor]]
) -> tuple[dict[int, tuple[SavedTensor, ...]], dict[int, str]]:
    """What each node keeps, and notes on those that keep nothing because they are checkpointed.

    Args:
        fns: live nodes, in the order of `Graph.nodes`.
        known: parameters, buffers and inputs: a saved tensor that shares memory with one is of its
            kind, the first one's.
    """
    kinds: dict[int, SavedKind] = {}
    for kind, tensor in known:
        for storage in _storages(tensor):
            kinds.setdefault(storage._cdata, kind)
    counted: dict[int, int] = {}
    rows: dict[int, tuple[SavedTensor, ...]] = {}
    notes: dict[int, str] = {}
    for node, fn in enumerate(fns):
        cls = type(fn)
        names = _names.get(cls)
        if names is None:
            names = _names[cls] = [
                (name, name.removeprefix(_PREFIX) if name != _PREFIX + "tensors" else "")
                for name in dir(cls)
                if name.startswith(_PREFIX)
            ]
        if not names:
            continue
        row: list[SavedTensor] = []
        for attribute, name in names:
            for data in _kept(getattr(fn, attribute)):
                if type(data).__module__ == "torch.utils.checkpoint":
                    notes[node] = CHECKPOINTED
                for tensor in tensors(data):
                    row.append(_saved(name, tensor, node, kinds, counted))
        if row:
            rows[node] = tuple(row)
    return rows, notes


def _kept(raw: Any) -> list[Any]:
    return [one.data for one in (raw if isinstance(raw, tuple) else (raw,)) if one is not None]


def _saved(
    name: str, tensor: Tensor, node: int, kinds: dict[int, SavedKind], counted: dict[int, int]
) -> SavedTensor:
    nbytes = 0
    shared: int | None = None
    kind: SavedKind = "activation"
    for storage in _storages(tensor):
        key = storage._cdata
        kind = kinds.get(key, kind)
        if key in counted:
            shared = counted[key]
        else:
            counted[key] = node
            nbytes += storage.nbytes()
    return SavedTensor(name, tensor_meta(tensor), nbytes, kind, None if nbytes else shared)


def _storages(tensor: Tensor) -> list[torch.UntypedStorage]:
    if tensor.layout == torch.strided:
        return [tensor.untyped_storage()]
    if tensor.layout == torch.sparse_coo:
        parts = [tensor._indices(), tensor._values()]
    elif tensor.layout == torch.jagged:
        jagged: Any = tensor
        parts = [jagged.values(), jagged.offsets()]
    else:
        parts = [tensor.values()]
    return [part.untyped_storage() for part in parts]
