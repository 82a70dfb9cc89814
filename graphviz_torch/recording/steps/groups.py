"""Check an optimizer's parameter groups when the optimizer steps for the first time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ...findings.rules.meaning.optimizers import DecayedNorms, EmptyParameterGroup, VanishedEpsilon
from ...internals.frames import CodePosition
from ...internals.functions import TensorBase
from ..program import Program
from ..program.events import Events

_HALF_UNDERFLOW = 2.0**-25  # the largest number that float16 rounds to 0


def note_group_problems(
    events: Events, program: Program, optimizer: Optimizer, name: str, place: CodePosition | None
) -> None:
    """Report empty groups, weight decay on norms and biases, and an epsilon too small for float16.

    Args:
        events: receives the events.
        program: the recorded program, which knows the modules.
        optimizer: the optimizer.
        name: the user's name for the optimizer.
        place: position of the optimizer's step.
    """
    groups = optimizer.param_groups
    for i, group in enumerate(groups):
        if not group["params"] and len(groups) > 1:
            empty = EmptyParameterGroup(optimizer=name, group=i, groups=len(groups))
            events.note(empty, place)
        epsilon = group.get("eps")
        if type(epsilon) is float and 0 < epsilon <= _HALF_UNDERFLOW:
            small = [p for p in group["params"] if p.dtype is torch.float16]
            if small:
                idle = VanishedEpsilon(optimizer=name, epsilon=epsilon)
                events.note(idle, place, leaves=map(id, small))
    if len(groups) > 1:
        _check_decay(events, program, groups, name, place)


def _check_decay(
    events: Events,
    program: Program,
    groups: Sequence[Mapping[str, Any]],
    name: str,
    place: CodePosition | None,
) -> None:
    decays = [group.get("weight_decay") for group in groups]
    if 0 not in decays or not any(type(decay) is float and decay > 0 for decay in decays):
        return
    small = _biases_and_norms(program)
    spared = [group["params"] for group, decay in zip(groups, decays, strict=True) if decay == 0]
    if all(params and not any(id(p) in small for p in params) for params in spared):
        return  # the groups without decay contain no norm weights and biases
    for i, (group, decay) in enumerate(zip(groups, decays, strict=True)):
        decayed = [id(p) for p in group["params"] if id(p) in small]
        if type(decay) is float and decay > 0 and decayed:
            idle = DecayedNorms(optimizer=name, group=i, groups=len(groups), decay=decay)
            events.note(idle, place, leaves=decayed)


def _biases_and_norms(program: Program) -> set[int]:
    """Return the id() of each bias and each weight of a norm layer, which usually get no decay."""
    found: set[int] = set()
    for module, _ in program.table.modules():
        norm = "Norm" in type(module).__name__
        for key, parameter in module._parameters.items():
            flat = isinstance(parameter, Tensor) and TensorBase.dim(parameter) == 1
            if flat and (norm or key == "bias"):
                found.add(id(parameter))
    return found
