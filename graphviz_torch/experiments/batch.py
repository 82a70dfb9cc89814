"""The batch twice: a mean stays, a sum doubles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..graph import Experiment, Finding
from ..internals.hooks.modes import unseen_calls
from ..recording.modules.first_call import Loss
from .subject import Subject


def batch_twice(subject: Subject) -> Iterator[Experiment]:
    """The batch twice: the loss stays the same, for a mean; one that doubles is a sum."""
    changed = "the samples of the loss came twice"
    if not subject.losses:
        message = "no loss function of torch.nn.functional was called"
        yield Experiment("batch_twice", changed, None, message)
        return
    loss = subject.losses[-1]
    where = subject.line(loss.place, loss.place)
    name = loss.function.__name__
    once, twice = _value(loss, 1), _value(loss, 2)
    if once is None or twice is None or not once:
        message = f"{name} gives no single number for them"
        yield Experiment("batch_twice", changed, None, message, name, where)
        return
    ratio = twice / once
    if abs(ratio - 2) > 1e-3:
        yield Experiment("batch_twice", changed, True, f"{name} gives the same", name, where)
        return
    message = f"{name} gives twice as much: it is a sum"
    found = Finding(
        "sum-loss",
        "info",
        f"{name} sums over the samples: gradients, and what a learning rate means, grow with the "
        "batch.",
        'With reduction="mean" a learning rate fits more sizes of batches.',
        where=where,
    )
    yield Experiment("batch_twice", changed, None, message, name, where, finding=found)


def _value(loss: Loss, times: int) -> float | None:
    first = next((t for t in (*loss.args, *loss.kwargs.values()) if isinstance(t, Tensor)), None)
    if first is None or not first.dim():
        return None
    count = first.shape[0]

    def again(value: Any) -> Any:
        if isinstance(value, Tensor) and value.dim() and value.shape[0] == count:
            return torch.cat([value] * times)
        return value

    kwargs = dict(loss.kwargs)
    weight = kwargs.pop("weight", None)
    args = [again(a) for a in loss.args]
    kwargs = {name: again(value) for name, value in kwargs.items()}
    if weight is not None:  # of classes, not of samples
        kwargs["weight"] = weight
    try:
        with torch.no_grad(), unseen_calls():
            result = loss.function(*args, **kwargs)
            return float(result) if result.dim() == 0 else None
    except Exception:
        return None
