"""Keep DTensor's own shape computations out of a rehearsal's counts of memory and operations.

To infer the shape of a result, DTensor runs each new operator once on tensors of the global shape,
which is not part of a rank's work. Here these operators run outside all modes. They run on the CPU,
because a PyTorch without CUDA refuses some of them for CUDA.

PyTorch has sharding rules for CUDA's attention kernels, but not for the CPU's kernels, which a
rehearsal runs. The same rules, by batch and by heads, are registered for the CPU's kernels. Random
states, which DTensors synchronize on a GPU, have no values here.

Uses private API (2.13): DTensor's shape propagation, its tables of operators, the creation of a
tensor of global shape, and the function that disables modes.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import wraps
from importlib import import_module
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding
from torch.utils import _python_dispatch

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
