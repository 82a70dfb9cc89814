"""Read the masks of attention: those of 0 and 1 that are added or multiplied, and triangles.

Each line is checked once in a step. The numbers are computed on the mask's device and read at the
end of the step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ...findings.rules.meaning.masks import AttentionMask, MaskFault
from ...graph.immutable import mutable
from ...internals.frames import CodePosition
from ...internals.functions import TensorBase, functions_named
from ...internals.hooks.calls import Called
from ...internals.probes import Probe, fetch, probe
from ...tracing.nodes import GradFn, sources_of
from ..listener import Listener
from ..program import Program

_MAX_MASKS = 64  # maximum number of masks to check in one step
_MAX_ELEMENTS = 1 << 22  # maximum number of elements of a mask that is read
_MIN_LENGTH = 3  # a shorter triangle may be another mask
_MAX_NODES = 8  # maximum number of nodes between attention scores and their mask
_MASKED = -1e4  # a smaller value that is added to a score hides it
_PRODUCTS = functions_named("mul __mul__ __rmul__")
_SUMS = functions_named("add __add__ __radd__")
_FILLS = functions_named("masked_fill masked_fill_")
_BEFORE = ("BmmBackward0", "SoftmaxBackward0")


@mutable
class _Mask:
    """A mask that was read, whose numbers may still be on a device."""

    function: str
    place: CodePosition | None
    numbers: list[int]  # sequence number of the node that uses the mask
    uses: tuple[MaskFault, ...]  # the fault that each value of `found` reports
    found: Probe


class AttentionMasks(Listener):
    """Listener that reports masks of attention that hide nothing, or the wrong positions."""

    needs = ("every_call",)
    functions = frozenset(
        (
            F.scaled_dot_product_attention,
            F.multi_head_attention_forward,
            *_PRODUCTS,
            *_SUMS,
            *_FILLS,
        )
    )

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._masks: dict[tuple[str, CodePosition | None], _Mask] = {}

    def on_call_end(self, event: Called) -> None:
        func, args, kwargs = event.func, event.args, event.kwargs or {}
        if func is F.scaled_dot_product_attention:
            self._argument(event, args[3] if len(args) > 3 else kwargs.get("attn_mask"), _future)
        elif func is F.multi_head_attention_forward:
            self._argument(event, kwargs.get("attn_mask"), _future_of_complement)
            self._argument(event, kwargs.get("key_padding_mask"), _future_of_complement)
        elif len(args) > 1 and isinstance(args[0], Tensor) and isinstance(args[1], Tensor):
            self._operand(event, args[0], args[1])

    def _argument(self, event: Called, mask: Any, future: Callable[[Tensor], Tensor]) -> None:
        """Check a mask that was passed to an attention function."""
        if not isinstance(mask, Tensor) or mask.requires_grad:
            return
        if mask.dtype is torch.bool:
            self._read(event, mask, ("future",), future)
        else:
            self._read(event, mask, ("added", "future"), _ones_or_future)

    def _operand(self, event: Called, one: Tensor, other: Tensor) -> None:
        """Check a constant that is combined with attention scores or weights."""
        scores, mask = (one, other) if one.requires_grad else (other, one)
        if mask.requires_grad or scores.grad_fn is None or TensorBase.dim(scores) < 3:
            return
        if TensorBase.dim(mask) < 2 or mask.shape[-1] != scores.shape[-1]:
            return
        if event.func in _FILLS:
            if scores is one:
                self._read(event, mask, ("future",), _future_of_complement)
            return
        before = _maker(scores.grad_fn)
        if before == "BmmBackward0" and event.func in _SUMS:
            self._read(event, mask, ("added", "future"), _ones_or_future)
        elif before == "BmmBackward0":
            self._read(event, mask, ("multiplied",), _ones)
        elif before == "SoftmaxBackward0" and event.func in _PRODUCTS:
            self._read(event, mask, ("afterwards",), _ones)

    def _read(
        self,
        event: Called,
        mask: Tensor,
        uses: tuple[MaskFault, ...],
        function: Callable[[Tensor], Tensor],
    ) -> None:
        name, place = event.func.__name__.strip("_"), self.program.place(event.frame)
        key = name, place
        small = 1 < TensorBase.numel(mask) <= _MAX_ELEMENTS
        if not small or key in self._masks or len(self._masks) >= _MAX_MASKS:
            return
        found = probe(function, mask)
        if found is not None:
            fn = event.result.grad_fn if isinstance(event.result, Tensor) else None
            numbers = [] if fn is None else [int(fn._sequence_nr())]
            self._masks[key] = _Mask(name, place, numbers, uses, found)

    def on_step_end(self, event: None) -> None:
        self._masks = {}

    def on_graphs_built(self, backwards: Any, graphs: Any) -> None:
        masks, self._masks = [*self._masks.values()], {}
        for each, row in zip(masks, fetch([each.found for each in masks]), strict=True):
            for use, found in zip(each.uses, row, strict=False):
                if found:
                    fault = AttentionMask(function=each.function, use=use)
                    self.events.note(fault, each.place, each.numbers)

    def close(self) -> None:
        self._masks = {}


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
