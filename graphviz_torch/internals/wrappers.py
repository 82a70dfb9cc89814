"""Recognize modules that wrap another module, such as DDP, and find what they wrap.

The wrappers of torch.compile, DataParallel, DDP, FSDP, activation checkpointing and Fabric are
recognized, as they are in torch 2.13.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor
from torch.nn import DataParallel, Module
from torch.nn.parallel import DistributedDataParallel

# Names of the child that contains the wrapped module, for wrappers of any class.
_WRAPPED_CHILDREN = (
    "_orig_mod",
    "_fsdp_wrapped_module",
    "_checkpoint_wrapped_module",
    "_forward_module",
)
_NAMES = frozenset((*_WRAPPED_CHILDREN, "module"))
_PARALLEL = (DataParallel, DistributedDataParallel)  # their wrapped module is the child `module`


def is_wrapped_child(module: Module, child: str) -> bool:
    """Return True if `module` is a wrapper and the child named `child` is the wrapped module."""
    return child in _WRAPPED_CHILDREN or (child == "module" and isinstance(module, _PARALLEL))


def wrapped_module(module: Module) -> Module | None:
    """Return the module that `module` wraps, or None if it is not a wrapper."""
    inside = module._modules  # a scripted module's `_modules` is not a dict and has no `get`
    if inside and not _NAMES.isdisjoint(inside):
        for name in _WRAPPED_CHILDREN:
            if name in inside:
                return inside[name]
        if "module" in inside and isinstance(module, _PARALLEL):
            return inside["module"]
    return None


def is_sharded(kinds: Iterable[type[Module]]) -> bool:
    """Return True if `fully_shard` created one of these classes."""
    return any(hasattr(kind, "_get_fsdp_state") for kind in kinds)


def unsharded_parameters(module: Module) -> Iterable[tuple[Module, str, Tensor]]:
    """Return (module, name, tensor) of each unsharded parameter of a module given to `fully_shard`.

    The autograd graph contains these tensors. The module itself has the shards instead, except
    during its forward and backward.
    """
    state_of = getattr(type(module), "_get_fsdp_state", None)
    return () if state_of is None else _parameters(state_of(module))


def _parameters(state: Any) -> Iterator[tuple[Module, str, Tensor]]:
    groups = getattr(state, "_fsdp_param_groups", None)  # torch 2.11 has a single group
    for group in [getattr(state, "_fsdp_param_group", None)] if groups is None else groups:
        for part in () if group is None else group.fsdp_params:
            whole = getattr(part, "_unsharded_param", None)  # None before the first forward
            if whole is not None:
                yield part._module_info.module, part._module_info.param_name, whole
