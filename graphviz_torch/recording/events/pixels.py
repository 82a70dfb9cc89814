"""Find layers that get pixels from 0 to 255.

The first layer of each line is checked once in a run, on its device.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn import functional as F

from ...findings.rules.meaning.pixels import UnscaledPixels
from ...graph.immutable import mutable
from ...internals.frames import CodePosition
from ...internals.functions import TensorBase
from ...internals.hooks.calls import Called
from ...internals.probes import Probe, fetch, probe
from ..listener import Listener
from ..program import Program

_MIN_FEATURES = 64  # a row of fewer numbers is no picture
_MAX_LINES = 16  # maximum number of lines to check
_LARGEST = 255
_LIGHT = 128  # a picture has pixels of at least this value


@mutable
class _LayerInput:
    """The input of a layer, whose numbers may still be on a device."""

    place: CodePosition | None
    number: int  # sequence number of the layer's node
    numbers: Probe  # smallest value, largest value, number of values that are not whole


class Pixels(Listener):
    """Listener that reports layers whose input consists of whole numbers from 0 to 255."""

    needs = ("every_call",)
    functions = frozenset((F.conv2d, F.conv3d, F.linear))

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._lines: set[CodePosition | None] = set()  # that were checked
        self._inputs: list[_LayerInput] = []

    def on_call_end(self, event: Called) -> None:
        given, weight = [*event.args[:2], None, None][:2]
        if not isinstance(weight, Parameter) or not isinstance(given, Tensor):
            return
        if given.requires_grad or event.result.grad_fn is None or len(self._lines) >= _MAX_LINES:
            return
        if TensorBase.numel(given) < _MIN_FEATURES * given.shape[0] or given.dtype.is_complex:
            return
        place = self.program.place(event.frame)
        if place in self._lines:
            return
        self._lines.add(place)
        numbers = probe(_describe, given)
        if numbers is not None:
            number = int(event.result.grad_fn._sequence_nr())
            self._inputs.append(_LayerInput(place, number, numbers))

    def on_graphs_built(self, backwards: Any, graphs: Any) -> None:
        inputs, self._inputs = self._inputs, []
        for each, row in zip(inputs, fetch([one.numbers for one in inputs]), strict=True):
            if row and row[0] >= 0 and _LIGHT <= row[1] <= _LARGEST and not row[2]:
                self.events.note(UnscaledPixels(), each.place, [each.number], largest=int(row[1]))


def _describe(values: Tensor) -> Tensor:
    values = TensorBase.float(values)
    parts = torch.sum(torch.ne(values, torch.floor(values)))
    return torch.stack((torch.amin(values), torch.amax(values), parts.float()))
