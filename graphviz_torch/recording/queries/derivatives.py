"""Find derivatives of the wrong function, or by the wrong argument: autograd and `torch.func`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...findings.rules.cut_derivatives import SummedDerivative, UnusedDerivativeInput
from ...findings.rules.gradient_reads import IgnoredFuncArgument
from ...graph.immutable import NamedTuple
from ...internals.frames import CodePosition, user_frame
from ...internals.functions import TensorBase
from ...internals.hooks.calls import Called
from ...internals.hooks.func_gradients import ZeroGradients, ZeroGradientWatch
from ...internals.probes import Probe, probe
from ...internals.tensors.pytree import tensors
from ...tracing.nodes import GradFn
from ...tracing.tracer import collect_nodes
from ..live import leaves_of
from ..program import Program
from ..program.events import NodeLine
from ..program.log import Found, Query, RowsOf
from ..program.rows import ObservedRow, TrainingStepRow

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


class DerivativeResultRow(NamedTuple):
    """A call of `autograd.grad`. The other fields describe an input for which it returns None."""

    place: CodePosition
    is_none: bool = False  # True if all results are None, although the outputs depend on `source`
    label: str = ""  # name of the input
    source: str = ""  # name of a leaf from which the input was computed
    number: int = 0  # sequence number of the node that created the input


def results(event: Called, program: Program) -> Iterable[DerivativeResultRow]:
    """Return the row of a call of `autograd.grad`."""
    place = program.place(event.frame)
    if place is None:
        return ()
    if tensors(event.result):
        return (DerivativeResultRow(place),)
    given = dict(zip(("outputs", "inputs"), event.args, strict=False)) | (event.kwargs or {})
    used = set(leaves_of(_nodes_of(tensors(given["outputs"]))))
    for each in tensors(given["inputs"]):
        shared = [leaf for leaf in leaves_of(_nodes_of([each])) if leaf in used]
        if each.grad_fn is not None and shared:
            named = each, shared[0].variable
            label, source = program.labels(named, user_frame(event.frame))
            number = int(each.grad_fn._sequence_nr())
            return (DerivativeResultRow(place, True, label, source, number),)
    return ()


class UnusedInputs(Query):
    """Find lines where `autograd.grad` returns None for tensors computed from a used leaf."""

    functions = frozenset((torch.autograd.grad,))
    rows_of: ClassVar[RowsOf] = {"on_call_end": results}

    def __init__(self) -> None:
        self._none: dict[CodePosition, DerivativeResultRow] = {}  # the last row of each line
        self._used: set[CodePosition] = set()  # lines that returned a derivative

    def on_result(self, row: DerivativeResultRow) -> None:
        if row.is_none:
            self._none[row.place] = row
        else:
            self._used.add(row.place)

    def events_of_run(self) -> Iterator[Found]:
        for place, row in self._none.items():
            if place not in self._used:
                event = UnusedDerivativeInput(label=row.label, source=row.source)
                yield Found(event, place, latest={"created": NodeLine(row.number)})


def _nodes_of(given: Iterable[Tensor]) -> list[GradFn]:
    fns: list[Any] = [each.grad_fn for each in given]
    return list(collect_nodes([fn for fn in fns if fn is not None])[0])


class IgnoredFuncArguments(Query):
    """Find gradients of `torch.func` by an argument that a function ignores.

    >>> row = ObservedRow(ZeroGradients(2, None), place=((lambda: None).__code__, 0))
    >>> found = Found(IgnoredFuncArgument(tensors=2), row.place)
    >>> list(IgnoredFuncArguments().on_observed(row)) == [found]
    True
    """

    watches = (ZeroGradientWatch,)

    def on_observed(self, row: ObservedRow) -> Iterator[Found]:
        if isinstance(row.event, ZeroGradients):
            yield Found(IgnoredFuncArgument(tensors=row.event.inputs), row.place)
