"""The first NaN or Inf of a forward: which node made it, and of what.

Looked at when backward begins, while the nodes are alive: what they keep, and what backward starts
from. One reduction for all tells whether there is any; only then is each looked at. Nothing that a
hook packed is unpacked. Minus infinity is what masks are made of: it counts where a logarithm or a
division made it. Other devices than the CPU are not looked at, for to look is to wait.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...graph.events import Origin
from ...internals.functions import foreach_norm
from ...internals.guards import no_autograd
from ...internals.hooks.dispatch import unseen
from ...internals.hooks.modes import unseen_calls, unseen_operators
from ...internals.tensors.memory import has_memory, with_memory
from ...internals.tensors.saved_tensors import SAVED_NAMES, TELLS
from ...tracing.nodes import GradFn, operation

_TOGETHER = 1024  # memories in one reduction
_LOGS = ("log", "log2", "log10", "log1p", "logit", "div", "reciprocal", "rsqrt")


class Birth(NamedTuple):
    """Where the first NaN or Inf came from."""

    fn: GradFn
    nan: int
    inf: int
    reason: str  # "its divisor has 2 zeros"; "" where it is not known
    origin: Origin  # what was NaN or Inf first
    in_loss: bool  # is what backward starts from NaN or Inf
    counted: bool = True  # are the counts of what it made; else of what was made of that


class _Values(NamedTuple):
    fn: GradFn  # that keeps them
    name: str
    tensor: Tensor
    maker: GradFn | None  # None: a tensor without a history
    nan: int
    inf: int
    minus: int


def birth(
    fns: Iterable[GradFn], outputs: Iterable[Any], activations: Iterable[Tensor]
) -> Birth | None:
    """The node that made the first NaN or Inf, if there is any.

    Args:
        fns: live nodes, inputs before users.
        outputs: what backward starts from.
        activations: what the nodes keep, parameters left out.
    """
    with unseen_calls(), unseen_operators(), unseen():
        losses = _looked_at(outputs)
        with no_autograd():
            if _all_finite([*_looked_at(activations), *map(Tensor.detach, losses)]):
                return None
        with torch.no_grad():
            return _birth(list(fns), list(_saved_tensors(fns)), losses)


def _birth(fns: list[GradFn], saved: list[Any], losses: list[Tensor]) -> Birth | None:
    known: dict[GradFn, tuple[int, int]] = {}  # NaN and Inf in what a node made
    data: list[_Values] = []
    found = [_values(*each) for each in saved]
    for values in found:
        if values.maker is None:
            if values.nan:
                data.append(values)
            continue
        counts = _minus(values.maker) and values.minus
        known[values.maker] = values.nan, values.inf + (counts or 0)
    bad_losses = [o for o in losses if not bool(torch.isfinite(o).all())]
    for loss in bad_losses:
        nan = int(torch.isnan(loss).sum())
        known[loss.grad_fn] = nan, int(loss.numel()) - nan
    places = {fn: i for i, fn in enumerate(fns)}
    bad = [fn for fn, counts in known.items() if any(counts) and fn in places]
    if data and (not bad or places[data[0].fn] <= min(map(places.__getitem__, bad))):
        values = data[0]
        reason = f"its input ({values.name}) holds {values.nan} NaN already"
        return Birth(values.fn, values.nan, 0, reason, "input", bool(bad_losses))
    if not bad:
        return None
    first = min(bad, key=places.__getitem__)
    nan, inf = known[first]
    for fn in _unknown(first, known, places):
        origin: Origin = "operation"
        reason = _reason(fn, [v for v in found if v.fn is fn], *known.get(fn, (nan, inf)))
        if not reason and _has_spoilt_parameter(fn):
            origin, reason = "parameter", "a parameter of it is NaN or Inf already"
        if reason:
            counted = fn in known and fn is first
            return Birth(fn, nan, inf, reason, origin, bool(bad_losses), counted)
    return Birth(first, nan, inf, "", "operation", bool(bad_losses))


def _saved_tensors(fns: Iterable[GradFn]) -> Iterator[tuple[GradFn, str, Tensor]]:
    """What the nodes keep on the CPU as it is."""
    for fn in fns if TELLS else ():
        for attribute, name in SAVED_NAMES[type(fn)]:
            try:
                raw: Any = getattr(fn, attribute)
            except RuntimeError:
                continue  # an earlier backward has freed it
            if type(raw) is tuple or raw is None or raw.unpack_hook is not None:
                continue
            for data in _looked_at((raw.data,)):
                yield fn, name, data


def _looked_at(values: Iterable[Any]) -> list[Tensor]:
    found = [
        value
        for value in values
        if type(value) is Tensor and value.is_cpu and value.dtype.is_floating_point
    ]
    return [tensor for tensor in with_memory(found) if 0 not in tensor.shape]


def _all_finite(tensors: list[Tensor]) -> bool:
    """One reduction for many of a dtype: it may overflow where nothing is NaN or Inf."""
    alike: dict[Any, dict[Any, Tensor]] = defaultdict(dict)  # each memory once
    memories = zip(map(Tensor.data_ptr, tensors), map(Tensor.numel, tensors), strict=True)
    for tensor, memory in zip(tensors, memories, strict=True):
        alike[tensor.dtype][memory] = tensor
    for one in alike.values():
        distinct = list(one.values())
        for start in range(0, len(distinct), _TOGETHER):
            norms = torch.stack(foreach_norm(distinct[start : start + _TOGETHER]))
            if not all(map(math.isfinite, norms.tolist())):
                return False
    return True


def _values(fn: GradFn, name: str, data: Tensor) -> _Values:
    tensor = getattr(fn, f"_saved_{name}")
    maker = tensor.grad_fn if tensor is not None else None
    nan = int(torch.isnan(data).sum())
    plus, minus = int(torch.isposinf(data).sum()), int(torch.isneginf(data).sum())
    return _Values(fn, name, data, maker, nan, plus, minus)


def _minus(fn: GradFn) -> bool:
    return operation(fn.name().rpartition("::")[2]) in _LOGS


def _unknown(
    first: GradFn, known: dict[GradFn, tuple[int, int]], places: dict[GradFn, int]
) -> Iterator[GradFn]:
    """A node, and those before it that nothing is known about, the latest first."""
    stack, seen = [first], {first}
    while stack:
        stack.sort(key=places.__getitem__)
        fn = stack.pop()
        yield fn
        for source, _ in fn.next_functions:
            fresh = source is not None and source not in seen and source in places
            if fresh and source not in known:
                seen.add(source)
                stack.append(source)


def _reason(fn: GradFn, saved: list[_Values], nan: int, inf: int) -> str:
    """Why a node made NaN or Inf; "" if it did not, as far as is known."""
    title = operation(fn.name().rpartition("::")[2])
    by_name = {values.name: values.tensor for values in saved}
    given, made = by_name.get("self"), by_name.get("result")
    if title == "div" and (divisor := by_name.get("other")) is not None:
        return _counted(divisor == 0, "its divisor has {} zero{s}")
    if title in ("log", "log2", "log10", "log1p", "logit") and given is not None:
        least = -1 if title == "log1p" else 0
        negative = _counted(given < least, "it was given {} number{s} below " + str(least))
        return negative or _counted(given == least, "it was given {} " + str(least) + "{s}")
    if title in ("softmax", "log_softmax") and made is not None:
        rows = torch.isnan(made).any(-1)
        return _counted(rows, "{} row{s} of its input held only -inf, or NaN")
    if title in ("sqrt", "rsqrt") and made is not None:
        negative = _counted(torch.isnan(made), "it was given {} negative number{s}")
        return negative or _counted(torch.isinf(made), "it was given {} zero{s}")
    if title in ("exp", "expm1", "sinh", "cosh") and made is not None:
        return _counted(torch.isposinf(made), "{} result{s} overflowed")
    if title in ("acos", "asin") and given is not None:
        return _counted(given.abs() > 1, "it was given {} number{s} outside -1 and 1")
    if title == "pow" and given is not None:
        return _counted(given < 0, "it was given {} negative number{s}")
    if title in ("nll_loss", "nll_loss2d") and nan:
        return "no target was left to take the mean of"
    if title == "mean" and nan and not _elements(fn):
        return "it was given no elements"
    if title in ("var", "std") and nan:
        return "it was given a single element"
    return ""


def _has_spoilt_parameter(fn: GradFn) -> bool:
    """Is a parameter that a node uses NaN or Inf."""
    weights = [f.variable for f, _ in fn.next_functions if type(f).__name__ == "AccumulateGrad"]
    return any(w.is_cpu and has_memory(w) and not bool(torch.isfinite(w).all()) for w in weights)


def _elements(fn: GradFn) -> int:
    sizes = getattr(fn, "_saved_self_sym_sizes", None)
    return math.prod(sizes) if sizes is not None else 1


def _counted(mask: Tensor, text: str) -> str:
    count = int(mask.sum())
    return text.format(count, s="" if count == 1 else "s") if count else ""
