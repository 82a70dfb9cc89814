"""Find targets of losses that are all ignored, all equal, or invalid for the loss.

The following are checked: class indices; targets of losses that take a sign, a probability or a
count; the targets of ctc_loss, which must not be its blank; and the log-probabilities of kl_div,
which must not exceed 0. Regression targets are checked
only if the last batch of a DataLoader contains them, because targets that the program itself
creates, as for an adversarial loss, may be constant on purpose. Results on devices other than the
CPU are read at the end of the step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torch.nn import functional as F

from ...findings.rules.meaning.targets import LossTarget, TargetKind
from ...findings.rules.means import MeanOfUnequalMeans
from ...graph import Graph
from ...graph.immutable import mutable
from ...internals.frames import CodePosition, user_frame
from ...internals.functions import TensorBase
from ...internals.guards import no_functions
from ...internals.hooks.calls import Called
from ...internals.hooks.optimizers import BatchCame, BatchWatch, Stepping
from ...internals.probes import Probe, fetch, probe
from ...internals.tensors.memory import storage_id, storage_ref
from ...internals.tensors.pytree import flatten
from ...tracing.nodes import sources_of
from ..backward import Backward
from ..listener import BackwardEnded, Listener, Watches
from ..program import Program
from ..program.events import TensorRecord

_MIN_TARGETS = 16  # fewer targets may be equal by chance, and are not reported
_MAX_CALLS = 256  # maximum number of loss calls to check in one step
_SCALES = ("DivBackward0", "MulBackward0")
_SHAPES = ("ViewBackward0", "UnsafeViewBackward0", "SqueezeBackward0", "SqueezeBackward1")
_SCORES = ("CatBackward0", "StackBackward0", "BmmBackward0")
_UNEQUAL = 2  # calls are reported if one averages this many times as many targets as another
_MAX_NODES = 8  # maximum number of nodes to search upstream of a loss's input


# The functions below call torch's functions, because a program may have replaced tensor methods.
def _is_no_sign(target: Tensor) -> Tensor:
    return torch.ne(torch.abs(target), 1)


def _is_no_share(target: Tensor) -> Tensor:
    return torch.logical_or(torch.lt(target, 0), torch.gt(target, 1))


def _is_no_probability(target: Tensor) -> Tensor:
    """Return a mask of targets that cannot be probabilities.

    They are outside of [0, 1], or in a row whose sum exceeds 1.
    """
    sums = torch.sum(target, min(1, TensorBase.dim(target) - 1), keepdim=True)
    return torch.logical_or(_is_no_share(target), torch.gt(sums, _SUMS_TO))


def _is_negative(target: Tensor) -> Tensor:
    return torch.lt(target, 0)


def _is_beyond(target: Tensor, ends: tuple[float, float]) -> Tensor:
    low, high = torch.lt(target, ends[0] - _ROUNDED), torch.gt(target, ends[1] + _ROUNDED)
    return torch.logical_or(low, high)


def _is_above(scores: Tensor) -> Tensor:
    return torch.gt(scores, _ROUNDED)


def _is_blank(target: Tensor, lengths: Any, blank: int) -> Tensor:
    """Return a mask of the targets that are the blank of CTC and no padding."""
    blanks = torch.eq(target, blank)
    if TensorBase.dim(target) == 2:
        ends = torch.as_tensor(lengths, device=target.device)
        positions = torch.arange(target.shape[1], device=target.device)
        blanks = torch.logical_and(blanks, torch.lt(positions, torch.unsqueeze(ends, -1)))
    return blanks


# Loss -> position of the target among the arguments, and a function that masks invalid values.
_OUTSIDE: dict[Any, tuple[int, Callable[[Tensor], Tensor]]] = {
    F.cosine_embedding_loss: (2, _is_no_sign),
    F.margin_ranking_loss: (2, _is_no_sign),
    F.hinge_embedding_loss: (1, _is_no_sign),
    F.soft_margin_loss: (1, _is_no_sign),
    F.binary_cross_entropy_with_logits: (1, _is_no_share),
    F.poisson_nll_loss: (1, _is_negative),
}
_OF_CTC = ("input", "targets", "input_lengths", "target_lengths", "blank")
# Loss with class indices -> position of ignore_index among the arguments.
_CLASSES = {F.cross_entropy: 4, F.nll_loss: 4}
# Losses with regression targets.
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
_DISTANCES = frozenset((F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss))
# The smallest and the largest value that an activation returns, by the name of its node.
_RANGES = {
    "SigmoidBackward0": (0.0, 1.0),
    "SoftmaxBackward0": (0.0, 1.0),
    "TanhBackward0": (-1.0, 1.0),
    "ReluBackward0": (0.0, math.inf),
}
_KL_DIV = ("input", "target")
_ROUNDED = 1e-3  # largest log-probability that is explained by rounding errors
_SUMS_TO = 1.05  # largest sum of probabilities that is explained by rounding errors of bfloat16


@mutable
class _TargetCheck:
    """The check of one loss call's target, whose result is still on the target's device."""

    event: LossTarget
    place: CodePosition | None
    operand: TensorRecord
    # If `event.what` is "constant": number of ignored targets, smallest and largest other target.
    # Otherwise: number of invalid values.
    numbers: Probe
    # True if class 0 may rightly be the target of every sample, as in a contrastive loss that puts
    # the score of the positive pair first.
    first_is_right: bool
    # (number of optimizer steps, number of backwards) before the call. None for a loss that does
    # not average over targets that are class indices.
    time: tuple[int, int] | None


class Targets(Listener):
    """Listener that reports targets that are all ignored, all equal, or invalid for the loss."""

    needs = ("every_call",)
    functions = frozenset((*_OUTSIDE, *_CLASSES, *_NUMBERS, F.kl_div, F.ctc_loss))
    watches: ClassVar[Watches] = {"on_batch": BatchWatch}

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._checks: list[_TargetCheck] = []
        self._batch: dict[int, Any] = {}  # storages of the last batch, by storage id
        self._steps, self._backwards = 0, 0

    def on_batch(self, event: BatchCame) -> None:
        parts = [tensor for _, tensor in flatten(event.batch) if storage_id(tensor)]
        self._batch = {storage_id(tensor): storage_ref(tensor) for tensor in parts}

    def on_optimizer_step_start(self, event: Stepping) -> None:
        self._steps += 1

    def on_backward_end(self, event: BackwardEnded) -> None:
        self._backwards += event.live.call.accumulates

    def on_call_end(self, event: Called) -> None:
        func, args, kwargs = event.func, event.args, event.kwargs or {}
        if func is F.kl_div:
            scores, target = (_argument(args, kwargs, i, n) for i, n in enumerate(_KL_DIV))
            self._look(event, scores, "input", _is_above)
            if not kwargs.get("log_target"):
                self._look(event, target, "outside", _is_negative)
            return
        if func is F.ctc_loss:
            given = [_argument(args, kwargs, i, name) for i, name in enumerate(_OF_CTC)]
            lengths, blank = given[3], given[4] or 0
            self._look(event, given[1], "blank", partial(_is_blank, lengths=lengths, blank=blank))
            return
        place, outside = _OUTSIDE.get(func, (1, None))
        target = _argument(args, kwargs, place, "target")
        if func in _NUMBERS:
            if type(target) is Tensor and self._is_of_batch(target):
                self._look(event, target, "constant", None)
            if func in _DISTANCES:
                self._look_at_range(event, _argument(args, kwargs, 0, "input"), target)
            if outside is None:
                return
        if outside is None and type(target) is Tensor and target.dtype.is_floating_point:
            outside = _is_no_probability
        self._look(event, target, "constant" if outside is None else "outside", outside)

    def _look_at_range(self, event: Called, given: Any, target: Any) -> None:
        """Start to check whether the activation that computed the input can return the target."""
        fn = given.grad_fn if type(given) is Tensor else None
        while fn is not None and fn.name() in _SHAPES:
            fn = next(iter(sources_of(fn)), None)
        ends = None if fn is None else _RANGES.get(fn.name())
        if ends is not None and type(target) is Tensor and target.is_floating_point():
            self._look(event, target, "unreachable", partial(_is_beyond, ends=ends))

    def _look(
        self,
        event: Called,
        target: Any,
        what: TargetKind,
        outside: Callable[[Tensor], Tensor] | None,
    ) -> None:
        """Start the check of a target on the target's device.

        Args:
            event: the call of the loss.
            target: the tensor to check.
            what: the problem to search for.
            outside: returns a mask of invalid values. If None, check whether all targets are equal.
        """
        func, args, kwargs = event.func, event.args, event.kwargs or {}
        if (
            type(target) is not Tensor
            or not TensorBase.numel(target)
            or len(self._checks) >= _MAX_CALLS
        ):
            return
        if outside is not None:
            numbers = probe(lambda values: torch.sum(outside(values)), target)
        elif func in _NUMBERS:
            numbers = probe(_extremes, target)
        else:
            ignored = _ignore_index(func, args, kwargs)
            numbers = probe(lambda values: _classes(values, ignored), target)
        if numbers is None:
            return
        outer = user_frame(event.frame)
        found = LossTarget(function=func.__name__, what=what)
        record = TensorRecord.create(target, self.program.label(target, outer))
        with no_functions():
            classes = outside is None and func not in _NUMBERS
            scores = classes and _are_scores(args[0] if args else kwargs.get("input"))
        averages = classes and kwargs.get("reduction", "mean") == "mean" and event.end > event.start
        time = (self._steps, self._backwards) if averages else None
        place = self.program.place(outer)
        self._checks.append(_TargetCheck(found, place, record, numbers, scores, time))

    def _is_of_batch(self, target: Tensor) -> bool:
        known = self._batch.get(storage_id(target))
        return known is not None and not known.expired()

    def on_step_end(self, event: None) -> None:
        self._checks = []

    def on_graphs_built(self, backwards: Sequence[Backward], graphs: Sequence[Graph]) -> None:
        groups: dict[tuple[LossTarget, CodePosition | None], list[_TargetCheck]] = {}
        for answer in self._checks:
            groups.setdefault((answer.event, answer.place), []).append(answer)
        for (event, place), answers in groups.items():
            rows = fetch([answer.numbers for answer in answers])
            sizes = [math.prod(answer.operand.tensor.shape) for answer in answers]
            self._compare_sizes(event, place, answers, rows, sizes)
            scores = any(answer.first_is_right for answer in answers)
            if not scores or any(row[1:] != [0, 0] for row in rows):
                self._judge(event, place, answers[-1].operand, rows, sizes)
        self._checks = []

    def _judge(
        self,
        event: LossTarget,
        place: CodePosition | None,
        operand: TensorRecord,
        rows: Sequence[Sequence[Any]],
        sizes: Sequence[int],
    ) -> None:
        """Report the problems of the targets that one line passed to a loss.

        Args:
            event: the event to report; its `what` is the problem that was searched for.
            place: the line.
            operand: the target of the last call.
            rows: `_TargetCheck.numbers` of each call.
            sizes: number of targets of each call.
        """
        if event.what in ("outside", "input", "unreachable", "blank"):
            if bad := sum(row[0] for row in rows):
                self.events.note(event, place, target=operand, count=bad, among=sum(sizes))
            return
        ignored = sum(row[0] == size for row, size in zip(rows, sizes, strict=True))
        if ignored:
            found = replace(event, what="ignored")
            self.events.note(found, place, target=operand, count=ignored, among=len(rows))
            return
        counted = [size - int(row[0]) for row, size in zip(rows, sizes, strict=True)]
        if (
            min(counted) >= _MIN_TARGETS
            and len({number for _, *ends in rows for number in ends}) == 1
        ):
            found = replace(event, index=rows[0][1])
            self.events.note(found, place, target=operand, count=sum(counted), among=len(rows))

    def _compare_sizes(
        self,
        event: LossTarget,
        place: CodePosition | None,
        answers: Sequence[_TargetCheck],
        rows: Sequence[Sequence[Any]],
        sizes: Sequence[int],
    ) -> None:
        """Report loss calls before one optimizer step that average very unequal numbers of targets.

        Only calls that each have their own backward are compared.

        Args:
            event: the event to report.
            place: the line that calls the loss.
            answers: the checks of the line's loss calls.
            rows: `_TargetCheck.numbers` of each call.
            sizes: number of targets of each call.
        """
        # Number of the step -> number of the backward -> number of averaged targets.
        counts: dict[int, dict[int, int]] = {}
        for answer, row, size in zip(answers, rows, sizes, strict=True):
            if answer.time is not None and row and size > row[0]:
                step, backward = answer.time
                counts.setdefault(step, {})[backward] = size - int(row[0])
        for averaged in counts.values():
            least, most = min(averaged.values()), max(averaged.values())
            if most >= _UNEQUAL * least:
                found = MeanOfUnequalMeans(function=event.function)
                self.events.note(found, place, calls=len(averaged), least=least, most=most)

    def close(self) -> None:
        self._checks, self._batch = [], {}


def _argument(args: Sequence[Any], kwargs: Mapping[str, Any], place: int, name: str) -> Any:
    return args[place] if len(args) > place else kwargs.get(name)


def _classes(target: Tensor, ignored: int) -> Tensor:
    """Return the number of ignored targets, and the smallest and largest counted target.

    Args:
        target: class indices.
        ignored: the class index that the loss ignores.
    """
    skip = torch.eq(target, ignored)
    info = torch.iinfo(target.dtype)
    least = torch.amin(torch.masked_fill(target, skip, info.max))
    greatest = torch.amax(torch.masked_fill(target, skip, info.min))
    return torch.stack((torch.sum(skip), TensorBase.long(least), TensorBase.long(greatest)))


def _extremes(target: Tensor) -> Tensor:
    """Return [0, smallest target, largest target], for a loss that cannot ignore targets."""
    ends = torch.stack((torch.amin(target), torch.amax(target)))
    return torch.cat((torch.zeros(1, device=target.device), ends.float()))


def _are_scores(values: Any) -> bool:
    """Return True if the input of a loss may consist of scores of pairs, as in a contrastive loss.

    Such scores are concatenated, are products of features, or are reshaped from one number per
    pair. For a tensor without a node the result is True, because its computation is unknown.
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
        if (name in _SCALES or name in _SHAPES) and len(fns) < _MAX_NODES:
            fns += sources_of(fn)
    return False


def _is_weight(fn: Node) -> bool:
    """Return True if a node is an AccumulateGrad, or the transpose of a leaf."""
    turned = sources_of(fn) if fn.name() in ("TBackward0", "TransposeBackward0") else [fn]
    return any(each.name().endswith("AccumulateGrad") for each in turned)


def _ignore_index(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    place = _CLASSES[func]
    found = args[place] if len(args) > place else kwargs.get("ignore_index", -100)
    return found if type(found) is int else -100
