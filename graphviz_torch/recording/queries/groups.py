"""Check an optimizer's parameter groups when the optimizer steps for the first time."""

from __future__ import annotations

import dis
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from types import CodeType
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from ...findings.rules.meaning.optimizers import VanishedEpsilon
from ...findings.rules.meaning.parameter_groups import (
    DecayedNorms,
    EmptyParameterGroup,
    UnknownGroupOption,
)
from ...internals.frames import CodePosition, user_frame, user_frames
from ...internals.functions import TensorBase
from ...internals.hooks.optimizers import Stepping
from ..program import Program
from ..program.log import Found, Query, RowsOf

_MAX_OPTIONS = 64  # a group with more options is not checked
_SIMILAR = 0.8  # the least similarity of an option to the option that was meant
# Other names of options, which are not similar to them.
_OTHER_NAMES = {
    "learning_rate": "lr",
    "learningrate": "lr",
    "wd": "weight_decay",
    "decay": "weight_decay",
    "l2": "weight_decay",
    "epsilon": "eps",
}
_HALF_UNDERFLOW = 2.0**-25  # the largest number that float16 rounds to 0


def group_problems(event: Stepping, program: Program) -> Iterator[Found]:
    """Yield the problems of an optimizer's parameter groups at the optimizer's first step."""
    optimizer, frame = event.optimizer, user_frame(event.frame)
    record, groups = program.steps.log.get(optimizer), optimizer.param_groups
    if record is None or not program.log.admits(ParameterGroups, record.number, in_run=True):
        return
    name, place = program.optimizer_name(optimizer, frame), program.place(event.frame)
    around = [each.f_code for each in user_frames(frame)]
    for i, group in enumerate(groups):
        if not group["params"] and len(groups) > 1:
            yield Found(EmptyParameterGroup(optimizer=name, group=i, groups=len(groups)), place)
        epsilon = group.get("eps")
        if type(epsilon) is float and 0 < epsilon <= _HALF_UNDERFLOW:
            small = [id(p) for p in group["params"] if p.dtype is torch.float16]
            if small:
                vanished = VanishedEpsilon(optimizer=name, epsilon=epsilon)
                yield Found(vanished, place, leaves=small)
        for option, meant in _unknown_options(optimizer, group, around):
            unknown = UnknownGroupOption(
                optimizer=name, owner=type(optimizer).__name__, option=option, meant=meant
            )
            values = {"value": str(group[option]), "used": str(group[meant])}
            yield Found(unknown, place, latest={"group": i, "groups": len(groups), **values})
    if len(groups) > 1:
        yield from _decayed_norms(program, groups, name, place)


class ParameterGroups(Query):
    """Find empty groups, unknown options, decay of norms, and epsilons too small for float16."""

    rows_of: ClassVar[RowsOf] = {"on_optimizer_step_start": group_problems}
    sees_later_steps = True


def _unknown_options(
    optimizer: Optimizer, group: Mapping[str, Any], around: Sequence[CodeType]
) -> list[tuple[str, str]]:
    """Return options that the optimizer does not read, each with the option that was meant.

    An option that the program's own code names in another place is left out, because the program
    may read it.

    Args:
        optimizer: the optimizer.
        group: one of its parameter groups.
        around: code objects of the user's frames around the step.
    """
    known = optimizer.defaults
    if not type(optimizer).__module__.startswith("torch.") or len(group) > _MAX_OPTIONS:
        return []
    found = []
    for option, value in group.items():
        if option in known or option == "params" or type(value) not in (int, float, tuple):
            continue
        plain = option.lower().replace("-", "_")
        meant = next(iter(get_close_matches(plain, known, 1, _SIMILAR)), _OTHER_NAMES.get(plain))
        if meant in known and value != known[meant] and _times_named(option, around) < 2:
            found.append((option, meant))
    return found


def _times_named(text: str, around: Sequence[CodeType]) -> int:
    """Return how often the code and the functions in it load a constant that contains a text."""
    count, codes = 0, [*dict.fromkeys(around)]
    for code in codes:
        codes += [part for part in code.co_consts if isinstance(part, CodeType)]
        for step in dis.get_instructions(code):
            names = step.argval if isinstance(step.argval, tuple) else (step.argval,)
            count += step.opname == "LOAD_CONST" and text in names
    return count


def _decayed_norms(
    program: Program,
    groups: Sequence[Mapping[str, Any]],
    name: str,
    place: CodePosition | None,
) -> Iterator[Found]:
    """Yield the groups with decay that contain norm weights or biases, if other groups have none.

    Args:
        program: the recorded program, which knows the modules.
        groups: the parameter groups.
        name: the user's name for the optimizer.
        place: position of the optimizer's step.
    """
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
            event = DecayedNorms(optimizer=name, group=i, groups=len(groups), decay=decay)
            yield Found(event, place, leaves=decayed)


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
