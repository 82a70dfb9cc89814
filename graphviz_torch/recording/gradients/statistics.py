"""Compute the statistics of gradients (`GradientStats`) while backward runs.

A gradient is reduced on its own device, and the results of each device are copied once. Gradients
of 16 and 32 bits are summed in float32. Small gradients are queued, up to 2 MB on the CPU and 16 MB
on another device, and reduced together; they therefore live longer than without a recording. The
statistics of a complex gradient are those of its absolute values. The statistics of a sparse
gradient are those of the equal dense tensor; the sparse gradient is coalesced, for which backward
waits for a CUDA device.

These gradients have no statistics: gradients without readable values (meta, fake, batched by vmap,
wrapper subclasses), gradients of dtypes without a norm, and gradients that a hook changed in place
while they were queued. The statistics of a DTensor cover its local part, those of a TwoTensor both
tensors together. `GradientStats.extent` names what is covered.
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
from ...internals.functions import TensorBase
from ...internals.guards import set_grad_enabled, watched_operators
from ...internals.hooks.dispatch import unseen
from ...internals.hooks.modes import unseen_calls, unseen_operators
from ...internals.streams import current_stream, fetch, on_stream, wait_for
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
    on_cpu,
    repeat_row,
    sums_up,
    without_repeats,
)

_MAX_QUEUED = 1 << 17  # gradients with more elements are described at once
_QUEUE_CPU = 1 << 19  # elements queued on the CPU: 2 MB of float32
_QUEUE_DEVICE = 1 << 22  # elements queued on another device: 16 MB of float32
_QUEUED_DTYPES = frozenset(("float32", "float64", "float16", "bfloat16"))

_version = attrgetter("_version")
_new: Any = tuple.__new__  # creates GradientStats without a Python-level call

Where = Any  # the key that the caller chose for a gradient, such as (node, output_nr)
# A reduction on a device; then key, metadata and number of repetitions of each of its gradients.
_Reduced = tuple[Reduction, list[Where], list[tuple[TensorMeta, Extent]], list[int]]

_Group = tuple[TensorMeta, list[Where], list[Tensor]]  # gradients with equal metadata


class PendingGradients:
    """A queue of gradients with equal metadata.

    The queue is one flat list, because thousands of tuples would slow down Python's garbage
    collector. Three values are added by one call of `extend`, which is atomic: the engine has
    several threads.
    """

    __slots__ = ("meta", "rows")

    def __init__(self, meta: TensorMeta) -> None:
        self.meta = meta
        # Three values per gradient: its key, its version when it was queued (None for an inference
        # tensor), and the gradient.
        self.rows: list[Any] = []

    def take(self, changed: set[Where]) -> tuple[list[Where], list[Tensor]]:
        """Empty the queue, and return the keys and gradients.

        The keys of gradients that were changed in place are added to `changed` instead.
        """
        rows = self.rows[:]
        del self.rows[: len(rows)]  # in place: hooks refer to the list
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
        self.stream: int | None = None  # CUDA stream on which the queued gradients are ready
        self.limit = _QUEUE_CPU if cpu else _QUEUE_DEVICE
        self.elements = 0
        self.groups: list[PendingGradients] = []

    @property
    def waiting(self) -> int:
        """Return the number of queued gradients."""
        return sum(len(group.rows) for group in self.groups) // 3


class GradientClass:
    """The common data of all gradients with one shape, dtype and device."""

    __slots__ = ("batch", "cpu", "cuda", "elements", "meta", "waiting")

    def __init__(self, meta: TensorMeta) -> None:
        self.meta = meta
        self.cpu = meta.device == "cpu"
        self.cuda = int(meta.device[5:]) if meta.device.startswith("cuda:") else None
        known = all(size >= 0 for size in meta.shape)
        self.elements = math.prod(meta.shape) if known else 0
        self.batch: PendingBatch | None = None  # None: such gradients are described at once
        self.waiting = PendingGradients(meta)  # queued gradients of this class


class Descriptions:
    """Statistics of the gradients of one backward.

    Args:
        finite: True to leave out CPU gradients that are certainly finite.
    """

    def __init__(self, *, finite: bool = False) -> None:
        self._finite = finite
        self.times = 0  # incremented whenever gradients are described
        self.changed: set[Where] = set()  # keys of gradients that changed in place while queued
        self._kinds: dict[TensorMeta, GradientClass] = {}
        self._batches: dict[tuple[str, str], PendingBatch] = {}  # by device and dtype
        self._found: dict[Where, GradientStats] = {}
        self._streams: set[tuple[int, int]] = set()  # CUDA devices and streams of gradients
        self._reduced: dict[torch.device, list[_Reduced]] = {}

    def kind(self, meta: TensorMeta) -> GradientClass:
        """Return the class of gradients with this metadata."""
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
        """Describe a gradient now, or queue the gradient so that `describe_all` describes it.

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
        # Sparse gradients are not queued, because AccumulateGrad takes over such a gradient only if
        # nothing else refers to it. Wrapper subclasses are not queued, because an in-place change
        # of the wrapped tensor would go unnoticed.
        if batch is None or type(gradient) not in PLAIN or gradient.layout is not torch.strided:
            self._describe_like([where], [gradient])
        else:
            self._wait(where, gradient, kind, batch)

    def _wait(
        self, where: Where, gradient: Tensor, kind: GradientClass, batch: PendingBatch
    ) -> None:
        """Queue a dense gradient, which is then described together with others."""
        try:
            version = gradient._version
        except RuntimeError:  # raised for an inference tensor
            version = None
        kind.waiting.rows.extend((where, version, gradient))
        size, base = kind.elements, gradient._base
        if base is not None:  # while a view is queued, its whole base stays alive
            size = max(size, TensorBase.numel(base))
        if not batch.cpu:  # the reduction on a device pads rows
            size += -size % WIDTH
        batch.elements += size
        if batch.elements >= batch.limit:
            self.describe(batch)

    def fetch(self, gradient: Tensor, device: int) -> None:
        """Make the current stream of a CUDA device wait until a gradient of another device is
        readable.
        """
        with _hide_operators():
            fetch(gradient, device)

    def describe_all(self) -> None:
        """Describe the queued gradients of all batches."""
        for batch in self._batches.values():
            self.describe(batch)

    def describe(self, batch: PendingBatch) -> None:
        """Describe the queued gradients of a batch."""
        cuda, stream = batch.cuda, batch.stream
        batch.elements = 0
        if not batch.waiting:
            return
        if cuda is None or stream is None or stream == current_stream(cuda):
            self._describe_here(batch)
        else:  # the gradients are computed on another stream, which is used for the reduction
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
        """Describe CPU gradients of one dtype in one reduction."""
        with _hide_operators(), unseen_operators():
            gradients = [own for _, _, own in groups]
            if self._finite and all_finite(gradients):
                return
            ends = chain.from_iterable(repeat((meta, ""), len(own)) for meta, _, own in groups)
            rows = map(add, Joined(gradients).numbers(), ends)
            wheres = chain.from_iterable(own for _, own, _ in groups)
            self._found.update(zip(wheres, map(_new, repeat(GradientStats), rows), strict=True))

    def _describe_like(self, wheres: list[Where], gradients: list[Tensor]) -> None:
        """Describe gradients of one tensor class and device.

        They are described one by one if any of them has no readable elements.
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
        if self._finite and all(one.is_cpu and sums_up(one) for one in found.tensors):
            return
        times = [1] * len(known)
        if dense:  # the elements that `expand` repeats are read once
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
        """Return all statistics by key, after one copy from each device."""
        for reduced in self._reduced.values():
            row: Any = None
            with _hide_operators():
                for device, stream in self._streams:
                    wait_for(device, stream)
                row = TensorBase.numpy(
                    TensorBase.cpu(torch.cat([part.numbers for part, *_ in reduced]))
                )
            if row is None:  # the copy raised, since the device failed
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
    """A context in which graphs and modes do not see our operators, and exceptions are ignored."""

    __slots__ = ("_calls", "_enabled", "_watched")

    def __enter__(self) -> None:
        self._calls, self._watched = unseen_calls(), unseen()
        self._calls.__enter__()
        self._watched.__enter__()
        self._enabled = torch.is_grad_enabled()
        set_grad_enabled(False)

    def __exit__(self, kind: Any, *_: object) -> bool:
        set_grad_enabled(self._enabled)
        self._watched.__exit__(None, None, None)
        self._calls.__exit__(None, None, None)
        return kind is not None and issubclass(kind, Exception)


def _without_repeats(found: Elements) -> tuple[Elements, int]:
    """Return the elements of a dense gradient without the copies that `expand` adds, and the number
    of copies.
    """
    if found.numel <= SMALL_GRADIENT:  # all elements are needed as values
        return found, 1
    tensor, times = without_repeats(found.tensors[0])
    return (found, 1) if times == 1 else (Elements([tensor], found.numel // times), times)


def _meta_and_extent(gradient: Tensor, found: Elements) -> tuple[TensorMeta, Extent]:
    """Return the metadata of the tensor that is described, and which part of the gradient this
    tensor is.
    """
    local = found.extent == "local part" and len(found.tensors) == 1
    return tensor_meta(found.tensors[0] if local else gradient), found.extent


def alias(gradient: Tensor) -> Tensor:
    """Return another tensor with the memory and version of a dense gradient.

    A gradient that is not dense is returned itself.
    """
    with unseen_calls():
        if not is_dense(gradient):
            return gradient
        if not watched_operators():  # the usual case
            return TensorBase.detach(gradient)
        with unseen_operators():
            return TensorBase.detach(gradient)
