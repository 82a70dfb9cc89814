"""Detect batches that a DataLoader returned before.

A batch is kept as hashes of up to 65,536 values of each tensor. Tensors of one sample, tensors
whose first two samples are equal (as in made-up data), and short tensors such as labels are
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
from ...internals.guards import no_autograd
from ...internals.hooks.dispatch import unseen
from ...internals.hooks.modes import unseen_calls, unseen_operators
from ...internals.hooks.optimizers import BatchCame, BatchWatch, Stepped
from ...internals.tensors.memory import has_memory
from ...internals.tensors.pytree import flatten
from ..listener import Listener, Resumed, Watches
from ..program import Program

_ENOUGH = 2  # batches that another worker had given
_STEPS = 3  # with the first batch of a new pass
_LOADERS = 16  # that are remembered
_FEW = 16  # numbers; of whole ones eight times as many
_VALUES = 1 << 16

_Hashes = dict[str, int]  # of the tensors of a batch, by their path


@dataclass(slots=True)
class _Pass:
    """The batches of a DataLoader since its current pass began."""

    first: _Hashes
    others: deque[_Hashes]  # the last one of each other worker
    count: int = 0  # batches
    again: int = 0  # of them, what another worker had just given
    same: int = 1  # passes in a row, each ended by its first batch: this one


class Batches(Listener):
    """Reports batches that are equal to earlier ones.

    Notes batches that were there before.
    """

    needs = ("every_call",)
    watches: ClassVar[Watches] = {"on_batch": BatchWatch}

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._passes: dict[int, _Pass] = {}  # by the loader
        self._stepped = False  # has an optimizer, since a batch came

    def on_batch(self, event: BatchCame) -> None:
        """Check whether a batch is equal to an earlier one."""
        hashes, stepped, self._stepped = _hashes(event.batch), self._stepped, False
        before = self._passes.get(event.loader)
        if event.number == 0 or before is None:
            others = deque[_Hashes](maxlen=max(0, event.workers - 1))
            now = self._passes[event.loader] = _Pass(hashes, others)
            while len(self._passes) > _LOADERS:
                del self._passes[next(iter(self._passes))]
            if before is not None and before.count == 1 and stepped and hashes == before.first:
                now.same = before.same + bool(hashes)
        else:
            now = before
        now.count += 1
        now.again += any(not hashes.items().isdisjoint(other.items()) for other in now.others)
        now.others.append(hashes)
        if now.again >= _ENOUGH:
            self._note(event, now.again, now.count)
        elif now.same >= _STEPS and event.number == 0 and event.left and len(self._passes) == 1:
            self._note(event, now.same)

    def on_optimizer_step_end(self, event: Stepped) -> None:
        self._stepped = True

    def on_resume(self, event: Resumed) -> None:
        """Forget the current passes: batches of the pause were not seen."""
        self._passes.clear()

    def _note(self, event: BatchCame, count: int, among: int = 0) -> None:
        what: RepeatKind = "first" if not among else "stream" if event.stream else "workers"
        repeated = RepeatedBatch(what=what, workers=event.workers)
        self.events.note(repeated, self.program.place(event.frame), count=count, among=among)


def _hashes(batch: Any) -> _Hashes:
    """Return hashes of the tensors that distinguish one batch from another."""
    with unseen_calls(), unseen(), unseen_operators(), no_autograd():
        return {
            path: _hash(tensor)
            for path, tensor in flatten(batch, ask=False)
            if type(tensor) is Tensor and tensor.is_cpu and has_memory(tensor) and _tells(tensor)
        }


def _tells(tensor: Tensor) -> bool:
    few = _FEW if tensor.dtype.is_floating_point else 8 * _FEW
    if TensorBase.dim(tensor) == 0 or tensor.shape[0] < 2 or TensorBase.numel(tensor) < few:
        return False
    return not torch.equal(torch.select(tensor, 0, 0), torch.select(tensor, 0, 1))


def _hash(tensor: Tensor) -> int:
    flat = TensorBase.reshape(tensor, (-1,))
    part = TensorBase.contiguous(flat[:: 1 + len(flat) // _VALUES])
    return hash(bytes(TensorBase.numpy(TensorBase.view(part, torch.uint8))))
