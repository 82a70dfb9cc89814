"""What wraps a module: which part of it has the wrapper's name, and which parameters it hides.

Seen on torch 2.13: torch.compile, DataParallel, DDP, FSDP, activation checkpointing, Fabric.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor
from torch.nn import DataParallel, Module
from torch.nn.parallel import DistributedDataParallel

# The children in which wrappers of any class hold what they wrap.
_INSIDE = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module")
_NAMES = frozenset((*_INSIDE, "module"))
_PARALLEL = (DataParallel, DistributedDataParallel)  # they hold it in `module`


def is_inside(module: Module, child: str) -> bool:
    """Is a module a wrapper, and its child of this name what it wraps."""
    return child in _INSIDE or (child == "module" and isinstance(module, _PARALLEL))


def wrapped_by(module: Module) -> Module | None:
    """What this module is a wrapper of, if it is one."""
    inside = module._modules  # of a scripted module it is not a dict, and has no `get`
    if inside and not _NAMES.isdisjoint(inside):
        for name in _INSIDE:
            if name in inside:
                return inside[name]
        if "module" in inside and isinstance(module, _PARALLEL):
            return inside["module"]
    return None


def is_sharded(kinds: Iterable[type[Module]]) -> bool:
    """Is one of these classes one that `fully_shard` gave a module."""
    return any(hasattr(kind, "_get_fsdp_state") for kind in kinds)


def unsharded(module: Module) -> Iterable[tuple[Module, str, Tensor]]:
    """Owner, name and tensor of the whole parameters of a module that `fully_shard` divided.

    They are what a graph holds. The owner has them only while it runs, its shards else.
    """
    state_of = getattr(type(module), "_get_fsdp_state", None)
    return () if state_of is None else _parameters(state_of(module))


def _parameters(state: Any) -> Iterator[tuple[Module, str, Tensor]]:
    groups = getattr(state, "_fsdp_param_groups", None)  # of torch 2.11, one group
    for group in [getattr(state, "_fsdp_param_group", None)] if groups is None else groups:
        for part in () if group is None else group.fsdp_params:
            whole = getattr(part, "_unsharded_param", None)  # made by the first forward
            if whole is not None:
                yield part._module_info.module, part._module_info.param_name, whole
