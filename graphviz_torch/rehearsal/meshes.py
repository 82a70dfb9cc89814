"""Record the sizes of meshes that a program creates with `init_device_mesh`, or replace them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

import torch.distributed as dist
from torch.distributed import device_mesh

Sizes = tuple[int, ...]


@contextmanager
def watch_meshes(meshes: list[Sizes]) -> Iterator[None]:
    """Append the sizes of each mesh that is created inside the `with` block to `meshes`."""

    def note(sizes: Sizes) -> Sizes:
        meshes.append(sizes)
        return sizes

    with _patch_mesh_sizes(note):
        yield


def replace_mesh(sizes: Sequence[int]) -> Callable[[], AbstractContextManager[None]]:
    """Return a context manager that changes the sizes of the program's mesh.

    A mesh is changed only if it has as many dimensions and ranks as the given sizes.
    """

    def change(given: Sizes) -> Sizes:
        same = len(given) == len(sizes) and math.prod(given) == math.prod(sizes)
        return tuple(sizes) if same else given

    return lambda: _patch_mesh_sizes(change)


@contextmanager
def _patch_mesh_sizes(change: Callable[[Sizes], Sizes]) -> Iterator[None]:
    if not dist.is_available():
        yield
        return
    init: Any = device_mesh.init_device_mesh

    @wraps(init)
    def init_device_mesh(device_type: str, mesh_shape: Any, *args: Any, **kwargs: Any) -> Any:
        return init(device_type, change(tuple(mesh_shape)), *args, **kwargs)

    with (
        patch.object(device_mesh, "init_device_mesh", init_device_mesh),
        patch.object(dist, "init_device_mesh", init_device_mesh),
    ):
        yield
