"""Compute the statistics of gradients (`GradientStats`) while backward runs.

To describe a gradient means to compute its statistics. A gradient is reduced on its own device, and
the results of each device are copied to the CPU at once. Gradients of 16 and 32 bits are summed in
float32. Small gradients are queued, up to 2 MB on the CPU and 16 MB on another device, and are then
described together. Queued gradients are freed later than without a recording.

The statistics of a complex gradient are those of its absolute values. The statistics of a sparse
gradient are those of the equal dense tensor. They require that the gradient is coalesced, and on
CUDA backward waits for the device to do so. The statistics of a DTensor cover its local part, and
those of a TwoTensor cover both of its tensors. `GradientStats.extent` names the part that is
covered.

There are no statistics of gradients without readable values (meta, fake, batched by vmap, wrapper
subclasses), of gradients whose dtype has no norm, and of gradients that a hook changed in place
while they were queued.
"""

from __future__ import annotations

import math
from itertools import chain, compress, repeat
from operator import add, attrgetter, eq, not_
from typing import Any

import torch
from torch import Tensor

from ...graph import Extent, GradientStats, TensorMeta
from ...graph.gc import with_gc_disabled
from ...internals.exceptions import ignore_exceptions
from ...internals.functions import TensorBase
from ...internals.guards import dispatch_mode_count, set_grad_enabled
from ...internals.hooks.dispatch import unseen
from ...internals.hooks.modes import unseen_calls, unseen_operators
from ...internals.streams import current_stream, on_stream, wait_for, wait_for_tensor
from ...internals.tensors.memory import (
    PLAIN,
    Elements,
    elements,
    has_memory,
    have_memory,
    is_dense,
)
from ...internals.tensors.metadata import tensor_meta
from .accelerator import WIDTH, Reduction, combine, reduce
from .cpu import (
    SMALL_GRADIENT,
    Joined,
    all_finite,
    end_to_end,
    has_finite_sum,
    on_cpu,
    repeat_row,
    without_repeats,
)

_MAX_QUEUED = 1 << 17  # gradients with more elements are not queued
_QUEUE_CPU = 1 << 19  # elements queued on the CPU: 2 MB of float32
_QUEUE_DEVICE = 1 << 22  # elements queued on another device: 16 MB of float32
_QUEUED_DTYPES = frozenset(("float32", "float64", "float16", "bfloat16"))

_version = attrgetter("_version")
_new: Any = tuple.__new__  # creates GradientStats without a Python-level call

Where = Any  # key of a gradient, which the caller chooses: (node id, output_nr) or node id
# A reduction on a device, and lists of its gradients' keys, metadata and numbers of repetitions.
_Reduced = tuple[Reduction, list[Where], list[tuple[TensorMeta, Extent]], list[int]]

_Group = tuple[TensorMeta, list[Where], list[Tensor]]  # gradients with equal metadata


class PendingGradients:
    """A queue of gradients of equal shape, dtype and device, to be reduced together.

    The queue is one flat list, because thousands of tuples would slow down Python's garbage
    collector. The engine's threads may add gradients at the same time. The key, version and tensor
    of a gradient are therefore added by one call of `extend`, which is atomic.
    """

    __slots__ = ("meta", "rows")

    def __init__(self, meta: TensorMeta) -> None:
        self.meta = meta
        # For each gradient three values: its key, its version when it was queued (None for an
        # inference tensor), and the tensor.
        self.rows: list[Any] = []

    def take(self, changed: set[Where]) -> tuple[list[Where], list[Tensor]]:
        """Empty the queue, and return the keys and gradients.

        The keys of gradients that were changed in place are added to `changed` instead.
        """
        rows = self.rows[:]
        del self.rows[: len(rows)]  # in place, because hooks refer to the list
        wheres, versions, gradients = (rows[k::3] for k in range(3))
        try:
            now = list(map(_version, gradients))
        except RuntimeError:
            pairs = zip(versions, gradients, strict=True)
            now = [version if version is None else _version(each) for version, each in pairs]
        if now != versions:
            same = list(map(eq, now, versions))
            changed.update(compress(wheres, map(not_, same)))
            return list(compress(wheres, same)), list(compress(gradients, same))
        return wheres, gradients


class PendingBatch:
    """The queued gradients of one device and dtype, which are reduced together."""

    __slots__ = ("cpu", "cuda", "elements", "groups", "limit", "stream")

    def __init__(self, cpu: bool, cuda: int | None) -> None:
        self.cpu = cpu
        self.cuda = cuda
        self.stream: int | None = None  # CUDA stream on which the gradients can be read
        self.limit = _QUEUE_CPU if cpu else _QUEUE_DEVICE
        self.elements = 0
        self.groups: list[PendingGradients] = []

    @property
    def waiting(self) -> int:
        """Return the number of queued gradients."""
        return sum(len(group.rows) for group in self.groups) // 3


class GradientClass:
    """The metadata and the queue that all gradients of one shape, dtype and device share."""

    __slots__ = ("batch", "cpu", "cuda", "elements", "meta", "waiting")

    def __init__(self, meta: TensorMeta) -> None:
        self.meta = meta
        self.cpu = meta.device == "cpu"
        self.cuda = int(meta.device[5:]) if meta.device.startswith("cuda:") else None
        known = all(size >= 0 for size in meta.shape)
        self.elements = math.prod(meta.shape) if known else 0
        self.batch: PendingBatch | None = None  # None: gradients of this class are not queued
        self.waiting = PendingGradients(meta)  # queued gradients of this class


class Descriptions:
    """Statistics of the gradients of one backward.

    Args:
        finite: True to leave out CPU gradients that are certainly finite.
    """

    def __init__(self, *, finite: bool = False) -> None:
        self._finite = finite
        self.times = 0  # number of reductions so far
        self.changed: set[Where] = set()  # keys of gradients that changed in place while queued
        self._kinds: dict[TensorMeta, GradientClass] = {}
        self._batches: dict[tuple[str, str], PendingBatch] = {}  # by device and dtype
        self._found: dict[Where, GradientStats] = {}
        self._streams: set[tuple[int, int]] = set()  # (device, stream) of CUDA gradients
        self._reduced: dict[torch.device, list[_Reduced]] = {}

    def kind(self, meta: TensorMeta) -> GradientClass:
        """Return the `GradientClass` (metadata and queue) for gradients of this metadata."""
        known = self._kinds.get(meta)
        if known is None:
            known = self._kinds[meta] = GradientClass(meta)
            if 0 < known.elements <= _MAX_QUEUED and (
                meta.dtype in _QUEUED_DTYPES or not known.cpu
            ):
                key = meta.device, meta.dtype
                known.batch = self._batches.setdefault(key, PendingBatch(known.cpu, known.cuda))
                known.batch.groups.append(known.waiting)
        return known

    def see(self, where: Where, gradient: Tensor, kind: GradientClass) -> None:
        """Compute the statistics of a gradient, or queue the gradient for `describe_all`.

        Args:
            where: key of the gradient.
            gradient: the gradient.
            kind: class of the gradient, from `self.kind`.
        """
        batch = kind.batch
        if kind.cuda is not None:
            stream = current_stream(kind.cuda)
            self._streams.add((kind.cuda, stream))
            if batch is not None and batch.stream != stream:
                self.describe(batch)
                batch.stream = stream
        # A queued gradient has an additional reference. AccumulateGrad would then have to copy a
        # sparse gradient, so sparse gradients are not queued. Wrapper subclasses are not queued,
        # because an in-place change of the wrapped tensor would go unnoticed.
        if batch is None or type(gradient) not in PLAIN or gradient.layout is not torch.strided:
            self._describe_like([where], [gradient])
        else:
            self._wait(where, gradient, kind, batch)

    def _wait(
        self, where: Where, gradient: Tensor, kind: GradientClass, batch: PendingBatch
    ) -> None:
        """Queue a dense gradient, and compute the statistics of its batch if the batch is full.

        Args:
            where: key of the gradient.
            gradient: the gradient.
            kind: class of the gradient.
            batch: the batch of `kind`.
        """
        try:
            version = gradient._version
        except RuntimeError:  # raised for an inference tensor
            version = None
        kind.waiting.rows.extend((where, version, gradient))
        size, base = kind.elements, gradient._base
        if base is not None:  # a queued view keeps its whole base alive
            size = max(size, TensorBase.numel(base))
        if not batch.cpu:  # the reduction on a device pads rows
            size += -size % WIDTH
        batch.elements += size
        if batch.elements >= batch.limit:
            self.describe(batch)

    def wait_for(self, gradient: Tensor, device: int) -> None:
        """Make the current stream of a CUDA device wait for a gradient from another device."""
        with _hide_operators():
            wait_for_tensor(gradient, device)

    def describe_all(self) -> None:
        """Compute the statistics of the queued gradients of all batches."""
        for batch in self._batches.values():
            self.describe(batch)

    def describe(self, batch: PendingBatch) -> None:
        """Compute the statistics of the queued gradients of a batch."""
        cuda, stream = batch.cuda, batch.stream
        batch.elements = 0
        if not batch.waiting:
            return
        if cuda is None or stream is None or stream == current_stream(cuda):
            self._describe_here(batch)
        else:  # the reduction has to run on the stream that computed the gradients
            with on_stream(cuda, stream):
                self._describe_here(batch)

    @with_gc_disabled
    def _describe_here(self, batch: PendingBatch) -> None:
        self.times += 1
        groups: list[_Group] = []
        apart: list[tuple[Where, Tensor]] = []
        with unseen_calls():
            for group in batch.groups:
                wheres, gradients = group.take(self.changed)
                if not (batch.cpu and have_memory(gradients)):
                    plain = [batch.cpu and has_memory(gradient) for gradient in gradients]
                    pairs = list(zip(wheres, gradients, strict=True))
                    apart += compress(pairs, map(not_, plain))
                    wheres = list(compress(wheres, plain))
                    gradients = list(compress(gradients, plain))
                if gradients:
                    groups.append((group.meta, wheres, gradients))
        if groups:
            self._describe_together(groups)
        alike: dict[Any, tuple[list[Where], list[Tensor]]] = {}
        for where, gradient in apart:
            alone = gradient.is_cpu or gradient.is_nested or gradient.layout is not torch.strided
            same = alike.setdefault((type(gradient), where if alone else None), ([], []))
            same[0].append(where)
            same[1].append(gradient)
        for same in alike.values():
            self._describe_like(*same)

    def _describe_together(self, groups: list[_Group]) -> None:
        """Compute the statistics of CPU gradients of one dtype in one reduction."""
        with _hide_operators(), unseen_operators():
            gradients = [own for _, _, own in groups]
            if self._finite and all_finite(gradients):
                return
            ends = chain.from_iterable(repeat((meta, ""), len(own)) for meta, _, own in groups)
            rows = map(add, Joined(gradients).numbers(), ends)
            wheres = chain.from_iterable(own for _, own, _ in groups)
            self._found.update(zip(wheres, map(_new, repeat(GradientStats), rows), strict=True))

    def _describe_like(self, wheres: list[Where], gradients: list[Tensor]) -> None:
        """Compute the statistics of gradients of one tensor class and device.

        If any of the gradients has no readable elements, they are described one by one.

        Args:
            wheres: the keys of the gradients.
            gradients: the gradients.
        """
        self.times += 1
        with _hide_operators(), unseen_operators():
            self._reduce(wheres, gradients)

    def _reduce(self, wheres: list[Where], gradients: list[Tensor]) -> None:
        known = list(map(elements, gradients))
        if not all(one.tensors for one in known):
            if len(known) > 1:
                for where, gradient in zip(wheres, gradients, strict=True):
                    self._reduce([where], [gradient])
            return
        first, found = gradients[0], known[0]
        of = [_meta_and_extent(*pair) for pair in zip(gradients, known, strict=True)]
        dense = first.layout is torch.strided and not first.is_nested and len(found.tensors) == 1
        if self._finite and all(one.is_cpu and has_finite_sum(one) for one in found.tensors):
            return
        times = [1] * len(known)
        if dense:  # elements that `expand` repeats are read once
            known, times = map(list, zip(*map(_without_repeats, known), strict=True))
            found = known[0]
        if found.numel == 0:
            self._found[wheres[0]] = GradientStats(0.0, 0.0, 0.0, 0.0, 0, 0, None, *of[0])
        elif found.tensors[0].is_cpu:
            row = end_to_end(found.tensors)
            small = dense and row.shape[0] <= SMALL_GRADIENT and not torch.is_complex(first)
            values = tuple(TensorBase.tolist(row)) if small else None
            numbers = repeat_row((*on_cpu(row, found.numel), values), times[0])
            self._found[wheres[0]] = GradientStats(*numbers, *of[0])
        else:
            reduced = reduce(known, dense=dense), wheres, of, times
            self._reduced.setdefault(found.tensors[0].device, []).append(reduced)

    def collect(self) -> dict[Where, GradientStats]:
        """Return the statistics of all gradients by key, after one copy from each device."""
        for reduced in self._reduced.values():
            row: Any = None
            with _hide_operators():
                for device, stream in self._streams:
                    wait_for(device, stream)
                row = TensorBase.numpy(
                    TensorBase.cpu(torch.cat([part.numbers for part, *_ in reduced]))
                )
            if row is None:  # the device failed, so the copy raised an exception
                continue
            at = 0
            for part, wheres, of, times in reduced:
                end = at + len(part.numbers)
                numbers = map(repeat_row, combine(part, row[at:end]), times)
                for where, each, its in zip(wheres, numbers, of, strict=True):
                    self._found[where] = GradientStats(*each, *its)
                at = end
        self._reduced = {}
        return self._found


class _hide_operators:
    """A context that hides our tensor operations from autograd, modes and hooks.

    Exceptions in the context are ignored.
    """

    __slots__ = ("_calls", "_enabled", "_watched")

    def __enter__(self) -> None:
        self._calls, self._watched = unseen_calls(), unseen()
        self._calls.__enter__()
        self._watched.__enter__()
        self._enabled = torch.is_grad_enabled()
        set_grad_enabled(False)

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        set_grad_enabled(self._enabled)
        self._watched.__exit__(None, None, None)
        self._calls.__exit__(None, None, None)
        return ignore_exceptions().__exit__(kind, error, trace)


def _without_repeats(found: Elements) -> tuple[Elements, int]:
    """Return a gradient's elements without repetitions by `expand`, and the repetition count."""
    if found.numel <= SMALL_GRADIENT:  # all elements are recorded as values
        return found, 1
    tensor, times = without_repeats(found.tensors[0])
    return (found, 1) if times == 1 else (Elements([tensor], found.numel // times), times)


def _meta_and_extent(gradient: Tensor, found: Elements) -> tuple[TensorMeta, Extent]:
    """Return the metadata of a gradient or of its local part, and which part was described.

    Args:
        gradient: the gradient.
        found: the tensors that contain the gradient's elements.
    """
    local = found.extent == "local part" and len(found.tensors) == 1
    return tensor_meta(found.tensors[0] if local else gradient), found.extent


def alias(gradient: Tensor) -> Tensor:
    """Return a new tensor that shares the memory and version counter of a dense gradient.

    If the gradient is not dense, it is returned unchanged.
    """
    with unseen_calls():
        if not is_dense(gradient):
            return gradient
        if not dispatch_mode_count():  # the usual case
            return TensorBase.detach(gradient)
        with unseen_operators():
            return TensorBase.detach(gradient)
