"""Find out whether the output depends on each input: change the values of one input at a time."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from ..graph import Experiment, Finding
from ..internals.replay.forward import ForwardResult, run_forward
from ..internals.tensors.pytree import flatten
from .divergence import outputs_differ
from .subject import Input, Subject
from .two_runs import Comparison

_MAX_INPUTS = 3  # number of inputs to change, one forward for each
_CHANGED = "{} got other values"
_REACHES = "the output depends on it"
_MAPPED = "Check the operands of this operation: it maps all of them to one value, as a ReLU may."
# Functions that saturate: for large arguments, their results are constant. A result that does not
# change now may therefore change after more training.
_SATURATING = ("sigmoid", "tanh", "softmax", "log_softmax")
_SATURATED = (
    "It is saturated: scale down its input, or lower the learning rate. A softmax over one "
    "value is always 1."
)


def inputs(subject: Subject) -> Iterator[Experiment]:
    """Change the values of one input at a time. The output has to change."""
    given = [each for each in subject.inputs() if _varies(each.tensor)]
    given.sort(key=lambda each: -each.tensor.numel())
    given = given[:_MAX_INPUTS]
    if not given:
        yield Experiment("inputs", "", None, "no input has values that vary")
        return
    reach = _inputs_with_effect(subject, given)
    for each in given:
        if each.name in reach:
            yield Experiment("inputs", _CHANGED.format(each.name), True, _REACHES)
        else:
            yield _judge_input(subject, each)


def _inputs_with_effect(subject: Subject, given: list[Input]) -> set[str]:
    """Run one forward per input, and return the names of the inputs that change the output."""

    def run(name: str) -> ForwardResult:
        return run_forward(
            subject.call,
            lambda args, kwargs: _perturb_input(subject.inputs(args, kwargs), name),
            budget=0,
        )

    first = run("")
    others = ((each.name, run(each.name)) for each in given)
    return {name for name, other in others if other.error is None and outputs_differ(first, other)}


def _varies(tensor: Tensor) -> bool:
    """Return whether a tensor has two different values (integer tensors: three)."""
    if tensor.numel() < 2 or tensor.is_meta or tensor.dtype is torch.bool:
        return False
    values = torch.unique(tensor.detach().flatten()[:10_000])
    return len(values) > (1 if tensor.is_floating_point() or tensor.is_complex() else 2)


def _judge_input(subject: Subject, given: Input) -> Experiment:
    changed = _CHANGED.format(given.name)
    comparison = Comparison()
    run = subject.run(comparison, partial(_perturb_input, name=given.name))
    if (unknown := subject.inconclusive("inputs", changed, run)) is not None:
        return unknown
    if any(run.shadows.get(t) is not None for _, t in flatten(run.output, ask=False)):
        return Experiment("inputs", changed, True, _REACHES)
    rows = comparison.rows
    end = comparison.last_same
    if end is None and rows:
        end = rows[max(rows)]
        message = "the output does not depend on it: no output uses the result of {operation}"
        return subject.answer(
            "inputs", changed, message, end, run, rule="unused-input", severity="info"
        )
    if end is None:
        message = "the output does not depend on it: no operation uses it"
        found = Finding(
            "unused-input",
            "info",
            f"{given.name}: {message}.",
            "Use it in forward, or remove the argument.",
            where=subject.recorded.where,
        )
        return Experiment(
            "inputs", changed, False, message, where=subject.recorded.where, finding=found
        )
    if end.even:
        message = (
            "the output does not depend on it yet: {operation} combines it with values that are "
            "all equal, such as weights that are still zero"
        )
        return subject.answer("inputs", changed, message, end, run, holds=None)
    message = (
        "the output does not depend on it: the change ends at {operation}, whose result is the same"
    )
    saturated = end.name in _SATURATING
    return subject.answer(
        "inputs",
        changed,
        message,
        end,
        run,
        rule="input-without-effect",
        severity="info" if saturated else "warning",
        advice=_SATURATED if saturated else _MAPPED,
    )


def _perturb_input(given: list[Input], name: str) -> dict[int, Tensor]:
    for each in given:
        if each.name == name:
            tensor = each.tensor.detach()
            other = tensor.flatten().roll(1).reshape(tensor.shape).clone()
            if tensor.is_floating_point() or tensor.is_complex():
                generator = torch.Generator().manual_seed(0)
                noise = torch.randn(tensor.shape, generator=generator).to(other.device, other.dtype)
                other += 0.3 * tensor.abs().float().mean().to(other.dtype) * noise
            return {id(each.tensor): other}
    return {}
