"""What to change so that a training fits, without new code: plans that a rehearsal can try.

A plan is a context around the script: what the script gives to PyTorch is changed on its way. Each
says what to write where it should stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import wraps
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch.distributed import fsdp
from torch.nn import Module, ModuleList, Sequential
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.checkpoint import checkpoint

_BLOCKS = 2  # at least that a list has, of one class: they are checkpointed


class Plan(NamedTuple):
    """Something to change."""

    says: str  # what to write, where it should stay
    change: Callable[[], AbstractContextManager[None]]


@contextmanager
def _fused() -> Iterator[None]:
    """Adam and AdamW in one kernel: without the lists of intermediate tensors."""
    with ExitStack() as opened:
        for kind in (torch.optim.Adam, torch.optim.AdamW):
            init = _given(kind.__init__, fused=True, foreach=None)
            opened.enter_context(patch.object(kind, "__init__", init))
        yield


@contextmanager
def _checkpointed() -> Iterator[None]:
    """Each block of a list of blocks, when the outermost module is called first."""
    seen: set[int] = set()
    changed: list[Module] = []

    def called(module: Module, _: Any) -> None:
        if id(module) in seen:
            return
        for part in module.modules():
            if id(part) not in seen and isinstance(part, (ModuleList, Sequential)):
                blocks = list(part)
                alike = len({type(each) for each in blocks}) == 1 and len(blocks) >= _BLOCKS
                for block in blocks if alike and any(blocks[0].children()) else ():
                    block.forward = _by_checkpoint(block.forward)
                    changed.append(block)
                    seen.update(map(id, block.modules()))  # those inside are not, by themselves
            seen.add(id(part))

    hook = register_module_forward_pre_hook(called)
    try:
        yield
    finally:
        hook.remove()
        for block in changed:
            del block.forward


def _by_checkpoint(forward: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(forward)
    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    return checkpointed


def _given(function: Callable[..., Any], **values: Any) -> Callable[..., Any]:
    @wraps(function)
    def given(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **{**kwargs, **values})

    return given


def _sharding(**values: Any) -> Callable[[], AbstractContextManager[None]]:
    """`fully_shard` with other arguments."""

    @contextmanager
    def change() -> Iterator[None]:
        with patch.object(fsdp, "fully_shard", _given(fsdp.fully_shard, **values)):
            yield

    return change


_BF16 = fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
PLANS = {
    "fused": Plan("AdamW(..., fused=True)", _fused),
    "reshard": Plan(
        "fully_shard(..., reshard_after_forward=True)", _sharding(reshard_after_forward=True)
    ),
    "bf16": Plan(
        "fully_shard(..., mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, "
        "reduce_dtype=torch.float32))",
        _sharding(mp_policy=_BF16),
    ),
    "checkpoint": Plan("checkpoint(block, x, use_reentrant=False) for each block", _checkpointed),
    "offload": Plan(
        "fully_shard(..., offload_policy=CPUOffloadPolicy())",
        _sharding(offload_policy=fsdp.CPUOffloadPolicy()),
    ),
}


def plans() -> tuple[tuple[str, str], ...]:
    """Every plan that a rehearsal can try: its name, and what to write where it should stay.

    >>> dict(plans())["fused"]
    'AdamW(..., fused=True)'
    """
    return tuple((name, plan.says) for name, plan in PLANS.items())


@contextmanager
def planned(names: tuple[str, ...]) -> Iterator[None]:
    """A context in which these plans are followed.

    >>> with planned(("fused",)):
    ...     optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.ones(2))])
    >>> optimizer.defaults["fused"], torch.optim.AdamW(optimizer.param_groups).defaults["fused"]
    (True, None)
    """
    with ExitStack() as opened:
        for name in names:
            opened.enter_context(PLANS[name].change())
        yield
