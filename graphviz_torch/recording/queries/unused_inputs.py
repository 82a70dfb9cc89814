"""Find calls of `autograd.grad` that return None, because they got another tensor than the loss."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from ...findings.rules.cut_derivatives import UnusedDerivativeInput
from ...internals.frames import CodePosition, user_frame
from ...internals.hooks.calls import Called
from ...internals.tensors.pytree import tensors
from ...tracing.nodes import GradFn
from ...tracing.tracer import collect_nodes
from ..live import leaves_of
from ..program import Program
from ..program.events import NodeLine
from ..program.log import Found, Query, RowsOf


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
