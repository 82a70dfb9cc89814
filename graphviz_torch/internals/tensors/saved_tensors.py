"""Where a node has the tensors that it keeps for backward.

Private: `fn._raw_saved_<name>` gives a SavedTensor whose `data` is what is kept; a custom Function
has one list of them (2.11 to 2.15). An older one has no `data`, and to unpack it may run a hook of
the user's (2.8, 2.9).
"""

from __future__ import annotations

import torch
from torch.autograd.function import BackwardCFunction

# Does a SavedTensor tell what it keeps.
TELLS: bool = hasattr(torch._C._autograd.SavedTensor, "data")
NOT_TOLD = f"what the nodes keep for backward, which torch {torch.__version__} does not tell"

_PREFIX = "_raw_saved_"
_OF_FUNCTION = [("_raw_saved_tensors", "")]


class _SavedNames(dict[type, list[tuple[str, str]]]):
    def __missing__(self, kind: type) -> list[tuple[str, str]]:
        if issubclass(kind, BackwardCFunction):
            return _OF_FUNCTION  # a class of the user's is not kept here: it may hold tensors
        names = [name for name in dir(kind) if name.startswith(_PREFIX)]
        self[kind] = [(name, name.removeprefix(_PREFIX)) for name in names]
        return self[kind]


# By the class of a node: the attributes that give saved tensors, and what to call these.
SAVED_NAMES = _SavedNames()
