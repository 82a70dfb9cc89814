"""The inputs in another memory order: the same values come out."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ..graph import Experiment, Finding
from ..internals.replay.plain import Plain, run_plainly
from ..internals.tensors.pytree import flatten
from .digits import distance
from .subject import Subject


def memory_order(subject: Subject) -> Iterator[Experiment]:
    """The inputs channels last, or their elements in another order: the output is the same."""
    given = subject.inputs()
    ordered = [each for each in given if _other_order(each.tensor) is not None]
    changed = "the inputs lie in another order in memory"
    if not ordered:
        message = "no input has two dimensions of more than one element"
        yield Experiment("memory_order", changed, None, message)
        return

    def change(args: tuple[object, ...], kwargs: dict[str, object]) -> dict[int, Tensor]:
        found = {}
        for each in subject.inputs(args, kwargs):
            other = _other_order(each.tensor)
            if other is not None:
                found[id(each.tensor)] = other
        return found

    first = run_plainly(subject.call)
    other = run_plainly(subject.call, change)
    yield compared(
        subject,
        "memory_order",
        changed,
        first,
        other,
        "memory-order",
        "Look for as_strided, a kernel of your own, or a read of the storage there: each reads "
        "elements in the order of memory.",
    )


def _other_order(tensor: Tensor) -> Tensor | None:
    """The same values, channels last for images, else with the last two dimensions swapped."""
    if not tensor.is_floating_point() or tensor.dim() < 2 or tensor.is_meta:
        return None
    if min(tensor.shape[-2:]) < 2:
        return None
    plain = tensor.detach()
    if tensor.dim() == 4 and tensor.is_contiguous() and tensor.shape[1] > 1:
        return plain.to(memory_format=torch.channels_last)
    return plain.transpose(-1, -2).contiguous().transpose(-1, -2)


def compared(
    subject: Subject,
    name: str,
    changed: str,
    first: Plain,
    other: Plain,
    rule: str,
    advice: str,
) -> Experiment:
    """What two forwards that must give the same say: the first module whose results part."""
    for run in (first, other):
        if run.error is not None:
            kind = type(run.error).__name__
            said = next(iter(str(run.error).splitlines()), "")[:100]
            message = f"its forward cannot be run so: {kind}: {said}"
            return Experiment(name, changed, None, message)
    outputs = [[t for _, t in flatten(run.output, ask=False)] for run in (first, other)]
    if [t.shape for t in outputs[0]] != [t.shape for t in outputs[1]]:
        return Experiment(name, changed, None, "the path through the code depends on the values")
    apart = max((_apart(a, b) for a, b in zip(*outputs, strict=True)), default=0.0)
    if apart <= 1:
        size = max((distance(a, b) for a, b in zip(*outputs, strict=True)), default=0.0)
        return Experiment(name, changed, True, f"the output differs by {size:.1g} of its size")
    module = ""
    change = max(distance(a, b) for a, b in zip(*outputs, strict=True))
    if [path for path, _, _ in first.modules] == [path for path, _, _ in other.modules]:
        for (path, a, before), (_, b, _) in zip(first.modules, other.modules, strict=True):
            if a._version == before and _apart(a, b) > 1:
                module, change = path, distance(a, b)
                break
    where = subject.recorded.where
    at = f"the result of {module} differs first" if module else "the output differs"
    message = f"{at}, by {change:.1g} of its size"
    found = Finding(rule, "warning", f"{changed}: {message}.", advice, where=where)
    return Experiment(name, changed, False, message, "", where, module, None, change, found)


def _apart(a: Tensor, b: Tensor) -> float:
    """The distance in what rounding makes up for: a square root of a dtype's epsilon."""
    if not a.is_floating_point():
        return 0.0 if a.shape == b.shape and bool((a == b).all()) else 2.0
    return distance(a, b) / float(torch.finfo(a.dtype).eps ** 0.5)
