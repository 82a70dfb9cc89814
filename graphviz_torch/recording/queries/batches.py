"""Find batches returned before, steps whose loss depends on a single row, and pixels from 0 to 255.

A hash covers up to 65,536 values. Tensors with a single sample, tensors whose first two samples are
equal (as in synthetic data), and short tensors such as labels are ignored.

The user's own code takes rows of tensors by an index, as in `x[:1]` or `x[0]`. A step is counted if
it takes only one row of at least two tensors. The rule checks that the loss depends on these rows
alone. The tensors of two steps have to be different: a program may train on a single sample on
purpose.

The first layer of each line is checked once in a run, on its device.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn import functional as F

from ...findings.rules.meaning.batches import RowOfData, UnscaledPixels
from ...findings.rules.meaning.calls import RepeatedBatch, RepeatKind
from ...graph.immutable import NamedTuple, mutable
from ...internals.frames import OWN, CodePosition, user_frame
from ...internals.functions import TensorBase
from ...internals.hooks.calls import Called
from ...internals.hooks.optimizers import BatchCame
from ...internals.probes import Probe, probe, unobserved
from ...internals.tensors.memory import has_memory
from ...internals.tensors.pytree import flatten
from ..program import Program
from ..program.events import MethodCall
from ..program.log import Found, Query, RowsOf
from ..program.rows import BatchRow, Hashes, ResumeRow, StepEndRow

_MIN_REPEATS = 2  # fewer repeated batches are not reported
_MIN_EQUAL = 4  # a pass is reported if this many consecutive batches repeat the previous pass
_MAX_KEPT = 256  # number of batches of a pass with which the next pass is compared
_MIN_PASSES = 3  # a loader is reported if this many consecutive passes read only the same batch
_MAX_LOADERS = 16
_MIN_ELEMENTS = 16  # smaller tensors are ignored; integer tensors need eight times as many elements
_MAX_VALUES = 1 << 16  # about this many values of a tensor are hashed


@mutable
class _Pass:
    """The current pass of a DataLoader over its data set."""

    first: Hashes  # hashes of the first batch
    others: deque[Hashes]  # the latest batches, one for each of the other workers
    count: int = 0  # number of batches so far
    again: int = 0  # number of batches that are equal to one of `others`
    same: int = 1  # number of consecutive passes whose only batch was equal to `first`
    kept: list[Hashes] = field(default_factory=list)  # hashes of the first batches of this pass
    before: list[Hashes] = field(default_factory=list)  # `kept` of the previous pass
    # Number of consecutive batches that repeat the previous pass; carried over to the next pass.
    equal: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)  # `BatchRow.settings` at the start


def batches(event: BatchCame, program: Program) -> Iterable[BatchRow]:
    """Return the row of a batch."""
    row = event.loader, event.number, _hashes(event.batch), program.place(event.frame), event.left
    return (BatchRow(*row, event.workers, event.stream, event.shuffles, event.settings),)


class RepeatedBatches(Query):
    """Find batches equal to earlier ones, and workers with an old copy of the data set."""

    rows_of: ClassVar[RowsOf] = {"on_batch": batches}
    sees_later_steps = True

    def __init__(self) -> None:
        self._passes: dict[int, _Pass] = {}  # by `BatchRow.loader`
        self._stepped = False  # True if an optimizer stepped since the last batch

    def on_step_end(self, row: StepEndRow) -> None:
        self._stepped = True

    def on_resume(self, row: ResumeRow) -> None:
        self._passes.clear()  # batches during the pause were not observed

    def on_batch(self, row: BatchRow) -> Iterator[Found]:
        now = self._pass_of(row)
        now.settings = now.settings or row.settings
        changed = [n for n, v in row.settings.items() if now.settings.get(n, v) != v]
        if changed:
            stale = RepeatedBatch(what="persistent", workers=row.workers, attribute=changed[0])
            yield Found(stale, row.place)
        now.count += 1
        now.again += any(not row.hashes.items().isdisjoint(other.items()) for other in now.others)
        now.others.append(row.hashes)
        repeats = row.shuffles and now.count <= len(now.before)
        repeats = repeats and bool(row.hashes) and row.hashes == now.before[now.count - 1]
        now.equal = now.equal + 1 if repeats else 0
        if len(now.kept) < _MAX_KEPT:
            now.kept.append(row.hashes)
        if now.again >= _MIN_REPEATS:
            yield _repeat_event(row, now.again, now.count)
        elif now.equal >= _MIN_EQUAL and row.left == 0:
            latest = {"count": now.equal, "seeded": MethodCall("manual_seed")}
            yield Found(RepeatedBatch(what="pass"), row.place, latest=latest)
        elif now.same >= _MIN_PASSES and row.number == 0 and row.left and len(self._passes) == 1:
            yield _repeat_event(row, now.same)

    def _pass_of(self, row: BatchRow) -> _Pass:
        """Return the pass that a batch belongs to. The first batch begins a new pass."""
        stepped, self._stepped = self._stepped, False
        before = self._passes.get(row.loader)
        if before is not None and row.number:
            return before
        others = deque[Hashes](maxlen=max(1, row.workers - 1))
        now = self._passes[row.loader] = _Pass(row.hashes, others)
        while len(self._passes) > _MAX_LOADERS:
            del self._passes[next(iter(self._passes))]
        if before is not None:
            now.before, now.equal, now.settings = before.kept, before.equal, before.settings
            if before.count == 1 and stepped and row.hashes == before.first:
                now.same = before.same + bool(row.hashes)
        return now


def _repeat_event(row: BatchRow, count: int, among: int = 0) -> Found:
    """Return the event for repeated batches.

    Args:
        row: the latest of these batches.
        count: number of repeated batches, or of passes that read only the same batch.
        among: number of batches in the pass; 0 for passes of one batch.
    """
    what: RepeatKind = "first" if not among else "stream" if row.is_stream else "workers"
    what = "twice" if among and row.workers < 2 else what
    latest = {"count": count, "among": among}
    return Found(RepeatedBatch(what=what, workers=row.workers), row.place, latest=latest)


def _hashes(batch: Any) -> Hashes:
    """Return the hashes of those tensors in a batch that distinguish it from other batches."""
    with unobserved():
        return {
            path: _hash(tensor)
            for path, tensor in flatten(batch, ask=False)
            if type(tensor) is Tensor
            and tensor.is_cpu
            and has_memory(tensor)
            and _is_distinctive(tensor)
        }


def _is_distinctive(tensor: Tensor) -> bool:
    few = _MIN_ELEMENTS if tensor.dtype.is_floating_point else 8 * _MIN_ELEMENTS
    if TensorBase.dim(tensor) == 0 or tensor.shape[0] < 2 or TensorBase.numel(tensor) < few:
        return False
    return not torch.equal(torch.select(tensor, 0, 0), torch.select(tensor, 0, 1))


def _hash(tensor: Tensor) -> int:
    flat = TensorBase.reshape(tensor, (-1,))
    part = TensorBase.contiguous(flat[:: 1 + len(flat) // _MAX_VALUES])
    return hash(bytes(TensorBase.numpy(TensorBase.view(part, torch.uint8))))


_MIN_ROWS, _MIN_TENSORS, _MIN_STEPS = 4, 2, 2
_MAX_TENSORS = 64  # number of tensors of a step that are remembered
_MAX_NAMED = 1024  # number of tensors of a training step whose names are looked up


class IndexRow(NamedTuple):
    """An index of the user's own code into a tensor."""

    tensor: int  # number of the tensor
    label: str
    rows: int
    number: int | None  # the number of the only row that the index takes; None for several rows
    shape: tuple[int, ...]  # shape of the result
    place: CodePosition | None


def indices(event: Called, program: Program) -> Iterable[IndexRow]:
    """Return a row of an index of the user's own code into a tensor without a gradient."""
    tensor, *more = event.args
    if event.end > event.start or type(tensor) is not Tensor or not torch.is_grad_enabled():
        return ()
    rows = tensor.shape[0] if TensorBase.dim(tensor) else 0
    if rows < _MIN_ROWS or program.stack.files[event.frame.f_code.co_filename] != OWN:
        return ()
    index, number = _row(more[0]) if more else None, program.identities.number(tensor)
    row = IndexRow(number, "", rows, index, tuple(event.result.shape), None)
    # Only the first index into a tensor before a step needs its name.
    key = program.steps.count, number
    if index is not None and program.log.admits(IndexRow, key, most=_MAX_NAMED):
        label = program.label(tensor, user_frame(event.frame))
        row = row._replace(label=label, place=program.place(event.frame))
    return (row,)


class SingleRows(Query):
    """Find losses that depend on one row of the data."""

    functions = frozenset((TensorBase.__getitem__, Tensor.__getitem__))
    rows_of: ClassVar[RowsOf] = {"on_call_end": indices}

    def __init__(self) -> None:
        self._taken: dict[int, IndexRow] = {}  # in this step, by number of the tensor
        self._last: list[IndexRow] = []  # the rows of the last step that was counted
        self._steps = 0

    def on_index(self, row: IndexRow) -> None:
        known = self._taken.get(row.tensor)
        if known is not None and known.number != row.number:
            self._taken[row.tensor] = known._replace(number=None)
        elif known is None and len(self._taken) < _MAX_TENSORS:
            self._taken[row.tensor] = row

    def on_step_end(self, row: StepEndRow) -> Iterator[Found]:
        taken, self._taken = self._taken, {}
        single = [each for each in taken.values() if each.number is not None]
        single.sort(key=lambda each: 0 if each.place is None else each.place[1])
        same = [s for s in single if (s.rows, s.number) == (single[0].rows, single[0].number)]
        before = {each.tensor for each in self._last}
        if len(same) < _MIN_TENSORS or any(each.tensor in before for each in same):
            return
        self._steps, self._last = self._steps + 1, same
        if self._steps >= _MIN_STEPS:
            labels = tuple([each.label for each in same])
            shapes = tuple([str(list(each.shape)) for each in same])
            found = RowOfData(labels=labels, rows=same[0].rows, shapes=shapes)
            yield Found(found, same[0].place, latest={"steps": self._steps})

    def on_resume(self, row: ResumeRow) -> None:
        self._taken = {}


def _row(index: Any) -> int | None:
    """Return the number of the only row that an index takes; None for several rows."""
    index = index[0] if type(index) is tuple and index else index
    if type(index) is int:
        return index
    if type(index) is slice and index.step in (None, 1):
        if index.start in (None, 0) and index.stop == 1:
            return 0
        if index.start == -1 and index.stop is None:
            return -1
    return None


_MIN_FEATURES = 64  # a row of fewer numbers is not an image
_MAX_LINES = 16  # maximum number of lines to check
_LARGEST = 255
_LIGHT = 128  # an image has pixels of at least this value


class LayerInputRow(NamedTuple):
    """The input of a layer."""

    place: CodePosition | None
    number: int  # sequence number of the layer's node
    numbers: Probe  # smallest value, largest value, number of values that are not whole


def layer_inputs(event: Called, program: Program) -> Iterable[LayerInputRow]:
    """Return the input of a layer, if it may consist of pixels and the line has no row yet."""
    given, weight = [*event.args[:2], None, None][:2]
    if not isinstance(weight, Parameter) or not isinstance(given, Tensor):
        return ()
    if given.requires_grad or event.result.grad_fn is None or given.dtype.is_complex:
        return ()
    if TensorBase.numel(given) < _MIN_FEATURES * given.shape[0]:
        return ()
    place = program.place(event.frame)
    if not program.log.admits(LayerInputRow, place, most=_MAX_LINES, in_run=True):
        return ()
    numbers, number = probe(_describe, given), int(event.result.grad_fn._sequence_nr())
    return () if numbers is None else (LayerInputRow(place, number, numbers),)


class Pixels(Query):
    """Find layers whose input consists of whole numbers from 0 to 255."""

    functions = frozenset((F.conv2d, F.conv3d, F.linear))
    needs_constant = True
    rows_of: ClassVar[RowsOf] = {"on_call_end": layer_inputs}

    def on_layer_input(self, row: LayerInputRow) -> Iterator[Found]:
        least, largest, parts = row.numbers.values or (-1, 0, 0)
        if least >= 0 and _LIGHT <= largest <= _LARGEST and not parts:
            latest = {"largest": int(largest)}
            yield Found(UnscaledPixels(), row.place, (row.number,), latest=latest)


def _describe(values: Tensor) -> Tensor:
    values = TensorBase.float(values)
    parts = torch.sum(torch.ne(values, torch.floor(values)))
    return torch.stack((torch.amin(values), torch.amax(values), parts.float()))
