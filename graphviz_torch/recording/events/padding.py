"""Find padding that a loss counts as targets, and padding that attention attends to.

A token is padding if it is the `padding_idx` of the embedding, or if several rows of a batch end
with a run of it and it occurs nowhere else. The search runs on the tokens' device, and its result
is read at the end of the step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ...graph.events import UsedPadding
from ...internals.frames import CodePosition
from ...internals.functions import TensorBase
from ...internals.hooks.calls import Called
from ...internals.probes import Probe, fetch, probe, unobserved
from ...internals.tensors.memory import may_be_read
from ..listener import Listener
from ..program import Program

_MAX_CALLS = 64  # calls that are checked in one step
_MIN_ROWS = 2  # rows that end with a run of padding


@dataclass(slots=True)
class _PaddedTokens:
    """The padding of a batch of tokens that an embedding got, on its device."""

    token: Tensor  # the token that pads; -1 if there is no padding
    count: Tensor  # number of padding tokens
    shape: tuple[int, int]
    classes: int  # number of the embedding's vectors
    place: CodePosition | None


@dataclass(slots=True)
class _PaddingUse:
    """A call that may use padding."""

    event: UsedPadding
    place: CodePosition | None
    embedded: CodePosition | None
    numbers: Probe  # the token that pads, and the number of its uses
    among: int  # number of targets, or of tokens, among which the uses are counted
    allowed: int = 0  # number of uses that are not reported


class Padding(Listener):
    """Listener that reports padding that a loss counts or that attention attends to."""

    needs = ("every_call",)
    functions = frozenset(
        (
            F.embedding,
            F.cross_entropy,
            F.nll_loss,
            F.scaled_dot_product_attention,
            F.multi_head_attention_forward,
        )
    )

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        # The first batch of tokens since the last backward.
        self._tokens: _PaddedTokens | None = None
        self._uses: list[_PaddingUse] = []

    def on_call_end(self, event: Called) -> None:
        func, args, kwargs = event.func, event.args, event.kwargs or {}
        if func is F.embedding:
            if self._tokens is None:
                self._embed(event, args, kwargs)
        elif self._tokens is None or len(self._uses) >= _MAX_CALLS:
            return
        elif func in (F.cross_entropy, F.nll_loss):
            self._loss(event, self._tokens, args, kwargs)
        elif _attends_to_all(func, args, kwargs, self._tokens):
            tokens = self._tokens
            numbers = probe(
                lambda token, count: torch.stack((token, count)), tokens.token, tokens.count
            )
            self._use(event, tokens, numbers, tokens.shape[0] * tokens.shape[1])

    def _embed(self, event: Called, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Search a batch of tokens for padding."""
        given = [*args, *(kwargs[key] for key in ("input", "weight") if key in kwargs)]
        if len(given) < 2 or not all(isinstance(each, Tensor) for each in given[:2]):
            return
        tokens, weight = given[:2]
        if TensorBase.dim(tokens) != 2 or not all(type(n) is int for n in tokens.shape):
            return
        if min(tokens.shape) < 2 or not may_be_read(tokens):
            return
        index = args[2] if len(args) > 2 else kwargs.get("padding_idx")
        with unobserved():
            if index is None:
                token, count = _trailing_token(tokens)
            else:
                index = index % weight.shape[0]
                count = torch.sum(torch.eq(tokens, index))
                token = torch.where(torch.gt(count, 0), index, -1)
            place = self.program.place(event.frame)
            shape = (int(tokens.shape[0]), int(tokens.shape[1]))
            self._tokens = _PaddedTokens(token, count, shape, int(weight.shape[0]), place)

    def _loss(
        self, event: Called, tokens: _PaddedTokens, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        """Count the targets that are padding, if the classes of the loss are the tokens."""
        given = [*args[:2], *(kwargs[key] for key in ("input", "target") if key in kwargs)]
        if len(args) > 2 or not all(isinstance(each, Tensor) for each in given):
            return  # arguments such as weights are passed by keyword nearly always
        scores, target = given
        if kwargs.get("weight") is not None or kwargs.get("reduction", "mean") == "none":
            return
        if TensorBase.dim(scores) < 2 or scores.shape[1] != tokens.classes:
            return
        if target.is_floating_point() or target.device != tokens.token.device:
            return
        ignored = kwargs.get("ignore_index", -100)
        numbers = probe(lambda t, token: _targets(t, token, ignored), target, tokens.token)
        # The token may also end a sequence, so that each row rightly has it as a target once.
        self._use(event, tokens, numbers, TensorBase.numel(target), allowed=tokens.shape[0])

    def _use(
        self,
        event: Called,
        tokens: _PaddedTokens,
        numbers: Probe | None,
        among: int,
        allowed: int = 0,
    ) -> None:
        if numbers is not None:
            found = UsedPadding(function=event.func.__name__)
            place = self.program.place(event.frame)
            self._uses.append(_PaddingUse(found, place, tokens.place, numbers, among, allowed))

    def on_backward_end(self, event: object) -> None:
        self._tokens = None

    def on_step_end(self, event: None) -> None:
        self._tokens, self._uses = None, []

    def on_graphs_built(self, backwards: Any, graphs: Any) -> None:
        uses, self._uses = self._uses, []
        for each, row in zip(uses, fetch([each.numbers for each in uses]), strict=True):
            if row and row[0] >= 0 and each.allowed < row[1] < each.among:
                self.events.note(
                    each.event,
                    each.place,
                    token=row[0],
                    count=row[1],
                    among=each.among,
                    embedded=self.program.line()(each.embedded),
                )

    def close(self) -> None:
        self._tokens, self._uses = None, []


def _trailing_token(tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Return the token that pads the ends of rows, and its number; -1 and 0 if there is none."""
    ends = torch.eq(torch.select(tokens, 1, -1), torch.select(tokens, 1, -2))
    last = torch.where(ends, torch.select(tokens, 1, -1), -1)
    token = torch.amax(last)
    is_token = torch.eq(tokens, token)
    trailing = torch.cumprod(torch.flip(is_token, (1,)), 1)
    enough = torch.ge(torch.sum(torch.eq(last, token)), _MIN_ROWS)
    count = torch.sum(is_token)
    only = torch.eq(torch.sum(trailing), count)
    # A row that consists of the token alone is not a padded sequence.
    begun = torch.logical_not(torch.any(torch.eq(torch.select(tokens, 1, 0), token)))
    found = torch.logical_and(torch.logical_and(enough, only), begun)
    return torch.where(found, token, -1), torch.where(found, count, 0)


def _targets(target: Tensor, token: Tensor, ignored: Any) -> Tensor:
    """Return [padding token, number of targets that are this token and not ignored].

    Args:
        target: the targets of a loss.
        token: the padding token.
        ignored: `ignore_index` of the loss.
    """
    counted = torch.logical_and(torch.eq(target, token), torch.ne(target, ignored))
    return torch.stack((token, torch.sum(counted)))


def _attends_to_all(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], tokens: _PaddedTokens
) -> bool:
    """Return True if an attention over these tokens has no mask and is not causal."""
    if func is F.scaled_dot_product_attention:
        masks = [*args[3:4], kwargs.get("attn_mask"), kwargs.get("is_causal"), *args[5:6]]
        keys, dim = args[1] if len(args) > 1 else kwargs.get("key"), -2
    else:
        masks = [kwargs.get("attn_mask"), kwargs.get("key_padding_mask"), kwargs.get("is_causal")]
        keys, dim = args[1] if len(args) > 1 else kwargs.get("key"), 0
    masked = any(mask is not None and mask is not False for mask in masks)
    return not masked and isinstance(keys, Tensor) and keys.shape[dim] == tokens.shape[1]
