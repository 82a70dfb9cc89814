"""Record the exceptions of calls into torch, of backwards, and of the recorded block."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace
from types import FrameType
from typing import Any

from torch import Tensor
from torch.nn import Module
from torch.utils.checkpoint import CheckpointError

from ..graph import Cause, Failure, Graph, Operand, TensorMeta
from ..graph.immutable import NamedTuple, mutable
from ..graph.text import printable
from ..internals.exceptions import ignore_exceptions
from ..internals.frames import CodePosition, caller_of_vmap, local_variables, user_frame
from ..internals.hooks.calls import Raised
from ..internals.tensors.metadata import tensor_meta
from ..internals.tensors.pytree import is_nesting, tensors
from ..tracing.nodes import GradFn, GradientEdge, grad_fn_of
from ..tracing.tracer import collect_nodes
from .backward import Backward
from .failure_cause import (
    Computed,
    FailingNode,
    explain_failure,
    find_failing_node,
    find_node_in_checkpoint,
)
from .listener import BackwardEnded, BlockRaised, GraphValues, InnerBackwardRaised, Listener
from .live import LiveGraph, producers_of
from .program import Program
from .program.in_place import InPlaceChange
from .program.tracking import public_name
from .resolver import Resolver

_REFUSED = "can't optimize a non-leaf Tensor"  # PyTorch's message (2.13)


class _Rerun(NamedTuple):
    """A checkpointed segment whose second forward differs from its first."""

    position: CodePosition | None  # the line that called checkpoint
    changes: list[tuple[str, InPlaceChange]]  # names and changes of buffers that may be the cause


class _FailedBackward(NamedTuple):
    """A backward that raised."""

    error: ErrorKey
    node: FailingNode | None
    computed: list[Computed]  # the program's variables when backward raised the exception
    rerun: _Rerun | None = None


class Failures(Listener):
    """Listener that records the exceptions of a recording."""

    needs = ()

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._call: FailedCall | None = None  # the last call that raised since the last backward
        self._block: FailedCall | None = None  # the exception that ended the block
        self._position = -1  # index of the graph that shows the exception `_block`
        self._in_backward = False  # True if the last backward raised the exception `_block`
        self._backwards: list[Backward] = []
        self._failed: dict[int, _FailedBackward] = {}  # by index of the graph
        self._inner: FailingNode | None = None  # the node at which a nested backward failed

    def on_call_error(self, event: Raised) -> None:
        """Record the operands of a call that raised, with their names in the user's frames."""
        known = ErrorKey.create(event.error)
        if self._call is not None and self._call.error == known:
            return  # the exception of an inner call propagates through an outer call
        operands = []
        for tensor in tensors((event.args, event.kwargs)):
            label = ""
            outer = user_frame(event.frame)
            while not label and outer is not None:
                label, outer = self.program.label(tensor, outer), outer.f_back
            operands.append(operand(label, tensor))
        place = self.program.place(event.frame)
        self._call = FailedCall(known, public_name(event.func), place, operands)
        if (caller := caller_of_vmap(event.frame)) is not None:
            self._call.mapped = self.program.place(caller)

    def on_graph_read(self, live: LiveGraph) -> None:
        """Forget earlier exceptions of calls, which the program caught."""
        self._call = None
        if live.failed and self._block is not None:
            self._position, self._block = live.position, self._block.with_node_ids(live.ids)

    def on_inner_backward_error(self, event: InnerBackwardRaised) -> None:
        fns, _ = collect_nodes([fn for fn, _ in event.ends])
        numbered = {i: fn for fn, i in fns.items()}
        self._inner = find_node_in_checkpoint(numbered, event.error, self.program.changes)

    def on_backward_end(self, event: BackwardEnded) -> None:
        """Find the node at which backward failed, while the nodes are alive."""
        if event.error is not None:
            live, order = event.live, event.live.ran.nodes or []
            fns = {i: fn for fn, i in live.ids.items() if fn in live.own}
            node, computed = None, []
            # An error of the search below must not replace the user's error.
            with ignore_exceptions():
                computed = producers_of(live.named)
                node = find_failing_node(
                    fns,
                    order,
                    event.error,
                    self.program.changes,
                    lambda i: any(other.has_freed(live.numbers[i]) for other in self._backwards),
                )
            if node is None and self._inner is not None and order:
                node = replace(self._inner, node=order[-1], leaf=None)
            rerun = self._rerun(live) if isinstance(event.error, CheckpointError) else None
            failed = _FailedBackward(ErrorKey.create(event.error), node, computed, rerun)
            self._failed[live.position] = failed
        self._backwards.append(event.backward)
        self._inner = None

    def _rerun(self, live: LiveGraph) -> _Rerun:
        """Return the checkpointed segment whose forward was running again as backward failed.

        This is the first segment with a node that has not run.
        """
        ran = set(live.ran.nodes or ())
        part = next((p for p in live.checkpoints.parts if not p.nodes <= ran), None)
        changes = self.program.changes
        found = [
            (f"{path}.{name}" if path else name, change)
            for module, path in self.program.table.called_modules()
            # Buffers of PyTorch's own modules, such as num_batches_tracked, cannot be the cause.
            if not type(module).__module__.startswith("torch.")
            for name, buffer in module._buffers.items()
            if buffer is not None and (change := changes.last_write(buffer)) is not None
        ]
        return _Rerun(None if part is None else part.position, found)

    def on_block_error(self, event: BlockRaised) -> None:
        """Find out whether a call, a backward, or something else raised the exception."""
        error, place = event
        known = ErrorKey.create(error)
        failed = self._call
        if failed is None or failed.error != known:
            failed = FailedCall(known, place=place)
            if _REFUSED in known.message:
                failed = replace(failed, operands=refused_operands(error))
        last = self._failed.get(len(self._backwards) - 1)
        self._in_backward = last is not None and last.error == known
        if self._in_backward:
            failed = replace(failed, raised=None if place == failed.place else place)
        self._block, self._position = failed, len(self._backwards) - 1

    def on_step_end(self, event: None) -> None:
        self._backwards, self._failed, self._position = [], {}, -1

    def edges_before_error(self) -> list[GradientEdge] | None:
        if self._in_backward:
            return None
        operands = [] if self._block is None else self._block.operands
        return [(part.fn, part.output_nr) for part in operands if part.fn is not None]

    def graph_values(self, graph: Graph, resolver: Resolver) -> GraphValues:
        backward = resolver.backward
        own = self._failed.get(backward.position)
        if backward.position == self._position:
            failed = self._block
        else:  # if this backward raised an exception, the program caught it
            failed = None if own is None else FailedCall(own.error, "backward", backward.call.place)
        if failed is None:
            return {}
        failure = failed.value(resolver)
        if own is not None and own.node is not None and failed.error == own.error:
            before = self._backwards[: backward.position]
            first = self.program.origins.first
            failure = explain_failure(failure, resolver, own.node, own.computed, before, first)
        elif own is not None and own.rerun is not None and failed.error == own.error:
            causes = [Cause("checkpoint", resolver.line(own.rerun.position))]
            for name, change in own.rerun.changes:
                causes.append(Cause(change.operation, resolver.line(change.place), label=name))
            failure = replace(failure, causes=tuple(causes))
        return {"failure": failure}


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


def add_note(error: BaseException, graph: Graph) -> None:
    """Add the findings about an exception to the exception, as a note.

    Python 3.10 does not show notes, so the note is printed to stderr there. An exception that
    propagates through several recordings gets one note. Exceptions that end the program on purpose
    (SystemExit, KeyboardInterrupt) get none. This function raises no exception of its own.

    Args:
        error: the exception.
        graph: the graph up to the failure.
    """
    with ignore_exceptions():
        from ..findings.check import diagnosis  # imported late: the rules are slow to load

        notes = getattr(error, "__notes__", [])
        told = any(str(note).startswith("graphviz_torch:") for note in notes)
        if not isinstance(error, Exception) or told or not (text := diagnosis(graph)):
            return
        note = f"graphviz_torch: {printable(text, lines=True)}"
        if sys.version_info >= (3, 11):
            error.add_note(note)
        else:
            vars(error)["__notes__"] = [*notes, note]
            sys.stderr.write(f"{note}\n")
