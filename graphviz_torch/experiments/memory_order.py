"""Find out whether results depend on the memory layout of the inputs: change the layout."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import Module

from ..graph import Experiment
from ..internals.replay.forward import run_forward
from .divergence import (
    Divergence,
    DivergenceFinder,
    RecordedResults,
    compare_forwards,
    outputs_differ,
)
from .subject import Subject

_ADVICE = (
    "Look there for as_strided, a kernel of your own, or an access to the storage: they read "
    "elements in memory order."
)


def memory_order(subject: Subject) -> Iterator[Experiment]:
    """Change the memory layout of the inputs. The output has to stay the same.

    Images become channels last. In other inputs, the last two dimensions are swapped in memory.
    """
    given = subject.inputs()
    ordered = [each for each in given if _other_order(each.tensor) is not None]
    changed = "the inputs have another memory layout"
    if not ordered:
        message = "no floating-point input has two dimensions of more than one element"
        yield Experiment("memory_order", "", None, message)
        return

    def change(args: tuple[object, ...], kwargs: dict[str, object]) -> dict[int, Tensor]:
        found = {}
        for each in subject.inputs(args, kwargs):
            other = _other_order(each.tensor)
            if other is not None:
                found[id(each.tensor)] = other
        return found

    results = RecordedResults()
    first = run_forward(subject.call, training=without_dropout, each=results)
    other = run_forward(subject.call, change, training=without_dropout)
    part = None
    if outputs_differ(first, other):  # a third run finds the operation that differs
        beside = DivergenceFinder(results)
        run_forward(subject.call, change, training=without_dropout, each=beside)
        if beside.part is not None:
            made, size = beside.part
            where = subject.line(made.place, made.user_place)
            part = Divergence(made.name, where, made.module, size, beside.is_random)
    yield compare_forwards(
        subject, "memory_order", changed, first, other, "memory-order", _ADVICE, part=part
    )


def without_dropout(module: Module) -> bool:
    """Return a module's training mode; False for dropout, whose mask depends on memory layout."""
    return module.training and "dropout" not in type(module).__name__.lower()


def _other_order(tensor: Tensor) -> Tensor | None:
    """Return a copy of a tensor in a different memory layout; None if it has only one layout.

    Images become channels last. In other tensors, the last two dimensions are swapped in memory.
    """
    if not tensor.is_floating_point() or tensor.dim() < 2 or tensor.is_meta:
        return None
    if min(tensor.shape[-2:]) < 2:
        return None
    plain = tensor.detach()
    if tensor.dim() == 4 and tensor.is_contiguous() and tensor.shape[1] > 1:
        return plain.to(memory_format=torch.channels_last)
    return plain.transpose(-1, -2).contiguous().transpose(-1, -2)
