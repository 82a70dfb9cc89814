"""Detect that a DataLoader returned the same batch twice.

Only hashes of a batch's tensors are kept. A hash covers up to 65,536 values. Tensors with
a single sample, tensors whose first two samples are equal (as in synthetic data), and short tensors
such as labels are ignored.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...findings.rules.meaning.calls import RepeatedBatch, RepeatKind
from ...internals.functions import TensorBase
from ...internals.hooks.optimizers import BatchCame, BatchWatch, Stepped
from ...internals.probes import unobserved
from ...internals.tensors.memory import has_memory
from ...internals.tensors.pytree import flatten
from ..events.code import codes, find_method_call
from ..listener import Listener, Resumed, Watches
from ..program import Program
from ..program.events import UserLine

_MIN_REPEATS = 2  # fewer repeated batches are not reported
_MIN_EQUAL = 4  # a pass is reported if this many consecutive batches repeat the previous pass
_MAX_KEPT = 256  # number of batches of a pass with which the next pass is compared
_MIN_PASSES = 3  # a loader is reported if this many consecutive passes read only the same batch
_MAX_LOADERS = 16
_MIN_ELEMENTS = 16  # smaller tensors are ignored; integer tensors need eight times as many elements
_MAX_VALUES = 1 << 16  # about this many values of a tensor are hashed

_Hashes = dict[str, int]  # path of a tensor in the batch -> hash


@dataclass(slots=True)
class _Pass:
    """The current pass of a DataLoader over its data set."""

    first: _Hashes  # hashes of the first batch
    others: deque[_Hashes]  # the latest batches, one for each of the other workers
    count: int = 0  # number of batches so far
    again: int = 0  # number of batches that are equal to one of `others`
    same: int = 1  # number of consecutive passes whose only batch was equal to `first`
    kept: list[_Hashes] = field(default_factory=list)  # hashes of the first batches of this pass
    before: list[_Hashes] = field(default_factory=list)  # `kept` of the previous pass
    # Number of consecutive batches that repeat the previous pass; carried over to the next pass.
    equal: int = 0
    settings: dict[str, Any] = field(default_factory=dict)  # `BatchCame.settings` at the start


class Batches(Listener):
    """Listener that reports batches equal to earlier ones."""

    needs = ("every_call",)
    sees_later_steps = True
    watches: ClassVar[Watches] = {"on_batch": BatchWatch}

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._passes: dict[int, _Pass] = {}  # by id() of the DataLoader
        self._stepped = False  # True if an optimizer stepped since the last batch

    def on_batch(self, event: BatchCame) -> None:
        """Check whether a batch is equal to an earlier one."""
        hashes, stepped, self._stepped = _hashes(event.batch), self._stepped, False
        before = self._passes.get(event.loader)
        if event.number == 0 or before is None:
            others = deque[_Hashes](maxlen=max(1, event.workers - 1))
            now = self._passes[event.loader] = _Pass(hashes, others)
            if before is not None and event.number == 0:
                now.before, now.equal = before.kept, before.equal
                now.settings = before.settings
            while len(self._passes) > _MAX_LOADERS:
                del self._passes[next(iter(self._passes))]
            if before is not None and before.count == 1 and stepped and hashes == before.first:
                now.same = before.same + bool(hashes)
        else:
            now = before
        now.settings = now.settings or event.settings
        changed = [n for n, v in event.settings.items() if now.settings.get(n, v) != v]
        if changed:
            stale = RepeatedBatch(what="persistent", workers=event.workers, attribute=changed[0])
            self.events.note(stale, self.program.place(event.frame))
        now.count += 1
        now.again += any(not hashes.items().isdisjoint(other.items()) for other in now.others)
        now.others.append(hashes)
        repeats = event.shuffles and now.count <= len(now.before)
        repeats = repeats and bool(hashes) and hashes == now.before[now.count - 1]
        now.equal = now.equal + 1 if repeats else 0
        if len(now.kept) < _MAX_KEPT:
            now.kept.append(hashes)
        if now.again >= _MIN_REPEATS:
            self._note(event, now.again, now.count)
        elif now.equal >= _MIN_EQUAL and event.left == 0:
            self._note_pass(event, now.equal)
        elif (
            now.same >= _MIN_PASSES and event.number == 0 and event.left and len(self._passes) == 1
        ):
            self._note(event, now.same)

    def _note_pass(self, event: BatchCame, count: int) -> None:
        """Report a shuffled pass that repeats the previous pass, and the line that sets a seed."""
        seed = find_method_call(codes(self.program), "manual_seed")
        place = self.program.place(event.frame)
        self.events.note(RepeatedBatch(what="pass"), place, count=count, seeded=UserLine(seed))

    def on_optimizer_step_end(self, event: Stepped) -> None:
        self._stepped = True

    def on_resume(self, event: Resumed) -> None:
        """Forget the current passes, because batches during the pause were not observed."""
        self._passes.clear()

    def _note(self, event: BatchCame, count: int, among: int = 0) -> None:
        what: RepeatKind = "first" if not among else "stream" if event.stream else "workers"
        what = "twice" if among and event.workers < 2 else what
        repeated = RepeatedBatch(what=what, workers=event.workers)
        self.events.note(repeated, self.program.place(event.frame), count=count, among=among)


def _hashes(batch: Any) -> _Hashes:
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
