"""How ranks divide a tensor, and which part of PyTorch asks for a collective, and for what.

The latter is read from the frames that lead to it:

    fully_shard    for a group of parameters          _fsdp_collectives.py
    FSDP           for a flat parameter               _runtime_utils.py, _flat_param.py
    DTensor        for a change of placements         _redistribute.py

Private: these files, and what their functions call their variables (2.13).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any, NamedTuple

from torch.nn import Module

from .frames import variables
from .functions import TensorBase
from .guards import no_autograd, no_functions, no_operators

_FRAMES = 48  # that are looked into: of PyTorch, and of modes that run its operators
_DISTRIBUTED = os.path.join("torch", "distributed", "")


class Asker(NamedTuple):
    """Who asks for a collective."""

    parameters: list[tuple[Module, str]] = []  # noqa: RUF012 - owner and name of each
    change: str = ""  # of placements: "Shard(0) → Replicate"
    module: Module | None = None  # whose call, with its hooks, led there
    mesh: Any = None  # the DeviceMesh of the ranks


def asker(frame: FrameType | None) -> Asker:
    """Who asks for a collective that `frame`, or what it has called, dispatches."""
    found = Asker()
    for _ in range(_FRAMES):
        if frame is None:
            break
        code = frame.f_code
        read = _READERS.get(os.path.basename(code.co_filename))
        if read is not None and _DISTRIBUTED in code.co_filename and found == Asker():
            found = read(frame) or found
        elif code is Module._call_impl.__code__:
            return found._replace(module=variables(frame, "self")[0])
        frame = frame.f_back
    return found


def dimensions(mesh: Any) -> Iterator[tuple[str, str]]:
    """The name of the group and that of the dimension, for each of a mesh that has names."""
    for at, name in enumerate(getattr(mesh, "mesh_dim_names", None) or ()):
        yield mesh.get_group(at).group_name, name


def placement(tensor: Any) -> str:
    """How the ranks divide a DTensor, and the shape of what this one has; "" for other tensors.

    `"Shard(0) on tp, local [512, 4096]"`; a dimension of the mesh without a name has its number.
    """
    spec, local = getattr(tensor, "_spec", None), getattr(tensor, "_local_tensor", None)
    if spec is None or local is None:
        return ""
    names = spec.mesh.mesh_dim_names or range(len(spec.placements))
    parts = [f"{_name(each)} on {name}" for each, name in zip(spec.placements, names, strict=True)]
    return ", ".join([*parts, f"local {list(local.shape)}"])


def part(tensor: Any) -> tuple[int, int] | None:
    """Which part of a DTensor this rank has, from 0, and how many there are.

    Ranks with the same number have the same part. None where each rank has a summand, where this
    rank has nothing, and for other tensors.
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


def replicas(tensor: Any) -> tuple[int, ...]:
    """The ranks that have the same part of a DTensor as this one, by their global numbers.

    Empty for other tensors, and where each rank has a summand.
    """
    spec: Any = getattr(tensor, "_spec", None)
    at = None if spec is None else spec.mesh.get_coordinate()
    if at is None or any(each.is_partial() for each in spec.placements):
        return ()
    pairs = zip(spec.placements, at, strict=True)
    alike = tuple(slice(None) if each.is_replicate() else mine for each, mine in pairs)
    with no_functions(), no_operators(), no_autograd():
        return tuple(TensorBase.tolist(TensorBase.flatten(spec.mesh.mesh[alike])))


def _of_group(frame: FrameType) -> Asker | None:
    [members] = variables(frame, "fsdp_params")
    if not members:
        return None
    owners = [(each._module_info.module, each._module_info.param_name) for each in members]
    return Asker(owners, mesh=getattr(members[0].mesh_info, "mesh", None))


def _of_handle(frame: FrameType) -> Asker | None:
    this, handle = variables(frame, "self", "handle")
    for each in (handle, this):
        flat = getattr(each, "flat_param", None)
        infos: Iterable[Any] = getattr(flat, "_param_infos", ())
        if infos:
            return Asker([(info.module, info.param_name) for info in infos])
    return None


def _of_change(frame: FrameType) -> Asker | None:
    if frame.f_code.co_name != "redistribute_local_tensor":
        return None
    before, after = variables(frame, "current_spec", "target_spec")
    pairs = zip(before.placements, after.placements, strict=True)
    changes = [f"{_name(old)} → {_name(new)}" for old, new in pairs if old != new]
    return Asker(change=", ".join(changes), mesh=before.mesh)


def _name(placement: Any) -> str:
    """`"Shard(0)"`, `"Replicate"`, `"Partial"`."""
    dimension = getattr(placement, "dim", None)
    kind = type(placement).__name__.lstrip("_")
    return kind if dimension is None else f"{kind}({dimension})"


_READERS = {
    "_fsdp_collectives.py": _of_group,
    "_runtime_utils.py": _of_handle,
    "_flat_param.py": _of_handle,
    "_redistribute.py": _of_change,
}
