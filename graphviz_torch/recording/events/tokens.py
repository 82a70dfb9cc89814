"""Compare the tokens that an embedding gets with the targets of a loss and the masks of attention.

Padding must not be counted by the loss, and attention must not attend to it. A model that predicts
the next token needs targets that are shifted by one, and an attention that is causal.

A token is padding if it ends a row, or repeats itself at the end of a row, and is the `padding_idx`
of the embedding, or ends several rows and occurs nowhere else in the batch. Elements that
`pad_sequence` adds are padding, too. Which padding a loss uses is read from gradients: the
positions whose result gets a gradient that is not zero. They are read at the last matrix product
before the loss, and at the embedding. The comparisons run on the tokens' device, and their results
are read at the end of the step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ...findings.rules.meaning.tokens import UsedPadding
from ...graph.events import TokenShift
from ...graph.immutable import mutable
from ...internals.frames import CodePosition
from ...internals.functions import PAD_SEQUENCE, TensorBase
from ...internals.hooks.calls import Called
from ...internals.hooks.nodes import Hooks
from ...internals.probes import Probe, fetch, probe, unobserved
from ...internals.tensors.memory import may_be_read
from ...tracing.nodes import GradFn, GradientEdge, sources_of
from ..listener import BackwardBegan, Listener
from ..program import Program
from ..program.events import UserLine

_MAX_CALLS = 64  # maximum number of calls to check in one step
_MAX_BATCHES = 4  # maximum number of batches of tokens to keep until the next backward
_MAX_TOKENS = 1 << 20  # maximum number of tokens of a batch that is kept
_MIN_ROWS = 2  # a repeated last token is padding if at least this many rows end with it
_LAGS = (0, 1, 2)
_MIN_COMPARED = 8  # minimum number of targets from which a shift is inferred
_MAX_NODES = 256  # maximum number of nodes to search upstream of a loss
_MAX_PADDED = 1 << 14  # maximum number of positions of padded sequences
_MAX_COLUMNS = 256  # number of elements of each position's gradient that are read
# Prefixes of the nodes up to which each position of a result stays apart from the others.
_PRODUCTS = ("Addmm", "Mm", "Linear", "Bmm", "Baddbmm", "Convolution", "ScaledDotProduct")


@mutable
class _EmbeddedTokens:
    """A batch of tokens that an embedding got, with its padding."""

    tokens: Tensor  # a copy
    token: Tensor  # the padding token; -1 if there is no padding
    classes: int  # vocabulary size of the embedding
    place: CodePosition | None
    number: int  # sequence number of the first node after the tokens were given

    @property
    def shape(self) -> tuple[int, int]:
        return self.tokens.shape[0], self.tokens.shape[1]


@mutable
class _PaddedSequences:
    """Sequences that `pad_sequence` has joined."""

    lengths: list[int]
    shape: tuple[int, int]  # sizes of the first two dimensions
    is_batch_first: bool
    place: CodePosition | None

    def counts(self, used: Sequence[bool]) -> list[int]:
        """Return [-1, number of used positions that are padding, number of other used positions].

        Args:
            used: for each position, in the order of `shape`, True if it is used.
        """
        columns = self.shape[1]
        found = [0, 0]
        for at, is_used in enumerate(used):
            row, column = divmod(at, columns)
            sequence, step = (row, column) if self.is_batch_first else (column, row)
            found[step < self.lengths[sequence]] += is_used
        return [-1, *found]


@mutable
class _PaddingUse:
    """A call, or a gradient, that may use padding."""

    event: UsedPadding
    place: CodePosition | None
    batch: _EmbeddedTokens | _PaddedSequences
    # [padding token, number of padding tokens that are used]; for a gradient, also the number of
    # other tokens that are used, and the number of all padding tokens. For padded sequences, True
    # for each position that is used.
    numbers: Probe
    node: int = -1  # sequence number of the node that gets the gradient; -1 for a call


@mutable
class _Attention:
    """An attention call that has no mask and is not causal."""

    function: str
    place: CodePosition | None
    length: int  # number of keys


@mutable
class _Shift:
    """A comparison of targets with tokens."""

    event: TokenShift
    place: CodePosition | None
    numbers: Probe  # for each lag, the number of unequal targets; -1 if too few were compared
    length: int  # number of tokens of a sequence
    only: bool  # True if no other batch of tokens was embedded since the last backward
    attentions: list[_Attention]


class TokenUses(Listener):
    """Listener that reports attention to padding, losses on padding, and shifted targets."""

    functions = frozenset(
        (
            F.embedding,
            F.cross_entropy,
            F.nll_loss,
            F.scaled_dot_product_attention,
            F.multi_head_attention_forward,
            PAD_SEQUENCE,
        )
    )

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._batches: list[_EmbeddedTokens] = []  # of the forward since the last backward
        self._padded: list[_PaddedSequences] = []
        self._attentions: list[_Attention] = []
        self._uses: list[_PaddingUse] = []
        self._shifts: list[_Shift] = []
        self._hooks = Hooks()

    def on_call_end(self, event: Called) -> None:
        func, args, kwargs = event.func, event.args, event.kwargs or {}
        if func is F.embedding:
            if len(self._batches) < _MAX_BATCHES:
                self._embed(event, args, kwargs)
        elif func is PAD_SEQUENCE:
            if len(self._padded) < _MAX_BATCHES and torch.is_grad_enabled():
                self._pad(event, args, kwargs)
        elif not self._batches or len(self._uses) >= _MAX_CALLS:
            return
        elif func in (F.cross_entropy, F.nll_loss):
            self._loss(event, args, kwargs)
        else:
            self._attend(event, args, kwargs)

    def _embed(self, event: Called, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Copy a batch of tokens, and search it for padding."""
        given = [*args, *(kwargs[key] for key in ("input", "weight") if key in kwargs)]
        if len(given) < 2 or not all(isinstance(each, Tensor) for each in given[:2]):
            return
        tokens, weight = given[:2]
        if TensorBase.dim(tokens) != 2 or not torch.is_grad_enabled():
            return
        if not all(type(n) is int for n in tokens.shape):
            return
        if not (min(tokens.shape) >= 2 and TensorBase.numel(tokens) <= _MAX_TOKENS):
            return
        if not may_be_read(tokens) or not may_be_read(weight):
            return
        index = args[2] if len(args) > 2 else kwargs.get("padding_idx")
        with unobserved():
            copy = torch.clone(tokens)
            if index is None:
                token = _trailing_token(copy)
            else:
                index = index % weight.shape[0]
                token = torch.where(torch.any(torch.eq(copy, index)), index, -1)
        place = self.program.place(event.frame)
        known = copy, token, int(weight.shape[0]), place, event.start
        self._batches.append(_EmbeddedTokens(*known))

    def _pad(self, event: Called, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Remember the lengths of sequences that are padded."""
        lengths = [int(each.shape[0]) for each in args[0]]
        first = bool(args[1] if len(args) > 1 else kwargs.get("batch_first", False))
        rows, columns = event.result.shape[:2]
        if min(lengths) < max(lengths) and rows * columns <= _MAX_PADDED:
            place = self.program.place(event.frame)
            self._padded.append(_PaddedSequences(lengths, (rows, columns), first, place))

    def _loss(self, event: Called, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Compare the targets of a loss with the tokens, if the loss's classes are tokens."""
        given = [*args[:2], *(kwargs[key] for key in ("input", "target") if key in kwargs)]
        if len(args) > 2 or len(given) < 2 or not all(isinstance(one, Tensor) for one in given):
            return  # arguments such as weights are passed by keyword nearly always
        scores, target = given[:2]
        if TensorBase.dim(scores) < 2 or TensorBase.is_floating_point(target):
            return
        ignored = kwargs.get("ignore_index", -100)
        place = self.program.place(event.frame)
        for batch in self._batches:
            if scores.shape[1] != batch.classes or target.device != batch.tokens.device:
                continue
            rows = _rows(target, batch.shape)
            if rows is None:
                continue
            compared = probe(lambda t, own: _differences(t, own, ignored), rows, batch.tokens)
            if compared is not None:
                self._shifts.append(
                    _Shift(
                        TokenShift(function=event.func.__name__),
                        place,
                        compared,
                        batch.shape[1],
                        len(self._batches) == 1,
                        [each for each in self._attentions if each.length == batch.shape[1]],
                    )
                )

    def _attend(self, event: Called, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Compare the mask of an attention with the padding of the tokens."""
        with_heads = event.func is F.scaled_dot_product_attention
        keys = args[1] if len(args) > 1 else kwargs.get("key")
        if not isinstance(keys, Tensor) or TensorBase.dim(keys) < 3:
            return
        length = keys.shape[-2 if with_heads else 0]
        mask, other = kwargs.get("attn_mask"), kwargs.get("is_causal")
        if with_heads:
            mask = args[3] if len(args) > 3 else mask
            other = other or (args[5] if len(args) > 5 else None)
        else:
            other = other or mask is not None
            mask = kwargs.get("key_padding_mask")
        if mask is None and not other and len(self._attentions) < _MAX_CALLS:
            place = self.program.place(event.frame)
            self._attentions.append(_Attention(event.func.__name__, place, length))
        for batch in self._batches:
            if length != batch.shape[1] or keys.device != batch.tokens.device:
                continue
            rows = None if mask is None else _masked_keys(mask, batch.shape, with_heads)
            if mask is None and not other:
                self._use(event, batch, "attended", probe(_padding, batch.token, batch.tokens))
            elif rows is not None:
                numbers = probe(_inverted_mask, batch.token, batch.tokens, rows)
                self._use(event, batch, "inverted", numbers)

    def _use(self, event: Called, batch: _EmbeddedTokens, use: Any, numbers: Probe | None) -> None:
        if numbers is not None:
            found = UsedPadding(use=use, function=event.func.__name__)
            place = self.program.place(event.frame)
            self._uses.append(_PaddingUse(found, place, batch, numbers))

    def on_backward_start(self, event: BackwardBegan) -> None:
        """Observe which positions of each batch get a gradient."""
        if not (self._batches or self._padded):
            return
        live, seen = event.live, []
        for fn in _last_products(live.ends):
            number = int(fn._sequence_nr())
            before = [batch for batch in self._batches if batch.number <= number]
            known: list[_EmbeddedTokens | _PaddedSequences] = [*self._padded, *before]
            seen.append((fn, partial(self._see, "results", known, number)))
        for batch in self._batches:
            if batch.number in live.numbers:
                at = live.numbers.index(batch.number)
                fn = next(islice(live.ids, at, None))
                seen.append((fn, partial(self._see, "only", [batch], batch.number)))
        self._hooks.put([(fn.register_prehook, hook) for fn, hook in seen])

    def _see(
        self,
        use: Any,
        batches: Sequence[_EmbeddedTokens | _PaddedSequences],
        number: int,
        gradients: Sequence[Tensor | None],
    ) -> None:
        """Find the positions of a result with a gradient that is not zero.

        Args:
            use: the use that the gradient shows.
            batches: the batches from which the result may have been computed.
            number: sequence number of the node.
            gradients: the gradients that the node gets.
        """
        gradient = next((each for each in gradients if each is not None), None)
        fitting = [] if gradient is None else [b for b in batches if _fits(gradient, b.shape)]
        if gradient is None or not fitting or len(self._uses) >= _MAX_CALLS:
            return
        batch = fitting[-1]
        if isinstance(batch, _PaddedSequences):
            numbers = probe(lambda own: _nonzero_positions(own, batch.shape), gradient)
        elif gradient.device == batch.tokens.device:
            numbers = probe(_used_positions, gradient, batch.token, batch.tokens)
        else:
            return
        if numbers is not None:
            self._uses.append(_PaddingUse(UsedPadding(use=use), None, batch, numbers, number))

    def on_backward_end(self, event: object) -> None:
        self._hooks.remove()
        self._batches, self._padded, self._attentions = [], [], []

    def on_step_end(self, event: None) -> None:
        self.close()

    def on_graphs_built(self, backwards: Any, graphs: Any) -> None:
        uses, self._uses = self._uses, []
        for each, row in zip(uses, fetch([one.numbers for one in uses]), strict=True):
            batch = each.batch
            if isinstance(batch, _PaddedSequences):
                row = batch.counts(row)
            elif not row or row[0] < 0:  # the tokens have no padding
                continue
            if not row[1] or (each.event.use == "only" and row[2]):
                continue  # no padding is used, or other tokens get a gradient, too
            if each.event.use == "results" and len(row) > 3 and not row[2] and row[1] == row[3]:
                continue  # the tokens are not padding: they mark where the model should answer
            among = batch.shape[0] * batch.shape[1]
            found: dict[str, Any] = {"token": row[0], "count": row[1], "among": among}
            numbers, embedded = (each.node,) if each.node >= 0 else (), UserLine(batch.place)
            self.events.note(each.event, each.place, numbers, embedded=embedded, **found)
        shifts, self._shifts = self._shifts, []
        for shift, row in zip(shifts, fetch([one.numbers for one in shifts]), strict=True):
            lags = [lag for lag, unequal in zip(_LAGS, row, strict=False) if not unequal]
            if len(lags) == 1:
                first = next(iter(shift.attentions), None)
                self.events.note(
                    shift.event,
                    shift.place,
                    lag=lags[0],
                    length=shift.length,
                    only=shift.only,
                    attention="" if first is None else first.function,
                    attended=UserLine(None if first is None else first.place),
                )

    def close(self) -> None:
        self._hooks.remove()
        self._batches, self._padded, self._attentions = [], [], []
        self._uses, self._shifts = [], []


def _trailing_token(tokens: Tensor) -> Tensor:
    """Return the padding token at the ends of rows; -1 if there is none, or all ends are equal."""
    ends = torch.eq(torch.select(tokens, 1, -1), torch.select(tokens, 1, -2))
    last = torch.where(ends, torch.select(tokens, 1, -1), -1)
    token = torch.amax(last)
    is_token = torch.eq(tokens, token)
    trailing = torch.cumprod(torch.flip(is_token, (1,)), 1)
    enough = torch.ge(torch.sum(torch.eq(last, token)), _MIN_ROWS)
    only = torch.eq(torch.sum(trailing), torch.sum(is_token))
    lengths = torch.sum(trailing, 1)
    differ = torch.ne(torch.amin(lengths), torch.amax(lengths))
    # A row that consists of the token alone is not a padded sequence.
    begun = torch.logical_not(torch.any(torch.eq(torch.select(tokens, 1, 0), token)))
    is_padding = torch.all(torch.stack((enough, only, differ, begun)))
    return torch.where(is_padding, token, -1)


def _last_products(ends: Iterable[GradientEdge]) -> list[GradFn]:
    """Return the last matrix products, convolutions and attentions before the roots of a graph."""
    waiting, known, found = [fn for fn, _ in ends], set[GradFn](), []
    while waiting and len(known) < _MAX_NODES:
        fn = waiting.pop()
        if fn in known:
            continue
        known.add(fn)
        if type(fn).__name__.startswith(_PRODUCTS):
            found.append(fn)
        else:
            waiting += sources_of(fn)
    return found


def _is_padding(token: Tensor, tokens: Tensor) -> Tensor:
    """Return True for each token that is padding: its row has no other token after it."""
    trailing = torch.cumprod(torch.flip(torch.eq(tokens, token), (1,)), 1)
    return torch.ne(torch.flip(trailing, (1,)), 0)


def _padding(token: Tensor, tokens: Tensor) -> Tensor:
    """Return [padding token, number of tokens that are padding]."""
    return torch.stack((token, torch.sum(_is_padding(token, tokens))))


def _fits(gradient: Tensor, shape: tuple[int, int]) -> bool:
    """Return True if a gradient has a row for each position of a batch of this shape."""
    dims = TensorBase.dim(gradient)
    is_flat = dims == 2 and gradient.shape[0] == shape[0] * shape[1]
    return is_flat or (dims > 2 and tuple(gradient.shape[:2]) == shape)


def _nonzero_positions(gradient: Tensor, shape: tuple[int, int]) -> Tensor:
    """Return True for each position of a batch whose gradient is not zero.

    Args:
        gradient: the gradient of a result, with a row for each position.
        shape: the shape of the batch.
    """
    rows = torch.reshape(gradient, (*shape, -1))
    rows = torch.narrow(rows, 2, 0, min(rows.shape[2], _MAX_COLUMNS))
    return torch.any(torch.ne(rows, 0), -1)


def _used_positions(gradient: Tensor, token: Tensor, tokens: Tensor) -> Tensor:
    """Return [padding token, number of padding used, of other tokens used, of all padding].

    Args:
        gradient: the gradient of a result, with a row for each token.
        token: the padding token.
        tokens: the tokens.
    """
    used = _nonzero_positions(gradient, (tokens.shape[0], tokens.shape[1]))
    padding = _is_padding(token, tokens)
    others = torch.logical_and(used, torch.logical_not(padding))
    used = torch.logical_and(used, padding)
    return torch.stack((token, torch.sum(used), torch.sum(others), torch.sum(padding)))


def _rows(target: Tensor, shape: tuple[int, int]) -> Tensor | None:
    """Return targets as a matrix with a row for each row of tokens; None if they do not fit.

    Args:
        target: the targets of a loss.
        shape: (rows, positions) of the tokens.
    """
    count, length = shape
    number = TensorBase.numel(target)
    long = number // count
    if number % count or not length - max(_LAGS) <= long <= length or long < 2:
        return None
    with unobserved():
        return torch.reshape(target, (count, long))


def _differences(target: Tensor, tokens: Tensor, ignored: Any) -> Tensor:
    """Return for each lag the number of unequal targets; -1 if too few were compared.

    A target is unequal at a lag if it differs from the token that many positions after its own.

    Args:
        target: the targets, with a row for each row of tokens.
        tokens: the tokens.
        ignored: `ignore_index` of the loss; targets with this value are not counted.
    """
    counted = torch.ne(target, ignored)
    numbers = []
    for lag in _LAGS:
        length = min(target.shape[1], tokens.shape[1] - lag)
        unequal = torch.ne(torch.narrow(target, 1, 0, length), torch.narrow(tokens, 1, lag, length))
        shown = torch.narrow(counted, 1, 0, length)
        number = torch.sum(torch.logical_and(unequal, shown))
        numbers.append(torch.where(torch.ge(torch.sum(shown), _MIN_COMPARED), number, -1))
    return torch.stack(numbers)


def _masked_keys(mask: Any, shape: tuple[int, int], with_heads: bool) -> Tensor | None:
    """Return which keys of each row a mask hides; None if it does not depend on the rows alone."""
    if not isinstance(mask, Tensor) or not may_be_read(mask):
        return None
    with unobserved():
        if with_heads:
            if TensorBase.dim(mask) != 4 or tuple(mask.shape[1:3]) != (1, 1):
                return None
            mask = mask[:, 0, 0]
        if tuple(mask.shape) != shape:
            return None
        if mask.dtype is torch.bool:
            return torch.logical_not(mask) if with_heads else mask
        return torch.lt(mask, -1e4)


def _inverted_mask(token: Tensor, tokens: Tensor, masked: Tensor) -> Tensor:
    """Return [padding token, number of padding tokens] if a mask is inverted.

    The number is 0 for any other mask.

    The mask is inverted if it hides exactly the tokens that are not padding.

    Args:
        token: the padding token.
        tokens: the tokens.
        masked: True for each token that the mask hides.
    """
    padding = torch.eq(tokens, token)
    inverted = torch.all(torch.eq(masked, torch.logical_not(padding)))
    return torch.stack((token, torch.where(inverted, torch.sum(padding), 0)))
