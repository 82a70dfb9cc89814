"""Define one context manager per plan. It changes arguments that the program passes to PyTorch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import wraps
from types import MethodType
from typing import Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

import torch
from torch.distributed import fsdp
from torch.nn import Module, ModuleList, Sequential
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from ..internals.tensors.pytree import map_tensors

_MIN_BLOCKS = 2  # minimum number of modules in a list that is checkpointed
_BF16 = torch.bfloat16

Change = Callable[[], AbstractContextManager[None]]


@contextmanager
def fused_optimizers() -> Iterator[None]:
    """Make Adam and AdamW use their fused kernels, which allocate no intermediate tensors."""
    with ExitStack() as opened:
        for kind in (torch.optim.Adam, torch.optim.AdamW):
            init = _with_arguments(kind.__init__, fused=True, foreach=None)
            opened.enter_context(patch.object(kind, "__init__", init))
        yield


@contextmanager
def checkpoint_blocks() -> Iterator[None]:
    """Checkpoint each module in a list of modules of one class, such as a transformer's layers.

    The lists are searched when the outermost module is called for the first time.
    """
    seen: set[int] = set()
    changed: list[Module] = []

    def on_call(module: Module, _: Any) -> None:
        if id(module) in seen:
            return
        for part in module.modules():
            if id(part) not in seen and isinstance(part, (ModuleList, Sequential)):
                blocks = list(part)
                alike = len({type(each) for each in blocks}) == 1 and len(blocks) >= _MIN_BLOCKS
                for block in blocks if alike and any(blocks[0].children()) else ():
                    block.forward = _by_checkpoint(block.forward)
                    changed.append(block)
                    # Modules inside a block are not checkpointed separately.
                    seen.update(map(id, block.modules()))
            seen.add(id(part))

    hook = register_module_forward_pre_hook(on_call)
    try:
        yield
    finally:
        hook.remove()
        for block in changed:
            del block.forward


def _by_checkpoint(forward: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(forward)
    def by_checkpoint(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    return by_checkpoint


def shard_with(**values: Any) -> Change:
    """Return a context manager that adds keyword arguments to calls of `fully_shard`."""

    @contextmanager
    def change() -> Iterator[None]:
        with patch.object(fsdp, "fully_shard", _with_arguments(fsdp.fully_shard, **values)):
            yield

    return change


def _with_arguments(function: Callable[..., Any], **values: Any) -> Callable[..., Any]:
    @wraps(function)
    def given(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **{**kwargs, **values})

    return given


@contextmanager
def bf16_parameters() -> Iterator[None]:
    """Cast parameters of modules given to `fully_shard` or DistributedDataParallel to bfloat16."""
    hooks: list[Any] = []
    shard: Any = fsdp.fully_shard
    init: Any = DistributedDataParallel.__init__

    @wraps(shard)
    def fully_shard(module: Any, *args: Any, **kwargs: Any) -> Any:
        for each in [module] if isinstance(module, Module) else module:
            each.to(_BF16)
        policy = kwargs.get("mp_policy", fsdp.MixedPrecisionPolicy())
        kwargs["mp_policy"] = replace(policy, param_dtype=_BF16)  # makes FSDP cast the inputs
        return shard(module, *args, **kwargs)

    @wraps(init)
    def __init__(self: Any, module: Module, *args: Any, **kwargs: Any) -> None:
        hooks.append(
            module.to(_BF16).register_forward_pre_hook(_cast, prepend=True, with_kwargs=True)
        )
        init(self, module, *args, **kwargs)

    try:
        with (
            patch.object(fsdp, "fully_shard", fully_shard),
            patch.object(DistributedDataParallel, "__init__", __init__),
        ):
            yield
    finally:
        for hook in hooks:
            hook.remove()


def _cast(_: Module, args: Any, kwargs: Any) -> Any:
    def cast(value: torch.Tensor) -> torch.Tensor:
        return value.to(_BF16) if value.is_floating_point() else value

    return map_tensors(cast, (args, kwargs))


def split_batches(count: int) -> Change:
    """Return a context manager that splits batches into micro-batches and accumulates gradients.

    Args:
        count: number of micro-batches into which each batch of a DataLoader is divided. The
            optimizer steps after each `count` micro-batches.
    """

    @contextmanager
    def change() -> Iterator[None]:
        with ExitStack() as opened:
            parts = _MicroBatches(count)
            opened.enter_context(patch.object(DataLoader, "__init__", parts.loader()))
            opened.enter_context(patch.object(Optimizer, "__init__", parts.optimizer()))
            opened.enter_context(patch.object(Module, "zero_grad", parts.zero_grad()))
            yield

    return change


class _MicroBatches:
    """A counter of micro-batches that skips `step` and `zero_grad` until a batch is complete."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._divided = False  # True if the batches of a DataLoader are divided
        self._calls = WeakKeyDictionary[Any, int]()  # optimizer -> number of calls of `step`

    def loader(self) -> Callable[..., None]:
        load = DataLoader.__init__
        signature = inspect.signature(load)

        @wraps(load)
        def __init__(*args: Any, **kwargs: Any) -> None:
            given = signature.bind(*args, **kwargs)
            size = given.arguments.get("batch_size")
            if size is not None and size % self._count == 0:
                given.arguments["batch_size"] = size // self._count
                self._divided = True
            load(*given.args, **given.kwargs)

        return __init__

    def optimizer(self) -> Callable[..., None]:
        init = Optimizer.__init__

        @wraps(init)
        def __init__(made: Any, *args: Any, **kwargs: Any) -> None:
            init(made, *args, **kwargs)
            step, zero_grad = made.step, made.zero_grad

            def last_step(optimizer: Any, closure: Any = None, **more: Any) -> Any:
                self._calls[optimizer] = self._calls.get(optimizer, 0) + 1
                if self._accumulates(optimizer):
                    with torch.enable_grad():
                        return closure() if closure is not None else None
                return step(closure, **more) if closure is not None else step(**more)

            def first_zero_grad(optimizer: Any, *args: Any, **kwargs: Any) -> None:
                if not self._accumulates(optimizer):
                    zero_grad(*args, **kwargs)

            made.step = MethodType(last_step, made)
            made.zero_grad = MethodType(first_zero_grad, made)

        return __init__

    def zero_grad(self) -> Callable[..., None]:
        clear = Module.zero_grad

        @wraps(clear)
        def zero_grad(module: Any, *args: Any, **kwargs: Any) -> None:
            if not any(map(self._accumulates, self._calls)):
                clear(module, *args, **kwargs)

        return zero_grad

    def _accumulates(self, optimizer: Any) -> bool:
        return self._divided and self._calls.get(optimizer, 0) % self._count != 0
