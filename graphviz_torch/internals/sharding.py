"""Describe how ranks shard a tensor, and which part of PyTorch issued a collective.

The caller of a collective is found by inspecting the stack frames above it:

    fully_shard    for a group of parameters          _fsdp_collectives.py
    FSDP           for a flat parameter               _runtime_utils.py, _flat_param.py
    DTensor        for a change of placements         _redistribute.py

The file names and the names of local variables in them are private (2.13).

A store holds keys and values, through which the ranks of a process group found each other. A
private function of PyTorch returns the store (2.8 to 2.15). From 2.9 on, a group has a method for
this, too.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

import torch.distributed as dist
from torch.nn import Module

from ..graph.immutable import NamedTuple
from .frames import frame_variables
from .functions import TensorBase
from .guards import no_autograd, no_functions, no_operators

_MAX_FRAMES = 48  # maximum number of frames to inspect
_DISTRIBUTED = os.path.join("torch", "distributed", "")


class CollectiveCaller(NamedTuple):
    """The part of PyTorch or of the model that issued a collective."""

    parameters: list[tuple[Module, str]] = []  # noqa: RUF012 - module and name of each
    change: str = ""  # change of a DTensor's placements, such as "Shard(0) → Replicate"
    module: Module | None = None  # the module whose call, or a hook of it, issued the collective
    mesh: Any = None  # the DeviceMesh of the ranks


def find_caller(frame: FrameType | None) -> CollectiveCaller:
    """Return the part of PyTorch, and the module, from which a collective was issued.

    Args:
        frame: the innermost Python frame when the collective was dispatched.
    """
    found = CollectiveCaller()
    for _ in range(_MAX_FRAMES):
        if frame is None:
            break
        code = frame.f_code
        read = _READERS.get(os.path.basename(code.co_filename))
        if read is not None and _DISTRIBUTED in code.co_filename and found == CollectiveCaller():
            found = read(frame) or found
        elif code is Module._call_impl.__code__:
            return found._replace(module=frame_variables(frame, "self")[0])
        frame = frame.f_back
    return found


def mesh_dimensions(mesh: Any) -> Iterator[tuple[str, str]]:
    """Yield (group name, dimension name) for each dimension of a mesh that has names."""
    for at, name in enumerate(getattr(mesh, "mesh_dim_names", None) or ()):
        yield mesh.get_group(at).group_name, name


def placement(tensor: Any) -> str:
    """Return placements and local shape of a DTensor, as "Shard(0) on tp, local [512, 4096]".

    A mesh dimension without a name is given by its index. The result is "" for other tensors.
    """
    spec, local = getattr(tensor, "_spec", None), getattr(tensor, "_local_tensor", None)
    if spec is None or local is None:
        return ""
    names = spec.mesh.mesh_dim_names or range(len(spec.placements))
    parts = [
        f"{_placement_name(each)} on {name}"
        for each, name in zip(spec.placements, names, strict=True)
    ]
    return ", ".join([*parts, f"local {list(local.shape)}"])


def shard_position(tensor: Any) -> tuple[int, int] | None:
    """Return the index of this rank's shard of a DTensor, and the number of shards.

    Replicas have equal indices. Returns None for other tensors, for partial placements, and if this
    rank is not in the mesh.
    """
    spec: Any = getattr(tensor, "_spec", None)
    at = None if spec is None else spec.mesh.get_coordinate()
    if at is None or any(each.is_partial() for each in spec.placements):
        return None
    index, count = 0, 1
    for each, mine, size in zip(spec.placements, at, spec.mesh.shape, strict=True):
        if not each.is_replicate():
            index, count = index * size + mine, count * size
    return index, count


def replica_ranks(tensor: Any) -> tuple[int, ...]:
    """Return the global ranks that have the same shard of a DTensor as this rank.

    Returns () for other tensors, for partial placements, and if this rank is not in the mesh.
    """
    spec: Any = getattr(tensor, "_spec", None)
    at = None if spec is None else spec.mesh.get_coordinate()
    if at is None or any(each.is_partial() for each in spec.placements):
        return ()
    pairs = zip(spec.placements, at, strict=True)
    alike = tuple(slice(None) if each.is_replicate() else mine for each, mine in pairs)
    with no_functions(), no_operators(), no_autograd():
        return tuple(TensorBase.tolist(TensorBase.flatten(spec.mesh.mesh[alike])))


def _fully_shard_caller(frame: FrameType) -> CollectiveCaller | None:
    [members] = frame_variables(frame, "fsdp_params")
    if not members:
        return None
    owners = [(each._module_info.module, each._module_info.param_name) for each in members]
    return CollectiveCaller(owners, mesh=getattr(members[0].mesh_info, "mesh", None))


def _flat_parameter_caller(frame: FrameType) -> CollectiveCaller | None:
    this, handle = frame_variables(frame, "self", "handle")
    for each in (handle, this):
        flat = getattr(each, "flat_param", None)
        infos: Iterable[Any] = getattr(flat, "_param_infos", ())
        if infos:
            return CollectiveCaller([(info.module, info.param_name) for info in infos])
    return None


def _redistribute_caller(frame: FrameType) -> CollectiveCaller | None:
    if frame.f_code.co_name != "redistribute_local_tensor":
        return None
    before, after = frame_variables(frame, "current_spec", "target_spec")
    pairs = zip(before.placements, after.placements, strict=True)
    changes = [
        f"{_placement_name(old)} → {_placement_name(new)}" for old, new in pairs if old != new
    ]
    return CollectiveCaller(change=", ".join(changes), mesh=before.mesh)


def _placement_name(placement: Any) -> str:
    """Return the name of a placement: `"Shard(0)"`, `"Replicate"` or `"Partial"`."""
    dimension = getattr(placement, "dim", None)
    kind = type(placement).__name__.lstrip("_")
    return kind if dimension is None else f"{kind}({dimension})"


_READERS = {
    "_fsdp_collectives.py": _fully_shard_caller,
    "_runtime_utils.py": _flat_parameter_caller,
    "_flat_param.py": _flat_parameter_caller,
    "_redistribute.py": _redistribute_caller,
}


def group_store(group: Any) -> Any:
    """Return the store of a process group that this rank belongs to."""
    distributed: Any = dist
    return distributed.distributed_c10d._get_process_group_store(group)
