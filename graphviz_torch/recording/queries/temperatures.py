"""Find the numbers by which scores are scaled before a softmax, in both arguments of a loss."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import ClassVar, Literal

from torch import Tensor
from torch.nn import functional

from ...findings.rules.scores import SoftTargets
from ...graph.immutable import NamedTuple
from ...internals.frames import CodePosition, user_frame
from ...internals.functions import TensorBase, functions_named
from ...internals.guards import no_functions
from ...internals.hooks.calls import Called
from ..program import Program
from ..program.log import Found, Query, RowsOf
from ..program.rows import TrainingStepRow

_MAX_KNOWN = 256  # maximum number of tensors that are followed at a time

_PRODUCTS = functions_named("mul multiply __mul__ __rmul__")
_QUOTIENTS = functions_named("div true_divide __truediv__")
_SOFTMAXES = functions_named("softmax log_softmax") | {
    functional.softmax,
    functional.log_softmax,
}
_MOVES = functions_named(
    "neg __neg__ detach to float clone contiguous view reshape squeeze unsqueeze"
)


ScoreKind = Literal["scores", "probabilities", "log-probabilities"]
_LOG: ScoreKind = "log-probabilities"
_LOSSES = ("kl_div", "cross_entropy")


class ScoreRow(NamedTuple):
    """A call that scales scores, computes probabilities, or only moves or copies them."""

    given: int | None  # number of the tensor; None for one that is in no earlier row
    result: int
    scale: float = 1.0  # the number by which the call multiplies
    kind: ScoreKind | None = None  # None for a call that moves or copies


class DistributionLossRow(NamedTuple):
    """A loss, or a product, of two tensors of equal shapes."""

    function: str
    given: tuple[int | None, int | None]  # numbers of the tensors
    place: CodePosition | None
    number: int  # sequence number of the node


def scores(event: Called, program: Program) -> Iterable[ScoreRow | DistributionLossRow]:
    """Return a row of a call that scales scores, or computes probabilities or a loss of them."""
    func, args, result = event.func, event.args, event.result
    if func is functional.kl_div or func is functional.cross_entropy:
        return _losses(event, program)
    given = args[0] if args else None
    if type(given) is not Tensor or type(result) is not Tensor:
        return ()
    known, number = program.identities.find(given), program.identities.number
    if func in _SOFTMAXES:
        is_log = "log" in func.__name__
        return (ScoreRow(known, number(result), kind=_LOG if is_log else "probabilities"),)
    if func in _MOVES:
        return () if known is None else (ScoreRow(known, number(result)),)
    by = args[1] if len(args) > 1 else None
    if type(by) is Tensor and func in _PRODUCTS:
        return _losses(event, program)
    if type(by) not in (int, float) or not by:
        return ()
    return (ScoreRow(known, number(result), by if func in _PRODUCTS else 1 / by, "scores"),)


def _losses(event: Called, program: Program) -> Iterable[DistributionLossRow]:
    """Return a row of a loss of two tensors of equal shapes, if an earlier row has one of them."""
    kwargs = event.kwargs or {}
    given = [*event.args[:2], *(kwargs[key] for key in ("input", "target") if key in kwargs)]
    if len(given) != 2 or event.end == event.start or type(given[0]) is not Tensor:
        return ()
    find = program.identities.find
    known = find(given[0]), find(given[1])
    with no_functions():
        same = given[0].shape == given[1].shape and TensorBase.dim(given[0]) > 0
    if known == (None, None) or not same:
        return ()
    name, place = event.func.__name__.strip("_"), program.place(user_frame(event.frame))
    return (DistributionLossRow(name, known, place, event.end - 1),)


class Temperatures(Query):
    """Find losses of two distributions whose scores have different scales."""

    functions = frozenset(
        {*_PRODUCTS, *_QUOTIENTS, *_SOFTMAXES, *_MOVES}
        | {functional.kl_div, functional.cross_entropy}
    )
    rows_of: ClassVar[RowsOf] = {"on_call_end": scores}

    def __init__(self) -> None:
        # Scale of the scores, by number of the tensor.
        self._known: dict[int, tuple[float, ScoreKind]] = {}

    def on_score(self, row: ScoreRow) -> None:
        known = self._known.get(row.given or 0)
        scale, kind = known or (1.0, "scores")
        if (row.kind is None and known is None) or row.kind == "scores" != kind:
            return
        self._known[row.result] = scale * row.scale, row.kind or kind
        while len(self._known) > _MAX_KNOWN:
            del self._known[next(iter(self._known))]

    def on_distribution_loss(self, row: DistributionLossRow) -> Iterator[Found]:
        scores, target = [self._known.get(number or 0) for number in row.given]
        if row.function not in _LOSSES and target is not None and target[1] == _LOG:
            scores, target = target, scores
        scale, kind = scores or (1.0, "scores")
        wanted = "scores" if row.function == "cross_entropy" else _LOG
        if target is None or target[1] != "probabilities" or kind != wanted:
            return
        if scale != target[0]:
            found = SoftTargets(function=row.function, scale=scale, target_scale=target[0])
            yield Found(found, row.place, (row.number,))

    def on_training_step(self, row: TrainingStepRow) -> None:
        self._known = {}
