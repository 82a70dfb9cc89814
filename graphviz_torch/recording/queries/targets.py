"""Find targets of losses that are all ignored, all equal, or invalid for the loss.

The following are checked: class indices; targets of losses that take a sign, a probability or a
count; the targets of ctc_loss, which must not be its blank; and the log-probabilities of kl_div,
which must not exceed 0. Regression targets are checked only if a batch of a DataLoader contains
them, because targets that the program itself creates, as for an adversarial loss, may be constant
on purpose. Results on devices other than the
CPU are read at the end of the step.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torch.nn import functional as F

from ...findings.rules.meaning.targets import LossTarget, TargetKind
from ...findings.rules.means import MeanOfUnequalMeans
from ...graph.immutable import NamedTuple
from ...internals.frames import CodePosition, user_frame
from ...internals.functions import TensorBase
from ...internals.guards import no_functions
from ...internals.hooks.calls import Called
from ...internals.hooks.optimizers import BatchCame
from ...internals.probes import Probe, probe
from ...internals.tensors.memory import storage_id
from ...internals.tensors.pytree import flatten
from ...tracing.nodes import sources_of
from ..program import Program
from ..program.events import TensorRecord
from ..program.log import Found, Query, RowsOf

_MIN_TARGETS = 16  # fewer targets may be equal by chance, and are not reported
_MAX_CALLS = 256  # maximum number of loss calls to check in one step
_MAX_BATCHES = 8  # number of batches whose tensors are remembered
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


class TargetRow(NamedTuple):
    """A loss call, and numbers of its target."""

    event: LossTarget
    place: CodePosition | None
    operand: TensorRecord
    # If `event.what` is "constant": number of ignored targets, smallest and largest other target.
    # Otherwise: number of invalid values.
    numbers: Probe
    # True if class 0 may rightly be the target of every sample, as in a contrastive loss that puts
    # the score of the positive pair first.
    first_is_right: bool = False
    # (number of optimizer steps, number of backwards) before the call. None for a loss that does
    # not average over targets that are class indices.
    time: tuple[int, int] | None = None
    memory: int | None = None  # number of the storage of a regression target; else None


class BatchTensorsRow(NamedTuple):
    """The tensors of a batch that a DataLoader has returned."""

    storages: frozenset[int]  # numbers of their storages


def batch_tensors(event: BatchCame, program: Program) -> Iterable[BatchTensorsRow]:
    """Return the row of a batch."""
    parts = [tensor for _, tensor in flatten(event.batch) if storage_id(tensor)]
    return (BatchTensorsRow(frozenset(map(program.identities.memory_number, parts))),)


def targets(event: Called, program: Program) -> Iterable[TargetRow]:
    """Return the rows of a loss call, one for each check of its target."""
    func, args, kwargs = event.func, event.args, event.kwargs or {}
    if func is F.kl_div:
        scores, target = (_argument(args, kwargs, i, n) for i, n in enumerate(_KL_DIV))
        rows = [_check(event, program, scores, "input", _is_above)]
        if not kwargs.get("log_target"):
            rows.append(_check(event, program, target, "outside", _is_negative))
        return [row for row in rows if row is not None]
    if func is F.ctc_loss:
        given = [_argument(args, kwargs, i, name) for i, name in enumerate(_OF_CTC)]
        is_blank = partial(_is_blank, lengths=given[3], blank=given[4] or 0)
        rows = [_check(event, program, given[1], "blank", is_blank)]
        return [row for row in rows if row is not None]
    place, outside = _OUTSIDE.get(func, (1, None))
    target = _argument(args, kwargs, place, "target")
    rows = []
    if func in _NUMBERS:
        if type(target) is Tensor and program.identities.find_memory(target) is not None:
            rows.append(_check(event, program, target, "constant", None))
        if func in _DISTANCES:
            given = _argument(args, kwargs, 0, "input")
            rows.append(_check_range(event, program, given, target))
    elif outside is None and type(target) is Tensor and target.dtype.is_floating_point:
        outside = _is_no_probability
    if outside is not None or func not in _NUMBERS:
        what: TargetKind = "constant" if outside is None else "outside"
        rows.append(_check(event, program, target, what, outside))
    return [row for row in rows if row is not None]


def _check_range(event: Called, program: Program, given: Any, target: Any) -> TargetRow | None:
    """Start to check whether the activation that computed the input can return the target."""
    fn = given.grad_fn if type(given) is Tensor else None
    while fn is not None and fn.name() in _SHAPES:
        fn = next(iter(sources_of(fn)), None)
    ends = None if fn is None else _RANGES.get(fn.name())
    if ends is None or type(target) is not Tensor or not target.is_floating_point():
        return None
    return _check(event, program, target, "unreachable", partial(_is_beyond, ends=ends))


def _check(
    event: Called,
    program: Program,
    target: Any,
    what: TargetKind,
    outside: Callable[[Tensor], Tensor] | None,
) -> TargetRow | None:
    """Start the check of a target on the target's device.

    Args:
        event: the call of the loss.
        program: the recorded program.
        target: the tensor to check.
        what: the problem to search for.
        outside: returns a mask of invalid values. If None, check whether all targets are equal.
    """
    func, args, kwargs = event.func, event.args, event.kwargs or {}
    if type(target) is not Tensor or not TensorBase.numel(target):
        return None
    if not program.log.admits(TargetRow, most=_MAX_CALLS):
        return None
    if outside is not None:
        numbers = probe(lambda values: torch.sum(outside(values)), target)
    elif func in _NUMBERS:
        numbers = probe(_extremes, target)
    else:
        ignored = _ignore_index(func, args, kwargs)
        numbers = probe(lambda values: _classes(values, ignored), target)
    if numbers is None:
        return None
    outer = user_frame(event.frame)
    record = TensorRecord.create(target, program.label(target, outer))
    found = LossTarget(function=func.__name__, what=what)
    row = TargetRow(found, program.place(outer), record, numbers)
    if outside is not None:
        return row
    if func in _NUMBERS:
        return row._replace(memory=program.identities.find_memory(target))
    with no_functions():
        scores = _are_scores(args[0] if args else kwargs.get("input"))
    averages = kwargs.get("reduction", "mean") == "mean" and event.end > event.start
    time = program.steps.count, program.steps.backwards
    return row._replace(first_is_right=scores, time=time if averages else None)


class Targets(Query):
    """Find targets that are all ignored, all equal, or invalid for the loss."""

    functions = frozenset((*_OUTSIDE, *_CLASSES, *_NUMBERS, F.kl_div, F.ctc_loss))
    rows_of: ClassVar[RowsOf] = {"on_call_end": targets, "on_batch": batch_tensors}

    def __init__(self) -> None:
        self._rows: dict[tuple[LossTarget, CodePosition | None], list[TargetRow]] = {}
        # Numbers of the storages of the latest batches.
        self._batches: deque[frozenset[int]] = deque(maxlen=_MAX_BATCHES)

    def on_batch_tensors(self, row: BatchTensorsRow) -> None:
        self._batches.append(row.storages)

    def on_target(self, row: TargetRow) -> None:
        if row.memory is None or any(row.memory in batch for batch in self._batches):
            self._rows.setdefault((row.event, row.place), []).append(row)

    def events_of_run(self) -> Iterator[Found]:
        groups, self._rows = self._rows, {}
        for (event, place), rows in groups.items():
            numbers = [row.numbers.values or [] for row in rows]
            sizes = [math.prod(row.operand.tensor.shape) for row in rows]
            yield from _compare_sizes(event, place, rows, sizes)
            scores = any(row.first_is_right for row in rows)
            if not scores or any(each[1:] != [0, 0] for each in numbers):
                yield from _judge(event, place, rows[-1].operand, numbers, sizes)


def _judge(
    event: LossTarget,
    place: CodePosition | None,
    operand: TensorRecord,
    rows: Sequence[Sequence[Any]],
    sizes: Sequence[int],
) -> Iterator[Found]:
    """Yield the problems of the targets that one line passed to a loss.

    Args:
        event: the event to report; its `what` is the problem that was searched for.
        place: the line.
        operand: the target of the last call.
        rows: values of `TargetRow.numbers` of each call.
        sizes: number of targets of each call.
    """
    if event.what in ("outside", "input", "unreachable", "blank"):
        if bad := sum(row[0] for row in rows):
            yield Found(event, place, latest={"target": operand, "count": bad, "among": sum(sizes)})
        return
    ignored = sum(row[0] == size for row, size in zip(rows, sizes, strict=True))
    if ignored:
        found = replace(event, what="ignored")
        yield Found(found, place, latest={"target": operand, "count": ignored, "among": len(rows)})
        return
    counted = [size - int(row[0]) for row, size in zip(rows, sizes, strict=True)]
    if min(counted) >= _MIN_TARGETS and len({number for _, *ends in rows for number in ends}) == 1:
        found, count = replace(event, index=rows[0][1]), sum(counted)
        yield Found(found, place, latest={"target": operand, "count": count, "among": len(rows)})


def _compare_sizes(
    event: LossTarget, place: CodePosition | None, rows: Sequence[TargetRow], sizes: Sequence[int]
) -> Iterator[Found]:
    """Yield loss calls before one optimizer step that average very unequal numbers of targets.

    Only calls that each have their own backward are compared.

    Args:
        event: the event to report.
        place: the line that calls the loss.
        rows: the rows of the line's loss calls.
        sizes: number of targets of each call.
    """
    # Number of the step -> number of the backward -> number of averaged targets.
    counts: dict[int, dict[int, int]] = {}
    for row, size in zip(rows, sizes, strict=True):
        values = row.numbers.values
        if row.time is not None and values and size > values[0]:
            step, backward = row.time
            counts.setdefault(step, {})[backward] = size - int(values[0])
    for averaged in counts.values():
        least, most = min(averaged.values()), max(averaged.values())
        if most >= _UNEQUAL * least:
            found = MeanOfUnequalMeans(function=event.function)
            latest = {"calls": len(averaged), "least": least, "most": most}
            yield Found(found, place, latest=latest)


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
