"""Read the masks of attention: those of 0 and 1 that are added or multiplied, and triangles.

Each line is checked once in a step. The numbers are computed on the mask's device and read at the
end of the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from ...findings.rules.meaning.masks import AttentionMask, MaskFault
from ...graph.immutable import NamedTuple
from ...internals.frames import CodePosition
from ...internals.functions import TensorBase, functions_named
from ...internals.hooks.calls import Called
from ...internals.probes import Probe, probe
from ...tracing.nodes import GradFn, sources_of
from ..program import Program
from ..program.log import Found, Query, RowsOf

_MAX_ELEMENTS = 1 << 22  # maximum number of elements of a mask that is read
_MIN_LENGTH = 3  # a shorter triangle may be another mask
_MAX_NODES = 8  # maximum number of nodes between attention scores and their mask
_MASKED = -1e4  # a smaller value that is added to a score hides it
_PRODUCTS = functions_named("mul __mul__ __rmul__")
_SUMS = functions_named("add __add__ __radd__")
_FILLS = functions_named("masked_fill masked_fill_")
_BEFORE = ("BmmBackward0", "SoftmaxBackward0")


class MaskRow(NamedTuple):
    """A mask of attention."""

    function: str
    place: CodePosition | None
    numbers: tuple[int, ...]  # sequence number of the node that uses the mask
    uses: tuple[MaskFault, ...]  # the fault that each value of `found` reports
    found: Probe


def masks(event: Called, program: Program) -> Iterable[MaskRow]:
    """Return the masks of an attention, or of a call that masks scores or weights."""
    func, args, kwargs = event.func, event.args, event.kwargs or {}
    if func is F.scaled_dot_product_attention:
        mask = args[3] if len(args) > 3 else kwargs.get("attn_mask")
        return _argument(event, program, mask, _future)
    if func is F.multi_head_attention_forward:
        both = [kwargs.get(name) for name in ("attn_mask", "key_padding_mask")]
        found = [_argument(event, program, each, _future_of_complement) for each in both]
        return [*found[0], *found[1]]
    if len(args) > 1 and isinstance(args[0], Tensor) and isinstance(args[1], Tensor):
        return _operand(event, program, args[0], args[1])
    return ()


def _argument(
    event: Called, program: Program, mask: Any, future: Callable[[Tensor], Tensor]
) -> Iterable[MaskRow]:
    """Return the row of a mask that was passed to an attention function."""
    if not isinstance(mask, Tensor) or mask.requires_grad:
        return ()
    if mask.dtype is torch.bool:
        return _read(event, program, mask, ("future",), future)
    return _read(event, program, mask, ("added", "future"), _ones_or_future)


def _operand(event: Called, program: Program, one: Tensor, other: Tensor) -> Iterable[MaskRow]:
    """Return the row of a constant that is combined with attention scores or weights."""
    scores, mask = (one, other) if one.requires_grad else (other, one)
    if mask.requires_grad or scores.grad_fn is None or TensorBase.dim(scores) < 3:
        return ()
    if TensorBase.dim(mask) < 2 or mask.shape[-1] != scores.shape[-1]:
        return ()
    if event.func in _FILLS:
        future = _future_of_complement
        return _read(event, program, mask, ("future",), future) if scores is one else ()
    before = _maker(scores.grad_fn)
    if before == "BmmBackward0" and event.func in _SUMS:
        return _read(event, program, mask, ("added", "future"), _ones_or_future)
    if before == "BmmBackward0":
        return _read(event, program, mask, ("multiplied",), _ones)
    if before == "SoftmaxBackward0" and event.func in _PRODUCTS:
        return _read(event, program, mask, ("afterwards",), _ones)
    return ()


def _read(
    event: Called,
    program: Program,
    mask: Tensor,
    uses: tuple[MaskFault, ...],
    function: Callable[[Tensor], Tensor],
) -> Iterable[MaskRow]:
    name, place = event.func.__name__.strip("_"), program.place(event.frame)
    small = 1 < TensorBase.numel(mask) <= _MAX_ELEMENTS
    found = None
    if small and program.log.admits(MaskRow, (name, place)):
        found = probe(function, mask)
    if found is None:
        return ()
    fn = event.result.grad_fn if isinstance(event.result, Tensor) else None
    numbers = () if fn is None else (int(fn._sequence_nr()),)
    return (MaskRow(name, place, numbers, uses, found),)


class AttentionMasks(Query):
    """Find masks of attention that hide nothing, or the wrong positions."""

    functions = frozenset(
        (
            F.scaled_dot_product_attention,
            F.multi_head_attention_forward,
            *_PRODUCTS,
            *_SUMS,
            *_FILLS,
        )
    )
    needs_constant = True
    rows_of: ClassVar[RowsOf] = {"on_call_end": masks}

    def on_mask(self, row: MaskRow) -> Iterator[Found]:
        for use, found in zip(row.uses, row.found.values or (), strict=False):
            if found:
                yield Found(AttentionMask(function=row.function, use=use), row.place, row.numbers)


def _maker(fn: GradFn) -> str:
    """Return the name of the node of the scores or weights before views and scalings."""
    for _ in range(_MAX_NODES):
        before = sources_of(fn)
        if fn.name() in _BEFORE or len(before) != 1:
            break
        fn = before[0]
    return str(fn.name())


# The functions below return numbers that are not 0 for a mask with the fault.
def _ones(mask: Tensor) -> Tensor:
    """Return 1 for a mask of both 0 and 1, and of no other values."""
    zero, one = torch.eq(mask, 0), torch.eq(mask, 1)
    only = torch.all(torch.logical_or(zero, one))
    return torch.logical_and(only, torch.logical_and(torch.any(zero), torch.any(one)))


def _future(allowed: Tensor) -> Tensor:
    """Return 1 if each position may attend to all later ones, and to no earlier one."""
    if TensorBase.dim(allowed) < 2 or not allowed.shape[-1] == allowed.shape[-2] >= _MIN_LENGTH:
        return torch.zeros((), device=allowed.device)
    length = allowed.shape[-1]
    allowed = TensorBase.reshape(allowed, (-1, length, length)).any(0)
    above = torch.triu(torch.ones_like(allowed), 1)
    below = TensorBase.t(above)
    earlier = torch.any(torch.logical_and(allowed, below))
    all_later = torch.all(torch.logical_or(allowed, torch.logical_not(above)))
    return torch.logical_and(all_later, torch.logical_not(earlier))


def _ones_or_future(mask: Tensor) -> Tensor:
    future = _future(torch.gt(mask, _MASKED))
    return torch.stack((_ones(mask), TensorBase.to(future, torch.bool)))


def _future_of_complement(hidden: Tensor) -> Tensor:
    return _future(torch.logical_not(hidden))
