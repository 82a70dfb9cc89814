"""Find layers that get pixels from 0 to 255.

The first layer of each line is checked once in a run, on its device.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn import functional as F

from ...findings.rules.meaning.batches import UnscaledPixels
from ...internals.frames import CodePosition
from ...internals.functions import TensorBase
from ...internals.hooks.calls import Called
from ...internals.probes import Probe, probe
from ..program import Program
from ..program.log import Found, Query, RowsOf

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
