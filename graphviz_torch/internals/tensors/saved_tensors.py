"""Find the attributes of autograd nodes that refer to the tensors saved for backward.

Uses private API (2.11 to 2.15): `fn._raw_saved_<name>` is a SavedTensor, whose `data` is the saved
tensor. A custom Function has one list of SavedTensors. In 2.8 and 2.9 a SavedTensor has no `data`,
and unpacking it may run a hook of the user.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

# True if this version of torch exposes `SavedTensor.data`.
HAS_SAVED_TENSOR_DATA: bool = hasattr(torch._C._autograd.SavedTensor, "data")
MISSING_SAVED_TENSORS = (
    f"tensors saved for backward, which torch {torch.__version__} does not expose"
)

_PREFIX = "_raw_saved_"
_OF_FUNCTION = [("_raw_saved_tensors", "")]


class _SavedNames(dict[type, list[tuple[str, str]]]):
    def __missing__(self, kind: type) -> list[tuple[str, str]]:
        if issubclass(kind, BackwardCFunction):
            return _OF_FUNCTION  # not cached, because a class of the user may refer to tensors
        names = [name for name in dir(kind) if name.startswith(_PREFIX)]
        self[kind] = [(name, name.removeprefix(_PREFIX)) for name in names]
        return self[kind]


# For each node class, the attributes that refer to saved tensors, each with the tensor's name.
SAVED_NAMES = _SavedNames()


def saved_value(fn: Any, name: str) -> torch.Tensor | None:
    """Return a tensor that a node saved for backward, without unpacking it.

    Returns None if the node saved no such tensor, if backward has freed it, if a hook of the
    program packed it, or if this version of torch does not expose it.
    """
    raw = getattr(fn, f"{_PREFIX}{name}", None) if HAS_SAVED_TENSOR_DATA else None
    try:
        return None if raw is None or raw.unpack_hook is not None else raw.data
    except RuntimeError:
        return None


def saved_index(fn: Any) -> torch.Tensor | None:
    """Return the index that a node of `x[index]`, index_select or gather saved.

    Returns None for an index of a later dimension, and if `saved_value` would.
    """
    if not hasattr(fn, "_raw_saved_indices"):
        first = getattr(fn, "_saved_dim", None) == 0
        return saved_value(fn, "index") if first else None
    raw = fn._raw_saved_indices
    try:
        alone = HAS_SAVED_TENSOR_DATA and len(raw) == 1 and raw[0].unpack_hook is None
        return raw[0].data if alone else None
    except (RuntimeError, AttributeError):
        return None
