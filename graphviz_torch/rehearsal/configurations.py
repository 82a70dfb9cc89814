"""Define plans: changes that save memory, which a rehearsal can try without editing the script.

A plan consists of a context manager and a text. The context manager changes arguments that the
script passes to PyTorch. The text shows how to make the same change in the script.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import wraps
from types import MethodType
from typing import Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.distributed import device_mesh, fsdp
from torch.nn import Module, ModuleList, Sequential
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from ..graph.immutable import NamedTuple
from ..internals.tensors.pytree import map_tensors
from .order import ordinal

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


class Plan(NamedTuple):
    """A change that may save memory."""

    advice: str  # code to write in the script
    change: Change


_MESH, _MICRO = "mesh=", "micro-batches="  # prefixes of names such as mesh=16x4, micro-batches=2
_MAX_MICRO_BATCHES = 64  # largest number of micro-batches that is tried
_BF16_POLICY = fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
PLANS = {
    "fused": Plan("AdamW(..., fused=True)", fused_optimizers),
    "reshard": Plan(
        "fully_shard(..., reshard_after_forward=True)", shard_with(reshard_after_forward=True)
    ),
    "bf16": Plan(
        "fully_shard(..., mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, "
        "reduce_dtype=torch.float32))",
        shard_with(mp_policy=_BF16_POLICY),
    ),
    "checkpoint": Plan(
        "checkpoint(block, x, use_reentrant=False) for each block", checkpoint_blocks
    ),
    "offload": Plan(
        "fully_shard(..., offload_policy=CPUOffloadPolicy())",
        shard_with(offload_policy=fsdp.CPUOffloadPolicy()),
    ),
    "bf16-parameters": Plan(
        "model.to(torch.bfloat16) before fully_shard(..., mp_policy=MixedPrecisionPolicy("
        "param_dtype=torch.bfloat16)), or before DistributedDataParallel, and its input, too. The "
        "optimizer then computes in bfloat16, and loses small updates",
        bf16_parameters,
    ),
}


def plans() -> tuple[tuple[str, str], ...]:
    """Return (name, code to write in the script) of each plan that a rehearsal can try.

    Further plans exist that are not listed: other numbers of micro-batches, such as
    "micro-batches=4", and other sizes of the script's mesh, such as "mesh=16x4".

    >>> dict(plans())["fused"]
    'AdamW(..., fused=True)'
    """
    names = [*PLANS, f"{_MICRO}2"]
    return tuple((name, plan_of(name).advice) for name in names)


def plan_of(name: str) -> Plan:
    """Return the plan with this name.

    Raises:
        ValueError: if no plan has this name.

    >>> plan_of("mesh=16x4").advice
    'init_device_mesh(..., (16, 4))'
    """
    if name in PLANS:
        return PLANS[name]
    kind, _, text = name.partition("=")
    sizes = text.split("x")
    if all(size.isdecimal() and int(size) for size in sizes):
        if f"{kind}=" == _MESH:
            return Plan(
                f"init_device_mesh(..., ({', '.join(sizes)}))", replace_mesh([*map(int, sizes)])
            )
        if f"{kind}=" == _MICRO and len(sizes) == 1 and int(text) > 1:
            advice = (
                f"the DataLoader's batch_size / {text}, loss / {text}, and optimizer.step() and "
                f"zero_grad() after every {ordinal(int(text))} batch"
            )
            return Plan(advice, split_batches(int(text)))
    known = ", ".join([*PLANS, f"{_MICRO}2", f"{_MESH}16x4"])
    raise ValueError(f"plans={[name]}: this plan is unknown. Pass some of {known}.")


def kind_of(name: str) -> str:
    """Return the kind of a plan. Plans of the same kind exclude each other.

    "mesh=16x4" is of the kind "mesh"; both "bf16" and "bf16-parameters" are of the kind "bf16".
    """
    return name.partition("=")[0].removesuffix("-parameters")


def ladders(mesh: Sequence[int]) -> list[list[str]]:
    """Return ladders: lists of plans, each of which should save more memory than the previous one.

    A plan in a ladder is tried only if the previous plan saved memory. A ladder is a single plan, a
    list of growing numbers of micro-batches, or a list of growing mesh dimensions.

    Args:
        mesh: sizes of the script's mesh, innermost last.

    >>> ladders([2])[0], ladders([4, 2])[-2:]
    (['fused'], [['mesh=2x4', 'mesh=1x8'], ['mesh=8x1']])
    """
    micro, count = [], 2
    while count <= _MAX_MICRO_BATCHES:
        micro.append(f"{_MICRO}{count}")
        count *= 2
    return [*([name] for name in PLANS), micro, *_other_meshes(mesh)]


def _other_meshes(mesh: Sequence[int]) -> list[list[str]]:
    """Return lists of mesh plans. In each list, one dimension grows at the cost of another."""
    found = []
    for giver in range(len(mesh)):
        for taker in range(len(mesh)):
            row, now = [], list(mesh)
            while taker != giver and now[giver] > 1:
                factor = next(n for n in range(2, now[giver] + 1) if now[giver] % n == 0)
                now[giver] //= factor
                now[taker] *= factor
                row.append(_MESH + "x".join(map(str, now)))
            found += [row] if row else []
    return found


@contextmanager
def apply_plans(names: Sequence[str]) -> Iterator[None]:
    """Apply plans inside the `with` block: PyTorch gets the arguments of these plans.

    >>> with apply_plans(("fused",)):
    ...     optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.ones(2))])
    >>> optimizer.defaults["fused"], torch.optim.AdamW(optimizer.param_groups).defaults["fused"]
    (True, None)
    """
    with ExitStack() as opened:
        for name in names:
            opened.enter_context(plan_of(name).change())
        yield
