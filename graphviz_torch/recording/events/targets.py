"""Targets that a loss ignores, cannot distinguish, or does not accept.

Checked are class indices, targets of losses that take a sign, a probability or a count, and the
log-probabilities of kl_div, which must not exceed 0. Regression targets are checked if a DataLoader
gave them in its last batch: targets made by the program, as for an adversarial loss, may be
constant. On other devices than the CPU the answer stays there until the recording ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torch.nn import functional as F

from ...graph import Graph
from ...graph.events import LossTarget, TargetKind
from ...internals.frames import CodePosition, user_frame
from ...internals.functions import TensorBase
from ...internals.guards import no_autograd
from ...internals.hooks.calls import Called
from ...internals.hooks.dispatch import unseen
from ...internals.hooks.modes import unseen_calls, unseen_operators
from ...internals.hooks.optimizers import BatchCame, BatchWatch
from ...internals.tensors.memory import may_be_read, storage_id, storage_ref
from ...internals.tensors.pytree import flatten
from ...tracing.nodes import sources_of
from ..backward import Backward
from ..listener import Listener, Watches
from ..program import Program
from ..program.events import TensorRecord

_ENOUGH = 16  # targets: of fewer, chance may make all alike
_MOST = 256  # calls whose answers wait
_SCALES = ("DivBackward0", "MulBackward0")
_SHAPES = ("ViewBackward0", "UnsafeViewBackward0", "SqueezeBackward0", "SqueezeBackward1")
_SCORES = ("CatBackward0", "StackBackward0", "BmmBackward0")
_NODES = 8  # that are asked what scores are


# By functions, not by methods: a program may have put its own in their place.
def _is_no_sign(target: Tensor) -> Tensor:
    return torch.ne(torch.abs(target), 1)


def _is_no_share(target: Tensor) -> Tensor:
    return torch.logical_or(torch.lt(target, 0), torch.gt(target, 1))


def _is_no_probability(target: Tensor) -> Tensor:
    """Return whether each row sums to more than 1."""
    sums = torch.sum(target, min(1, TensorBase.dim(target) - 1), keepdim=True)
    return torch.logical_or(_is_no_share(target), torch.gt(sums, _SUMS_TO))


def _is_negative(target: Tensor) -> Tensor:
    return torch.lt(target, 0)


def _is_above(scores: Tensor) -> Tensor:
    return torch.gt(scores, _ROUNDED)


# By loss: the place of its target among the arguments, and what of it does not fit.
_OUTSIDE: dict[Any, tuple[int, Callable[[Tensor], Tensor]]] = {
    F.cosine_embedding_loss: (2, _is_no_sign),
    F.margin_ranking_loss: (2, _is_no_sign),
    F.hinge_embedding_loss: (1, _is_no_sign),
    F.soft_margin_loss: (1, _is_no_sign),
    F.binary_cross_entropy_with_logits: (1, _is_no_share),
    F.poisson_nll_loss: (1, _is_negative),
}
_CLASSES = {F.cross_entropy: 4, F.nll_loss: 4}  # the place of ignore_index
# Losses whose targets are numbers.
_NUMBERS = frozenset(
    (
        F.mse_loss,
        F.l1_loss,
        F.smooth_l1_loss,
        F.huber_loss,
        F.binary_cross_entropy,
        F.binary_cross_entropy_with_logits,
    )
)
_KL_DIV = ("input", "target")
_ROUNDED = 1e-3  # by so much a log-probability may be above 0
_SUMS_TO = 1.05  # what the probabilities of a sample may sum to, rounded to bfloat16


@dataclass(slots=True)
class _Answer:
    """Properties of a call's target, as numbers on its device."""

    event: LossTarget
    place: CodePosition | None
    operand: TensorRecord
    numbers: Tensor  # of a target of classes: ignored, least, greatest; else: how many do not fit
    first_is_right: bool  # may 0 stand for the score of the positive, which is put first


class Targets(Listener):
    """Reports targets from which a loss learns nothing, or something unintended.

    Notes targets with which a loss teaches nothing, or something else than it is for.
    """

    needs = ("every_call",)
    functions = frozenset((*_OUTSIDE, *_CLASSES, *_NUMBERS, F.kl_div))
    watches: ClassVar[Watches] = {"on_batch": BatchWatch}

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._answers: list[_Answer] = []
        self._batch: dict[int, Any] = {}  # the memory of the last one, by its number

    def on_batch(self, event: BatchCame) -> None:
        parts = [tensor for _, tensor in flatten(event.batch) if storage_id(tensor)]
        self._batch = {storage_id(tensor): storage_ref(tensor) for tensor in parts}

    def on_call_end(self, event: Called) -> None:
        func, args, kwargs = event.func, event.args, event.kwargs or {}
        if func is F.kl_div:
            scores, target = (_argument(args, kwargs, i, n) for i, n in enumerate(_KL_DIV))
            self._look(event, scores, "input", _is_above)
            if not kwargs.get("log_target"):
                self._look(event, target, "outside", _is_negative)
            return
        place, outside = _OUTSIDE.get(func, (1, None))
        target = _argument(args, kwargs, place, "target")
        if func in _NUMBERS:
            if type(target) is Tensor and self._is_of_batch(target):
                self._look(event, target, "constant", None)
            if outside is None:
                return
        if outside is None and type(target) is Tensor and target.dtype.is_floating_point:
            outside = _is_no_probability
        self._look(event, target, "constant" if outside is None else "outside", outside)

    def _look(
        self,
        event: Called,
        target: Any,
        what: TargetKind,
        outside: Callable[[Tensor], Tensor] | None,
    ) -> None:
        """Compute the properties of a target; the classes that occur if `outside` is None."""
        func, args, kwargs = event.func, event.args, event.kwargs or {}
        if type(target) is not Tensor or len(self._answers) >= _MOST:
            return
        with unseen_calls(), unseen(), unseen_operators(), no_autograd():
            count = TensorBase.numel(target)
            if not count or target.device.type == "meta" or not may_be_read(target):
                return
            if outside is not None:
                numbers = torch.reshape(torch.sum(outside(target)), (1,))
            elif func in _NUMBERS:
                numbers = _ends(target)
            else:
                numbers = _classes(target, _ignored(func, args, kwargs))
        outer = user_frame(event.frame)
        found = LossTarget(function=func.__name__, what=what)
        record = TensorRecord.of(target, self.program.label(target, outer))
        with unseen_calls():
            classes = outside is None and func not in _NUMBERS
            scores = classes and _are_scores(args[0] if args else kwargs.get("input"))
        self._answers.append(_Answer(found, self.program.place(outer), record, numbers, scores))

    def _is_of_batch(self, target: Tensor) -> bool:
        known = self._batch.get(storage_id(target))
        return known is not None and not known.expired()

    def on_step_end(self, event: None) -> None:
        self._answers = []

    def on_graphs_built(self, backwards: Sequence[Backward], graphs: Sequence[Graph]) -> None:
        groups: dict[tuple[LossTarget, CodePosition | None], list[_Answer]] = {}
        for answer in self._answers:
            groups.setdefault((answer.event, answer.place), []).append(answer)
        for (event, place), answers in groups.items():
            with unseen_calls(), unseen(), unseen_operators():
                rows = [TensorBase.tolist(answer.numbers) for answer in answers]
            sizes = [math.prod(answer.operand.tensor.shape) for answer in answers]
            scores = any(answer.first_is_right for answer in answers)
            if not scores or any(row[1:] != [0, 0] for row in rows):
                self._judge(event, place, answers[-1].operand, rows, sizes)
        self._answers = []

    def _judge(
        self,
        event: LossTarget,
        place: CodePosition | None,
        operand: TensorRecord,
        rows: Sequence[Sequence[Any]],
        sizes: Sequence[int],
    ) -> None:
        """Note problems of the targets given to the loss of one line.

        Note what is the matter with the targets that a line's loss was given.
        """
        if event.what in ("outside", "input"):
            if bad := sum(row[0] for row in rows):
                self.events.note(event, place, target=operand, count=bad, among=sum(sizes))
            return
        ignored = sum(row[0] == size for row, size in zip(rows, sizes, strict=True))
        if ignored:
            found = replace(event, what="ignored")
            self.events.note(found, place, target=operand, count=ignored, among=len(rows))
            return
        counted = [size - int(row[0]) for row, size in zip(rows, sizes, strict=True)]
        if min(counted) >= _ENOUGH and len({number for _, *ends in rows for number in ends}) == 1:
            found = replace(event, index=rows[0][1])
            self.events.note(found, place, target=operand, count=sum(counted), among=len(rows))

    def close(self) -> None:
        self._answers, self._batch = [], {}


def _argument(args: Sequence[Any], kwargs: Mapping[str, Any], place: int, name: str) -> Any:
    return args[place] if len(args) > place else kwargs.get(name)


def _classes(target: Tensor, ignored: int) -> Tensor:
    """Return the number of ignored targets, and the smallest and largest of the others."""
    skip = torch.eq(target, ignored)
    info = torch.iinfo(target.dtype)
    least = torch.amin(torch.masked_fill(target, skip, info.max))
    greatest = torch.amax(torch.masked_fill(target, skip, info.min))
    return torch.stack((torch.sum(skip), TensorBase.long(least), TensorBase.long(greatest)))


def _ends(target: Tensor) -> Tensor:
    """Return 0 ignored targets, and the smallest and largest."""
    ends = torch.stack((torch.amin(target), torch.amax(target)))
    return torch.cat((torch.zeros(1, device=target.device), ends.float()))


def _are_scores(values: Any) -> bool:
    """Return True for scores of pairs, as in a contrastive loss: concatenated, products of
    features, or one number per pair.

    Tensors without a gradient do not tell.
    """
    if type(values) is not Tensor or values.grad_fn is None:
        return True
    width, fns = values.shape[-1:], [values.grad_fn]
    for fn in fns:
        name = fn.name()
        if name in _SHAPES:
            before: Any = fn
            if tuple(before._saved_self_sym_sizes)[-1:] != width:
                return True
        if name in _SCORES or (name == "MmBackward0" and not any(map(_is_weight, sources_of(fn)))):
            return True
        if (name in _SCALES or name in _SHAPES) and len(fns) < _NODES:
            fns += sources_of(fn)
    return False


def _is_weight(fn: Node) -> bool:
    """Return True if the node is of a parameter, or of a transposed one."""
    turned = sources_of(fn) if fn.name() in ("TBackward0", "TransposeBackward0") else [fn]
    return any(each.name().endswith("AccumulateGrad") for each in turned)


def _ignored(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    place = _CLASSES[func]
    found = args[place] if len(args) > place else kwargs.get("ignore_index", -100)
    return found if type(found) is int else -100
