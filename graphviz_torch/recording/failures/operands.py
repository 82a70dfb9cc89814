"""Record the operands of the call whose exception ended a recording."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace
from types import FrameType
from typing import Any, NamedTuple

from torch import Tensor
from torch.nn import Module

from ...graph import Cause, Failure, Operand, TensorMeta
from ...graph.immutable import mutable
from ...internals.exceptions import ignore_exceptions
from ...internals.frames import CodePosition, local_variables, user_frame
from ...internals.tensors.metadata import tensor_meta
from ...internals.tensors.pytree import is_nesting
from ...tracing.nodes import GradFn, grad_fn_of
from ..resolver import Resolver


@mutable
class OperandRecord:
    """A tensor that was passed to the call that raised."""

    label: str
    tensor: TensorMeta
    fn: GradFn | None  # the node that created the tensor; None if it has no autograd node
    output_nr: int = 0
    number: int | None = None  # sequence number of `fn`; None for a leaf
    node: int | None = None  # id of `fn` in the graph up to the failure


class ErrorKey(NamedTuple):
    """A key that identifies an exception without keeping the exception's frames alive."""

    key: int  # id() of the exception
    kind: str
    message: str

    @classmethod
    def create(cls, error: BaseException) -> ErrorKey:
        """Create the key of an exception that was caught."""
        try:
            return cls(id(error), type(error).__name__, str(error))
        except Exception:  # raised by the user's __str__
            return cls(id(error), type(error).__name__, "")


@mutable
class FailedCall:
    """An exception that a call or the recorded block raised, with the operands of the call."""

    error: ErrorKey
    operation: str = ""
    place: CodePosition | None = None
    operands: list[OperandRecord] = field(default_factory=list)
    # For an exception in backward, the user's line that raised it, as in a custom Function.
    raised: CodePosition | None = None
    mapped: CodePosition | None = None  # the line that called torch.vmap, if the call ran inside

    def with_node_ids(self, ids: Mapping[GradFn, int]) -> FailedCall:
        """Return a copy whose operands have node ids instead of references to nodes."""
        operands = [replace(o, fn=None, node=ids.get(o.fn)) for o in self.operands]
        return replace(self, operands=operands)

    def value(self, resolver: Resolver) -> Failure:
        """Return the failure as a `Failure`, without references to tensors or the exception."""
        return Failure(
            self.error.kind,
            self.error.message,
            self.operation,
            resolver.line(self.place),
            tuple(
                Operand(
                    operand.label,
                    operand.tensor,
                    "" if operand.number is None else resolver.line_of_node(operand.number),
                    operand.node,
                )
                for operand in self.operands
            ),
            resolver.line(self.raised),
            causes=() if self.mapped is None else (Cause("vmap", resolver.line(self.mapped)),),
        )


def operand(label: str, tensor: Tensor) -> OperandRecord:
    """Return the record of a tensor that was passed to a call that raised.

    If `label` is "", the tensor is named after an expression in the user's code, such as
    "self.scale" or "batch['y']".
    """
    meta = tensor_meta(tensor)
    label = label or _expression(tensor, user_frame(sys._getframe(1)))
    try:
        fn = grad_fn_of(tensor)
    except RuntimeError:  # a view that was taken under no_grad and changed in place
        fn = None
    number = None if fn is None or hasattr(fn, "variable") else fn._sequence_nr()
    return OperandRecord(label, meta, fn, tensor.output_nr, number)


def refused_operands(error: BaseException) -> list[OperandRecord]:
    """Return the tensor that an optimizer refused, in a list; [] if there is none.

    The tensor is found in the frame that raised the error.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    given = None if trace is None else trace.tb_frame.f_locals.get("param")
    if trace is None or not isinstance(given, Tensor):
        return []
    label = _expression(given, user_frame(trace.tb_frame))
    return [operand(label, given)]


def _expression(tensor: Tensor, frame: FrameType | None) -> str:
    """Return an expression of the user's code whose value is the tensor; "" if none is found.

    The variables of `frame` and then those of the outer frames are searched.
    """
    while frame is not None:
        for name, value in local_variables(frame).items():
            if value is tensor:
                return name
            with ignore_exceptions():  # reading a user's object may raise any exception
                for expression, part in _items_of(name, value):
                    if part is tensor or (part is not None and part is tensor._base):
                        return expression
        frame = user_frame(frame.f_back)
    return ""


def _items_of(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield an expression and the value for each item of a container or attribute of an object.

    No code of the object is run.
    """
    kind = type(value)
    if issubclass(kind, dict):
        items: Iterable[tuple[Any, Any]] = dict.items(value)
        yield from ((f"{name}[{k!r}]", part) for k, part in items if type(k) in (str, int))
    elif issubclass(kind, (list, tuple)):
        base: Any = list if issubclass(kind, list) else tuple
        yield from ((f"{name}[{i}]", part) for i, part in enumerate(base.__iter__(value)))
    elif name == "self" or is_nesting(value):
        attributes = object.__getattribute__(value, "__dict__")
        buffers = attributes["_buffers"] if issubclass(kind, Module) else {}
        yield from ((f"{name}.{k}", part) for k, part in (attributes | buffers).items())
