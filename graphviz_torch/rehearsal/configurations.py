"""Define plans: changes that save memory, which a rehearsal can try without editing the script.

A plan consists of a context manager and a text. The context manager changes arguments that the
script passes to PyTorch. The text shows how to make the same change in the script.
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
    checkpoint_blocks,
    fused_optimizers,
    shard_with,
    split_batches,
)
from .meshes import replace_mesh
from .order import ordinal


class Plan(NamedTuple):
    """A change that may save memory."""

    advice: str  # code to write in the script
    change: Change


_MESH, _MICRO = "mesh=", "micro-batches="  # prefixes of names such as mesh=16x4, micro-batches=2
_MAX_MICRO_BATCHES = 64  # largest number of micro-batches that is tried
_BF16 = fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
PLANS = {
    "fused": Plan("AdamW(..., fused=True)", fused_optimizers),
    "reshard": Plan(
        "fully_shard(..., reshard_after_forward=True)", shard_with(reshard_after_forward=True)
    ),
    "bf16": Plan(
        "fully_shard(..., mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, "
        "reduce_dtype=torch.float32))",
        shard_with(mp_policy=_BF16),
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
