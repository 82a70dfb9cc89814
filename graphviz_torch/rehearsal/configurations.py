"""What to change so that a training fits, without new code: plans that a rehearsal can try.

A plan is a context around the script: what the script gives to PyTorch is changed on its way. Each
says what to write where it should stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import torch
from torch.distributed import fsdp

from .changes import (
    Change,
    bf16_parameters,
    checkpointed,
    fused,
    micro_batched,
    sharding,
)
from .meshes import meshed
from .order import ordinal


class Plan(NamedTuple):
    """Something to change."""

    says: str  # what to write, where it should stay
    change: Change


_MESH, _MICRO = "mesh=", "micro-batches="  # and sizes: mesh=16x4, micro-batches=2
_MOST = 64  # micro-batches
_BF16 = fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
PLANS = {
    "fused": Plan("AdamW(..., fused=True)", fused),
    "reshard": Plan(
        "fully_shard(..., reshard_after_forward=True)", sharding(reshard_after_forward=True)
    ),
    "bf16": Plan(
        "fully_shard(..., mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, "
        "reduce_dtype=torch.float32))",
        sharding(mp_policy=_BF16),
    ),
    "checkpoint": Plan("checkpoint(block, x, use_reentrant=False) for each block", checkpointed),
    "offload": Plan(
        "fully_shard(..., offload_policy=CPUOffloadPolicy())",
        sharding(offload_policy=fsdp.CPUOffloadPolicy()),
    ),
    "bf16-parameters": Plan(
        "model.to(torch.bfloat16) before fully_shard(..., mp_policy=MixedPrecisionPolicy("
        "param_dtype=torch.bfloat16)), or before DistributedDataParallel, and its input, too. The "
        "optimizer then computes in bfloat16, and loses small updates",
        bf16_parameters,
    ),
}


def plans() -> tuple[tuple[str, str], ...]:
    """Every plan that a rehearsal can try: its name, and what to write where it should stay.

    Of micro-batches there can be more: "micro-batches=4". A mesh has a plan for all its sizes, such
    as "mesh=16x4", which is not among these.

    >>> dict(plans())["fused"]
    'AdamW(..., fused=True)'
    """
    names = [*PLANS, f"{_MICRO}2"]
    return tuple((name, plan_of(name).says) for name in names)


def plan_of(name: str) -> Plan:
    """The plan of a name.

    Raises:
        ValueError: if there is none.

    >>> plan_of("mesh=16x4").says
    'init_device_mesh(..., (16, 4))'
    """
    if name in PLANS:
        return PLANS[name]
    kind, _, text = name.partition("=")
    sizes = text.split("x")
    if all(size.isdecimal() and int(size) for size in sizes):
        if f"{kind}=" == _MESH:
            return Plan(f"init_device_mesh(..., ({', '.join(sizes)}))", meshed([*map(int, sizes)]))
        if f"{kind}=" == _MICRO and len(sizes) == 1 and int(text) > 1:
            says = (
                f"the DataLoader's batch_size / {text}, loss / {text}, and optimizer.step() and "
                f"zero_grad() after every {ordinal(int(text))} batch"
            )
            return Plan(says, micro_batched(int(text)))
    known = ", ".join([*PLANS, f"{_MICRO}2", f"{_MESH}16x4"])
    raise ValueError(f"plans={[name]}: pass some of {known}.")


def kind_of(name: str) -> str:
    """What of two plans only one can be followed: "mesh" of "mesh=16x4", "bf16" of both of it."""
    return name.partition("=")[0].removesuffix("-parameters")


def ladders(mesh: Sequence[int]) -> list[list[str]]:
    """Plans to try one after the other, while that helps: more micro-batches, other meshes.

    >>> ladders([2])[0], ladders([4, 2])[-2:]
    (['fused'], [['mesh=2x4', 'mesh=1x8'], ['mesh=8x1']])
    """
    micro, count = [], 2
    while count <= _MOST:
        micro.append(f"{_MICRO}{count}")
        count *= 2
    return [*([name] for name in PLANS), micro, *_other_meshes(mesh)]


def _other_meshes(mesh: Sequence[int]) -> list[list[str]]:
    """A dimension gives its factors to another: a list for each such pair, least changed first."""
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
def planned(names: Sequence[str]) -> Iterator[None]:
    """A context in which these plans are followed.

    >>> with planned(("fused",)):
    ...     optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.ones(2))])
    >>> optimizer.defaults["fused"], torch.optim.AdamW(optimizer.param_groups).defaults["fused"]
    (True, None)
    """
    with ExitStack() as opened:
        for name in names:
            opened.enter_context(plan_of(name).change())
        yield
