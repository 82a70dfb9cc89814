"""Describing gradients while they pass by: what `GradientStats` says of each.

Statistics are reduced on the gradient's own device and brought over in one copy for each device.
Norms of float32 gradients are float32 sums; 16-bit gradients are summed as float32. Small gradients
wait for others, 2 MB of them on the CPU and 16 on another device, and so live that much longer. A
complex gradient is described by its absolute values, a sparse one as the dense tensor that it
stands for; to coalesce it, backward waits for a CUDA device. Not described: gradients without
values that can be read (meta, fake, batched by vmap, a wrapper of the user's) or of a kind that
PyTorch has no norm for, and one that a hook changed in place while it waited. Of a DTensor the part
is described that this process has, of a TwoTensor both tensors together: `extent` says so.
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
from .cpu import SMALL, Joined, all_finite, end_to_end, on_cpu, repeated, sums_up, without_repeats

_ALONE = 1 << 17  # elements: a gradient with more of them does not wait for others
_WAITING = 1 << 19  # elements that may wait on the CPU: 2 MB of float32
_WAITING_ON_DEVICE = 1 << 22  # on another device: 16 MB
_TOGETHER = frozenset(("float32", "float64", "float16", "bfloat16"))

_version = attrgetter("_version")
_new: Any = tuple.__new__  # GradientStats from a row of its fields, without a call of Python's

Where = Any  # whose a gradient is, for who asks: a node and its output_nr, or the like
# What was reduced on a device, whose it is, what tensors it is of, how often each repeats itself.
_Reduced = tuple[Reduction, list[Where], list[tuple[TensorMeta, Extent]], list[int]]

_Group = tuple[TensorMeta, list[Where], list[Tensor]]  # gradients that look alike


class Waiting:
    """Gradients that look alike and wait.

    Of these there is one flat list, and not a row for each: Python's collector would look at
    thousands. One call adds to it, for the engine has several threads.
    """

    __slots__ = ("meta", "rows")

    def __init__(self, meta: TensorMeta) -> None:
        self.meta = meta
        # Of each whose it is, its version when it arrived, None if it has none, and the gradient.
        self.rows: list[Any] = []

    def take(self, changed: set[Where]) -> tuple[list[Where], list[Tensor]]:
        """Return the waiting gradients, except those changed in place since, which are added to
        `changed`.
        """
        rows = self.rows[:]
        del self.rows[: len(rows)]  # hooks hold the list
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


class Batch:
    """Gradients of one device and dtype that wait to be described together."""

    __slots__ = ("cpu", "cuda", "elements", "groups", "limit", "stream")

    def __init__(self, cpu: bool, cuda: int | None) -> None:
        self.cpu = cpu
        self.cuda = cuda
        self.stream: int | None = None  # of CUDA, on which those that wait are there to be read
        self.limit = _WAITING if cpu else _WAITING_ON_DEVICE
        self.elements = 0
        self.groups: list[Waiting] = []

    @property
    def waiting(self) -> int:
        """Number of waiting gradients."""
        return sum(len(group.rows) for group in self.groups) // 3


class Kind:
    """Gradients of one shape, dtype and device."""

    __slots__ = ("batch", "cpu", "cuda", "elements", "meta", "waiting")

    def __init__(self, meta: TensorMeta) -> None:
        self.meta = meta
        self.cpu = meta.device == "cpu"
        self.cuda = int(meta.device[5:]) if meta.device.startswith("cuda:") else None
        known = all(size >= 0 for size in meta.shape)
        self.elements = math.prod(meta.shape) if known else 0
        self.batch: Batch | None = None  # None: each is described alone, at once
        self.waiting = Waiting(meta)  # those of the batch that are of this kind


class Descriptions:
    """Statistics of the gradients of one backward.

    Args:
        finite: leave out those on the CPU that are surely finite.
    """

    def __init__(self, *, finite: bool = False) -> None:
        self._finite = finite
        self.times = 0  # that anything was described so far
        self.changed: set[Where] = set()  # whose gradients were changed before that
        self._kinds: dict[TensorMeta, Kind] = {}
        self._batches: dict[tuple[str, str], Batch] = {}  # by device and dtype
        self._found: dict[Where, GradientStats] = {}
        self._streams: set[tuple[int, int]] = set()  # devices and streams of CUDA
        self._reduced: dict[torch.device, list[_Reduced]] = {}

    def kind(self, meta: TensorMeta) -> Kind:
        """Return the class of gradients with this metadata."""
        known = self._kinds.get(meta)
        if known is None:
            known = self._kinds[meta] = Kind(meta)
            if 0 < known.elements <= _ALONE and (meta.dtype in _TOGETHER or not known.cpu):
                key = meta.device, meta.dtype
                known.batch = self._batches.setdefault(key, Batch(known.cpu, known.cuda))
                known.batch.groups.append(known.waiting)
        return known

    def see(self, where: Where, gradient: Tensor, kind: Kind) -> None:
        """Describe a gradient, now or before `describe_all` returns."""
        batch = kind.batch
        if kind.cuda is not None:
            stream = current_stream(kind.cuda)
            self._streams.add((kind.cuda, stream))
            if batch is not None and batch.stream != stream:
                self.describe(batch)
                batch.stream = stream
        # A sparse one does not wait: its leaf takes it as its own if nobody else has it. Nor does a
        # wrapper: nothing tells whether what it wraps was changed meanwhile.
        if batch is None or type(gradient) not in PLAIN or gradient.layout is not torch.strided:
            self._describe_like([where], [gradient])
        else:
            self._wait(where, gradient, kind, batch)

    def _wait(self, where: Where, gradient: Tensor, kind: Kind, batch: Batch) -> None:
        """Queue a dense gradient until others like it have arrived."""
        try:
            version = gradient._version
        except RuntimeError:  # an inference tensor's
            version = None
        kind.waiting.rows.extend((where, version, gradient))
        size, base = kind.elements, gradient._base
        if base is not None:  # it keeps all of what it is a view of
            size = max(size, TensorBase.numel(base))
        if not batch.cpu:  # there rows are filled up
            size += -size % WIDTH
        batch.elements += size
        if batch.elements >= batch.limit:
            self.describe(batch)

    def fetch(self, gradient: Tensor, device: int) -> None:
        """Make a gradient readable for another stream of its device."""
        with _hide_operators():
            fetch(gradient, device)

    def describe_all(self) -> None:
        """Describe all queued gradients."""
        for batch in self._batches.values():
            self.describe(batch)

    def describe(self, batch: Batch) -> None:
        """Describe the queued gradients of a batch."""
        cuda, stream = batch.cuda, batch.stream
        batch.elements = 0
        if not batch.waiting:
            return
        if cuda is None or stream is None or stream == current_stream(cuda):
            self._describe_here(batch)
        else:  # it would not wait for what they are computed by
            with on_stream(cuda, stream):
                self._describe_here(batch)

    @with_gc_disabled
    def _describe_here(self, batch: Batch) -> None:
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
        """Describe CPU gradients of one dtype."""
        with _hide_operators(), unseen_operators():
            gradients = [own for _, _, own in groups]
            if self._finite and all_finite(gradients):
                return
            ends = chain.from_iterable(repeat((meta, ""), len(own)) for meta, _, own in groups)
            rows = map(add, Joined(gradients).numbers(), ends)
            wheres = chain.from_iterable(own for _, own, _ in groups)
            self._found.update(zip(wheres, map(_new, repeat(GradientStats), rows), strict=True))

    def _describe_like(self, wheres: list[Where], gradients: list[Tensor]) -> None:
        """Describe gradients of one class and device; one by one in case of doubt."""
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
        of = [_described(*pair) for pair in zip(gradients, known, strict=True)]
        dense = first.layout is torch.strided and not first.is_nested and len(found.tensors) == 1
        if self._finite and all(one.is_cpu and sums_up(one) for one in found.tensors):
            return
        times = [1] * len(known)
        if dense:  # what is expanded is read once: it may be far larger than its memory
            known, times = map(list, zip(*map(_once, known), strict=True))
            found = known[0]
        if found.numel == 0:
            self._found[wheres[0]] = GradientStats(0.0, 0.0, 0.0, 0.0, 0, 0, None, *of[0])
        elif found.tensors[0].is_cpu:
            row = end_to_end(found.tensors)
            small = dense and row.shape[0] <= SMALL and not torch.is_complex(first)
            values = tuple(TensorBase.tolist(row)) if small else None
            numbers = repeated((*on_cpu(row, found.numel), values), times[0])
            self._found[wheres[0]] = GradientStats(*numbers, *of[0])
        else:
            reduced = reduce(known, dense=dense), wheres, of, times
            self._reduced.setdefault(found.tensors[0].device, []).append(reduced)

    def collect(self) -> dict[Where, GradientStats]:
        """Return all statistics by node and output_nr, with one copy from each device."""
        for reduced in self._reduced.values():
            row: Any = None
            with _hide_operators():
                for device, stream in self._streams:
                    wait_for(device, stream)
                row = TensorBase.numpy(
                    TensorBase.cpu(torch.cat([part.numbers for part, *_ in reduced]))
                )
            if row is None:  # a device that has failed
                continue
            at = 0
            for part, wheres, of, times in reduced:
                end = at + len(part.numbers)
                numbers = map(repeated, combine(part, row[at:end]), times)
                for where, each, its in zip(wheres, numbers, of, strict=True):
                    self._found[where] = GradientStats(*each, *its)
                at = end
        self._reduced = {}
        return self._found


class _hide_operators:
    """Hide our operators from graphs and modes; an operator that PyTorch lacks for some tensors
    raises nothing.
    """

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


def _once(found: Elements) -> tuple[Elements, int]:
    """Return the readable elements of a dense gradient without repetition, and the repeat count."""
    if found.numel <= SMALL:  # their values are kept
        return found, 1
    tensor, times = without_repeats(found.tensors[0])
    return (found, 1) if times == 1 else (Elements([tensor], found.numel // times), times)


def _described(gradient: Tensor, found: Elements) -> tuple[TensorMeta, Extent]:
    """Return the tensor that the numbers describe, and its part of the gradient."""
    local = found.extent == "local part" and len(found.tensors) == 1
    return tensor_meta(found.tensors[0] if local else gradient), found.extent


def alias(gradient: Tensor) -> Tensor:
    """Return a tensor that shares a dense gradient's memory and version."""
    with unseen_calls():
        if not is_dense(gradient):
            return gradient
        if not watched_operators():  # as most
            return TensorBase.detach(gradient)
        with unseen_operators():
            return TensorBase.detach(gradient)
