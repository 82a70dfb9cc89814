"""Find second derivatives of a gradient's sum, where those of its components were meant."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from ...findings.rules.cut_derivatives import SummedDerivative
from ...internals.frames import CodePosition
from ...internals.functions import TensorBase
from ...internals.hooks.calls import Called
from ...internals.probes import Probe, probe
from ..program import Program
from ..program.log import Found, Query, RowsOf
from ..program.rows import TrainingStepRow

_ARGUMENTS = ("outputs", "inputs", "grad_outputs")


class DerivativeRow(NamedTuple):
    """A call of `autograd.grad` for one output and one input, with `create_graph=True`."""

    output: int  # number of the tensor
    input: int
    result: int
    components: int  # size of the last dimension of the output
    place: CodePosition | None
    ones: Probe | None = None  # [True] if all elements of `grad_outputs` are 1


def derivatives(event: Called, program: Program) -> Iterable[DerivativeRow]:
    """Return the row of a call of `autograd.grad`."""
    given = dict(zip(_ARGUMENTS, event.args, strict=False)) | (event.kwargs or {})
    if not given.get("create_graph"):
        return ()
    parts = [_only_tensor(given.get(name)) for name in _ARGUMENTS] + [_only_tensor(event.result)]
    output, source, weight, result = parts
    if output is None or source is None or result is None:
        return ()
    ones = None if weight is None else probe(_is_one, weight)
    number, place = program.identities.number, program.place(event.frame)
    components = int(output.shape[-1]) if TensorBase.dim(output) > 1 else 1
    return (DerivativeRow(number(output), number(source), number(result), components, place, ones),)


class SummedDerivatives(Query):
    """Find derivatives of a whole gradient, weighted by ones, with respect to its own input."""

    functions = frozenset((torch.autograd.grad,))
    rows_of: ClassVar[RowsOf] = {"on_call_end": derivatives}

    def __init__(self) -> None:
        self._inputs: dict[int, int] = {}  # result of autograd.grad -> the input

    def on_training_step(self, row: TrainingStepRow) -> None:
        self._inputs.clear()

    def on_derivative(self, row: DerivativeRow) -> Iterator[Found]:
        self._inputs[row.result] = row.input
        is_second = self._inputs.get(row.output) == row.input and row.components > 1
        if is_second and row.ones is not None and row.ones.values == [True]:
            yield Found(SummedDerivative(components=row.components), row.place)


def _only_tensor(value: Any) -> Tensor | None:
    """Return a tensor, or the only tensor of a sequence; None for anything else."""
    if isinstance(value, (tuple, list)) and len(value) == 1:
        [value] = value
    return value if isinstance(value, Tensor) else None


def _is_one(weight: Tensor) -> Tensor:
    return torch.all(torch.eq(weight, 1))
