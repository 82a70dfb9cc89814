"""Append a row to the log for each batch of a DataLoader.

Only hashes of a batch's tensors are kept. A hash covers up to 65,536 values. Tensors with
a single sample, tensors whose first two samples are equal (as in synthetic data), and short tensors
such as labels are ignored.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from ...internals.functions import TensorBase
from ...internals.hooks.optimizers import BatchCame, BatchWatch
from ...internals.probes import unobserved
from ...internals.tensors.memory import has_memory
from ...internals.tensors.pytree import flatten
from ..listener import Listener, Watches
from ..program.rows import BatchRow, Hashes

_MIN_ELEMENTS = 16  # smaller tensors are ignored; integer tensors need eight times as many elements
_MAX_VALUES = 1 << 16  # about this many values of a tensor are hashed


class Batches(Listener):
    """Listener that appends a row for each batch."""

    needs = ("every_call",)
    sees_later_steps = True
    watches: ClassVar[Watches] = {"on_batch": BatchWatch}

    def on_batch(self, event: BatchCame) -> None:
        self.program.log.append(
            BatchRow(
                event.loader,
                event.number,
                _hashes(event.batch),
                self.program.place(event.frame),
                event.left,
                event.workers,
                event.stream,
                event.shuffles,
                event.settings,
            )
        )


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
