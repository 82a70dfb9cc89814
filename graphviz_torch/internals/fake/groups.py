"""Simulate process groups of many ranks in one process; nothing is sent.

The environment variables of torchrun are set. A group of any backend becomes PyTorch's fake group,
which completes each collective immediately and leaves the output buffers unchanged. Rank numbers in
device meshes are real tensors, not fake ones. If ranks exchange Python objects, this rank receives
its own object from every rank.

DTensor's own shape computations are kept out of a rehearsal's counts of memory and operations. To
infer the shape of a result, DTensor runs each new operator once on tensors of the global shape,
which is not part of a rank's work. Here these operators run outside all modes. They run on the CPU,
because a PyTorch without CUDA refuses some of them for CUDA.

PyTorch has sharding rules for CUDA's attention kernels, but not for the CPU's kernels, which a
rehearsal runs. The same rules, by batch and by heads, are registered for the CPU's kernels. Random
states, which DTensors synchronize on a GPU, have no values here.

Uses private API (2.13): `_new_process_group_helper`, which creates every group;
`_get_default_timeout`; the fake group of PyTorch's tests; DDP's comparison of shapes between ranks;
DTensor's shape propagation, its tables of operators, the creation of a tensor of global shape, and
the function that disables modes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from functools import wraps
from importlib import import_module
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import device_mesh
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp._fully_shard import _fsdp_param
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel import distributed as ddp
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from ..tensors.pytree import tensors
from .values import real_tensors

RANKS_PER_NODE = 8  # ranks per machine, the usual number of GPUs

_c10d: Any = dist.distributed_c10d
_group: Any = dist.ProcessGroup
_reducer: Any = vars(dist)["Reducer"]
_Mode: Any = TorchDispatchMode
# Methods of a device mesh that compute with rank numbers.
_MESH_METHODS: tuple[str, ...] = (
    "mesh",
    "__getitem__",
    "__repr__",
    "from_group",
    "_flatten",
    "_unflatten",
    "_concatenate",
)
_MESH_METHODS += ("_create_sub_mesh", "_create_flatten_mesh", "_create_unflatten_mesh")
_MESH_METHODS += ("_get_all_submeshes", "_get_mesh_tensor_from_full_mesh")


class FakeGroups:
    """Context manager in which this process is one rank of many.

    Args:
        ranks: number of ranks.
        rank: this process's rank.

    Raises:
        RuntimeError: if a process group exists already.
    """

    def __init__(self, ranks: int, rank: int) -> None:
        self._ranks, self._rank = ranks, rank
        self._on_host: set[str] = set()  # names of groups that send CPU tensors
        self._open = ExitStack()

    def __enter__(self) -> FakeGroups:
        if dist.is_initialized():
            raise RuntimeError(
                "there is a process group already: rehearse before a process group is created, or "
                "call torch.distributed.destroy_process_group() first."
            )
        with ExitStack() as opened:
            for owner, name, new in self._replacements():
                opened.enter_context(patch.object(owner, name, new))
            opened.enter_context(patch.dict(os.environ, self._environment()))
            # The first process group replaces the excepthook by one that prints the rank. The
            # original is restored on exit.
            opened.enter_context(patch.object(sys, "excepthook", sys.excepthook))
            opened.callback(_destroy)
            self._open = opened.pop_all()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._open.__exit__(*raised)

    def on_host(self, args: Iterable[Any]) -> bool:
        """Return True if the process group among an operator's arguments is a gloo group."""
        groups = [each for each in args if isinstance(each, torch.ScriptObject)]
        with suppress(RuntimeError):  # the argument may be another C++ object
            return any(_group.unbox(each).group_name in self._on_host for each in groups)
        return False

    def _environment(self) -> dict[str, str]:
        local = min(RANKS_PER_NODE, self._ranks)
        return {
            "RANK": str(self._rank),
            "WORLD_SIZE": str(self._ranks),
            "LOCAL_RANK": str(self._rank % local),
            "LOCAL_WORLD_SIZE": str(local),
            "GROUP_RANK": str(self._rank // local),
            "GROUP_WORLD_SIZE": str(-(-self._ranks // local)),
            "ROLE_RANK": str(self._rank),
            "ROLE_WORLD_SIZE": str(self._ranks),
            "ROLE_NAME": "default",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29500",
            "TORCHELASTIC_RUN_ID": "rehearsal",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
        }

    def _replacements(self) -> list[tuple[Any, str, Any]]:
        helper = _c10d._new_process_group_helper

        def rendezvous(*_: Any, **__: Any) -> Any:
            return iter([(FakeStore(), self._rank, self._ranks)])

        @wraps(helper)
        def new_group(size: int, rank: int, ranks: Any, backend: Any, *args: Any, **kw: Any) -> Any:
            kw.pop("backend_options", None)
            kw.pop("device_id", None)
            with real_tensors():
                made = helper(size, rank, ranks, dist.Backend("fake"), *args, **kw)
            if str(backend).lower() == "gloo" and hasattr(made[0], "group_name"):
                self._on_host.add(made[0].group_name)
            return made

        def all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
            object_list[:] = [obj] * len(object_list)

        def gather_object(obj: Any, object_gather_list: Any = None, *_: Any, **__: Any) -> None:
            if object_gather_list is not None:
                all_gather_object(object_gather_list, obj)

        def broadcast_object_list(*_: Any, **__: Any) -> None:
            return None

        def scatter_object_list(out: list[Any], given: Any = None, *_: Any, **__: Any) -> None:
            if given:
                out[0] = given[self._rank % len(given)]

        functions = [all_gather_object, gather_object, broadcast_object_list, scatter_object_list]
        found = [(owner, each.__name__, each) for each in functions for owner in (dist, _c10d)]
        methods = [name for name in _MESH_METHODS if hasattr(device_mesh.DeviceMesh, name)]
        return [
            *found,
            *((DeviceMesh, name, _on_real_tensors(vars(DeviceMesh)[name])) for name in methods),
            (DeviceMesh, "__init__", _with_real_ranks(DeviceMesh.__init__)),
            (_c10d, "rendezvous", rendezvous),
            # The original warns if PyTorch was built without NCCL.
            (_c10d, "_get_default_timeout", lambda backend: _c10d.default_pg_timeout),
            (_c10d, "_new_process_group_helper", new_group),
            (_fsdp_param, "_chunk_with_empty", LazyChunks),
            (ddp, "_verify_param_shape_across_processes", lambda *args, **kwargs: True),
            (_reducer, "_rebuild_buckets", _rebuild_on_real_integers(_reducer._rebuild_buckets)),
            (
                DistributedDataParallel,
                "__init__",
                _without_devices(DistributedDataParallel.__init__),
            ),
            (DistributedDataParallel, "forward", _with_hook(DistributedDataParallel.forward)),
        ]


def _with_real_ranks(init: Callable[..., None]) -> Callable[..., None]:
    """Wrap `DeviceMesh.__init__`, which reads rank numbers, so that these are real tensors."""

    @wraps(init)
    def __init__(this: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        with real_tensors():
            # The tensor passed by the program may be fake. It contains each rank once, in order.
            if kwargs.get("_rank_map") is not None:
                kwargs["_rank_map"] = torch.arange(len(kwargs["_rank_map"]), dtype=torch.int)
            init(this, device_type, *args, **kwargs)

    return __init__


def _on_real_tensors(function: Any) -> Any:
    """Wrap a function, method or property so that it runs on real instead of fake tensors."""
    if isinstance(function, (staticmethod, classmethod)):
        return type(function)(_on_real_tensors(function.__func__))
    if isinstance(function, property):
        return property(_on_real_tensors(function.fget))

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with real_tensors():
            return function(*args, **kwargs)

    return run


def _without_devices(init: Callable[..., None]) -> Callable[..., None]:
    """Wrap DDP's `__init__` to drop device arguments, which DDP refuses for CPU parameters."""

    @wraps(init)
    def __init__(self: Any, module: Any, *args: Any, **kwargs: Any) -> None:
        kwargs = {k: v for k, v in kwargs.items() if k not in ("device_ids", "output_device")}
        init(self, module, None, None, *args[2:], **kwargs)

    return __init__


def _with_hook(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap DDP's `forward` to add a communication hook.

    DDP's built-in hook reads the result from the `Work` of a collective, which the fake group does
    not provide.
    """

    @wraps(forward)
    def with_hook(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not self._comm_hooks:
            # A lambda is passed, because DDP checks annotations, and a lambda has none.
            self.register_comm_hook(
                self.process_group, lambda group, bucket: _reduce(group, bucket)
            )
        return forward(self, *args, **kwargs)

    return with_hook


class _RealIntegers(_Mode):  # type: ignore[misc]
    """Dispatch mode in which int32 tensors have values, because PyTorch's C++ code reads them."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = tensors([*args, *kwargs.values()])
        integers = [kwargs.get("dtype"), *(each.dtype for each in given)]
        if torch.int32 in integers:
            with real_tensors():
                return func(*args, **kwargs)
        return func(*args, **kwargs)


def _rebuild_on_real_integers(rebuild: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Wrap DDP's rebuilding of buckets, which broadcasts int32 tensors."""

    def _rebuild_buckets(self: Any) -> bool:
        with _RealIntegers():
            return rebuild(self)

    return _rebuild_buckets


def _reduce(group: Any, bucket: Any) -> Any:
    future: Any = torch.futures.Future()
    dist.all_reduce(bucket.buffer(), group=group, async_op=True)
    future.set_result(bucket.buffer())
    return future


def _destroy() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


_Tensor: Any = DTensor
_modes: Any = _python_dispatch
_random: Any = import_module("torch.distributed.tensor._random")
_dispatch: Any = import_module("torch.distributed.tensor._dispatch")
_schema: Any = import_module("torch.distributed.tensor._op_schema")
_debug: Any = import_module("torch.distributed.tensor.debug")
_SEEDED = "is_rng_supported_mesh"
_SHAPES = "_propagate_tensor_meta_non_cached"
_WHOLE = "_rebuild_tensor_from_dtensor_meta"
_FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


class RankTensors:
    """Context manager in which DTensors run only this rank's work, and can use CPU attention."""

    def __init__(self) -> None:
        self._open = ExitStack()

    def __enter__(self) -> RankTensors:
        _clear_caches()
        with ExitStack() as opened:
            tables = _Tensor._op_dispatcher.sharding_propagator
            for table in (tables.op_strategy_funcs, tables.op_to_schema_info):
                opened.enter_context(patch.dict(table))
            kind = type(tables)
            if hasattr(kind, _SHAPES):
                shapes = _without_modes(getattr(kind, _SHAPES))
                opened.enter_context(patch.object(kind, _SHAPES, shapes))
            if hasattr(_schema, _WHOLE):
                opened.enter_context(patch.object(_schema, _WHOLE, _global_tensor))
            for owner in (_random, _dispatch):
                opened.enter_context(patch.object(owner, _SEEDED, lambda mesh: False))
            register_sharding(_FORWARD)(_attention_sharding)
            register_sharding(_BACKWARD)(_attention_backward_sharding)
            self._open = opened.pop_all()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._open.__exit__(*raised)


def _clear_caches() -> None:
    for name in ("_clear_sharding_prop_cache", "_clear_python_sharding_prop_cache"):
        clear = getattr(_debug, name, None)
        if clear is not None:
            clear()
            return
    _Tensor._op_dispatcher.sharding_propagator.propagate_op_sharding.cache.cache_clear()


def _global_tensor(spec: Any) -> Any:
    """Return an uninitialized CPU tensor of the DTensor's global shape."""
    meta = spec.tensor_meta
    return torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device="cpu")


def _without_modes(function: Any) -> Any:
    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with _modes._disable_current_modes():
            return function(*args, **kwargs)

    return run


def _attention_sharding(
    query: Any, key: Any, value: Any, dropout: float = 0.0, is_causal: bool = False, **mask: Any
) -> list[tuple[list[Any], list[Any]]]:
    return [([each] * 2, [each] * 3 + [None] * 2) for each in (Replicate(), Shard(0), Shard(1))]


def _attention_backward_sharding(*given: Any, **mask: Any) -> list[tuple[list[Any], list[Any]]]:
    return [([each] * 3, [each] * 6 + [None] * 2) for each in (Replicate(), Shard(0), Shard(1))]


class LazyChunks:
    """Lazy sequence of the chunks that `_chunk_with_empty` returns.

    Args:
        tensor: tensor to split.
        num_chunks: number of chunks; the last ones may be shorter or empty.
        dim: dimension along which to split.
    """

    def __init__(self, tensor: Tensor, num_chunks: int, dim: int) -> None:
        self._tensor, self._count, self._dim = tensor, num_chunks, dim

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, i: int) -> Tensor:
        if not 0 <= i < self._count:
            raise IndexError(i)
        size = self._tensor.size(self._dim)
        length = -(-size // self._count)
        start = i * length
        if start < size or not size:
            return self._tensor.narrow(self._dim, start, min(length, size - start))
        return self._tensor.new_empty(0)
