"""Detect that a DataLoader returned the same batch twice.

A batch is kept as hashes, each of up to 65,536 values of a tensor. Tensors of one sample, tensors
whose first two samples are equal (as in synthetic data), and short tensors such as labels are
ignored.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...graph.events import RepeatedBatch, RepeatKind
from ...internals.functions import TensorBase
from ...internals.hooks.optimizers import BatchCame, BatchWatch, Stepped
from ...internals.probes import unobserved
from ...internals.tensors.memory import has_memory
from ...internals.tensors.pytree import flatten
from ..listener import Listener, Resumed, Watches
from ..program import Program

_MIN_REPEATS = 2  # fewer repeated batches are not reported
_MIN_PASSES = 3  # fewer consecutive passes with one and the same batch are not reported
_MAX_LOADERS = 16
_MIN_ELEMENTS = 16  # smallest hashed tensor; eight times as many elements for integers
_MAX_VALUES = 1 << 16  # hashed values of one tensor

_Hashes = dict[str, int]  # hashes of a batch's tensors, by path


@dataclass(slots=True)
class _Pass:
    """The batches of a DataLoader since it began its current pass over the data."""

    first: _Hashes
    others: deque[_Hashes]  # the latest batches, one for each of the other workers
    count: int = 0  # number of batches
    again: int = 0  # number of batches equal to one of the latest batches of other workers
    same: int = 1  # number of consecutive passes that had only this first batch


class Batches(Listener):
    """Listener that reports batches equal to earlier ones."""

    needs = ("every_call",)
    watches: ClassVar[Watches] = {"on_batch": BatchWatch}

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._passes: dict[int, _Pass] = {}  # by id() of the loader
        self._stepped = False  # True if an optimizer stepped since the last batch

    def on_batch(self, event: BatchCame) -> None:
        """Check whether a batch is equal to an earlier one."""
        hashes, stepped, self._stepped = _hashes(event.batch), self._stepped, False
        before = self._passes.get(event.loader)
        if event.number == 0 or before is None:
            others = deque[_Hashes](maxlen=max(0, event.workers - 1))
            now = self._passes[event.loader] = _Pass(hashes, others)
            while len(self._passes) > _MAX_LOADERS:
                del self._passes[next(iter(self._passes))]
            if before is not None and before.count == 1 and stepped and hashes == before.first:
                now.same = before.same + bool(hashes)
        else:
            now = before
        now.count += 1
        now.again += any(not hashes.items().isdisjoint(other.items()) for other in now.others)
        now.others.append(hashes)
        if now.again >= _MIN_REPEATS:
            self._note(event, now.again, now.count)
        elif (
            now.same >= _MIN_PASSES and event.number == 0 and event.left and len(self._passes) == 1
        ):
            self._note(event, now.same)

    def on_optimizer_step_end(self, event: Stepped) -> None:
        self._stepped = True

    def on_resume(self, event: Resumed) -> None:
        """Forget the current passes, because batches during the pause were not observed."""
        self._passes.clear()

    def _note(self, event: BatchCame, count: int, among: int = 0) -> None:
        what: RepeatKind = "first" if not among else "stream" if event.stream else "workers"
        repeated = RepeatedBatch(what=what, workers=event.workers)
        self.events.note(repeated, self.program.place(event.frame), count=count, among=among)


def _hashes(batch: Any) -> _Hashes:
    """Return hashes of the tensors that distinguish one batch from another."""
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
