"""Observe Dynamo's tracing: each operation of a graph while it runs on fake tensors.

Dynamo runs every operation that it adds to a graph once, on tensors that have shapes and autograd
nodes, but no values. Autograd therefore builds the same graph as for the uncompiled program.

Uses private API (2.11 to 2.14): the function that runs an operation, the method that applies a
custom Function, the method that gives the graph to the compiler, and the reason why the graph
ended. These functions are replaced only while something is compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from threading import local
from types import CodeType
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ...graph.immutable import NamedTuple
from ..exceptions import ignore_exceptions
from ..hooks.watch import Replacement, Row


class Break(NamedTuple):
    """A graph break: code that Dynamo could not compile, at which it ended a graph."""

    reason: str  # Dynamo's message: the cause in the first line, then explanations, hints, a URL
    lines: tuple[tuple[str, int], ...]  # (file, line) in the program, outermost first


class Recompiled(NamedTuple):
    """A recompilation of a function."""

    code: CodeType
    reason: str  # Dynamo's message: the guard that failed
    before: int  # number of earlier compilations of the function


class Trace(Protocol):
    """Callbacks invoked while Dynamo traces one graph."""

    def on_operation_start(self, operands: list[Tensor]) -> None:
        """Receive the tensor arguments of a traced operation before it runs."""

    def on_operation_end(self, function: Any, meta: dict[str, Any], made: list[Tensor]) -> None:
        """Receive a traced operation that has run, with its results.

        Args:
            function: the called function.
            meta: `meta` of the operation's node in Dynamo's graph.
            made: the tensors that the operation returned.
        """

    def on_call(
        self, function: Any, meta: dict[str, Any], args: Any, kwargs: Any, result: Any
    ) -> None:
        """Receive the arguments and the result of an operation, after `on_operation_end`."""

    def on_apply(
        self, function: type, meta: dict[str, Any], operands: list[Tensor], made: list[Tensor]
    ) -> None:
        """Receive a custom `autograd.Function`, which the traced graph applies as one operation.

        Args:
            function: the class of the Function.
            meta: `meta` of the operation's node in Dynamo's graph.
            operands: the tensors that `apply` was given.
            made: the tensors that `apply` returned.
        """

    def on_operand_order(self, order: list[int]) -> None:
        """Receive, for each operand of a custom Function, its index among the tensor arguments.

        Called after `on_apply`.
        """

    def on_graph_complete(
        self,
        inputs: list[Tensor],
        results: list[Tensor | None],
        broken: Break | None,
        again: Recompiled | None,
    ) -> None:
        """Receive the complete graph, before the compiler changes it.

        Args:
            inputs: input tensors.
            results: outputs, with None for one that is not a tensor.
            broken: the graph break that ended the graph, if any.
            again: the recompilation that created the graph, if any.
        """

    def on_graph_compiled(self, kinds: list[Any]) -> None:
        """Receive the autograd node classes that the compiler created for the graph."""


class TraceComplete(Exception):
    """Exception that stops Dynamo after it has traced a graph again, before it compiles it."""


class _TraceState(local):
    """The trace of the graph that a thread is compiling."""

    new_callbacks: Callable[[], Trace]  # creates the callbacks for a graph
    output: Any = None  # Dynamo's OutputGraph of the current graph
    trace: Trace | None = None  # None also after a callback has raised
    again: bool = False  # True to trace the graph again, without compiling it
    recompiled: Recompiled | None = None  # the recompilation since the last graph
    new: Any = None, None  # code and trace of the last compiled graph, until `new_trace` returns it


_thread_state = _TraceState()


def begin_compilation(new: Callable[[], Trace], *, again: bool = False) -> None:
    """Replace functions of Dynamo to observe a compilation, until `end_compilation`.

    Args:
        new: creates the callbacks for a graph.
        again: True to raise `TraceComplete` when the graph is complete, before it is compiled.
    """
    _thread_state.new_callbacks, _thread_state.again = new, again
    _PATCH.replace()


def _wrap_run_node(original: Callable[..., Any]) -> Callable[..., Any]:
    def run_node(tracer: Any, node: Any, args: Any, kwargs: Any, nnmodule: Any) -> Any:
        if tracer is not _thread_state.output:  # Dynamo has started or restarted a graph
            _thread_state.output, _thread_state.trace = tracer, _thread_state.new_callbacks()
        _notify("on_operation_start", _tensors((args, kwargs)))
        result = original(tracer, node, args, kwargs, nnmodule)
        method = node.op == "call_method"
        function = getattr(Tensor, node.target, None) if method else node.target
        _notify("on_operation_end", function, node.meta, _tensors(result))
        _notify("on_call", function, node.meta, args, kwargs, result)
        return result

    return run_node


def _wrap_compiler(original: Callable[..., Any]) -> Callable[..., Any]:
    def call_user_compiler(self: Any, gm: Any, examples: Any) -> Any:
        if self is not _thread_state.output:
            return original(self, gm, examples)
        before = set(_region_node_classes())
        with ignore_exceptions():  # after an exception, the region is shown without its operations
            _notify("on_graph_complete", *_completed_graph(self, gm))
        if _thread_state.again:
            raise TraceComplete
        _thread_state.new = self.root_tx.f_code, _thread_state.trace
        try:
            compiled = original(self, gm, examples)
            _notify(
                "on_graph_compiled", [kind for kind in _region_node_classes() if kind not in before]
            )
        finally:
            _thread_state.output = _thread_state.trace = None
        return compiled

    return call_user_compiler


def _wrap_apply(original: Callable[..., Any]) -> Callable[..., Any]:
    def call_apply(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        before = _last_applied(tx)
        result = original(self, tx, args, kwargs)
        node = _last_applied(tx)
        if node is not before and tx.output is _thread_state.output:
            operands, made = _example_values(node.all_input_nodes), _example_values([node])
            _notify("on_apply", self.fn_cls, node.meta, operands, made)
            with ignore_exceptions():
                _notify("on_operand_order", _operand_positions(node, args))
        return result

    return call_apply


def _rows() -> list[Row]:
    module = import_module
    functions = module("torch._dynamo.variables.misc").AutogradFunctionVariable
    return [
        (module("torch._dynamo.utils"), "run_node", _wrap_run_node),
        (module("torch._dynamo.output_graph").OutputGraph, "call_user_compiler", _wrap_compiler),
        (functions, "call_apply", _wrap_apply),
    ]


_PATCH = Replacement[None](_rows)


def record_recompile(code: CodeType, reason: str, before: int) -> None:
    """Record that a function is about to be compiled again.

    Args:
        code: code object of the function.
        reason: Dynamo's message with the guard that failed.
        before: number of earlier compilations of the function.
    """
    _thread_state.recompiled = Recompiled(code, reason, before)


def _completed_graph(output: Any, gm: Any) -> tuple[Any, ...]:
    """Return the arguments with which `Trace.on_graph_complete` is called for a finished graph."""
    inputs = [node for node in gm.graph.nodes if node.op == "placeholder"]
    given = [getattr(one, "meta", {}) for one in gm.graph.output_node().args[0]]
    results = [
        value if isinstance(value := m.get("example_value"), Tensor) else None for m in given
    ]
    again, _thread_state.recompiled = _thread_state.recompiled, None
    if again is not None and again.code is not output.root_tx.f_code:
        again = None  # another function was recompiled, and produced no graph
    return _example_values(inputs), results, _broken(output), again


def _broken(output: Any) -> Break | None:
    ended = output.compile_subgraph_reason
    if not ended.graph_break:
        return None
    return Break(ended.reason, tuple((f.filename, f.lineno or 0) for f in ended.user_stack))


def end_compilation() -> None:
    """Stop observing compilations and restore Dynamo's own functions."""
    _thread_state.output, _thread_state.trace, _thread_state.again, _thread_state.recompiled = (
        None,
        None,
        False,
        None,
    )
    _PATCH.restore()


def new_trace(code: Any) -> Trace | None:
    """Return the trace of the code object `code`, if this thread compiled it last, or None.

    The trace is returned once; a second call returns None.
    """
    (last, trace), _thread_state.new = _thread_state.new, (None, None)
    return trace if last is code else None


def _notify(event: str, *what: Any) -> None:
    if _thread_state.trace is not None:
        try:
            getattr(_thread_state.trace, event)(*what)
        except Exception:  # the region is shown without its operations
            _thread_state.trace = None


def _example_values(nodes: list[Any]) -> list[Tensor]:
    return _tensors([node.meta.get("example_value") for node in nodes])


def _tensors(values: Any) -> list[Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, Tensor)]


def _last_applied(tx: Any) -> Any:
    """Return the last fx node that applies a custom Function in the graph being traced, or None."""
    apply = import_module("torch._functorch.autograd_function").autograd_function_apply
    found = tx.output.graph.find_nodes(op="call_function", target=apply)
    return found[-1] if found else None


def _operand_positions(node: Any, args: Any) -> list[int]:
    """Return, for each operand of a custom Function, its index among the tensor arguments."""
    proxies = [arg.as_proxy() for arg in args]
    given = [proxy.node for proxy in proxies if isinstance(proxy, torch.fx.Proxy)]
    return [given.index(one) for one in node.args[2:] if _example_values([one])]


def _region_node_classes() -> list[Any]:
    """Return the autograd node classes of all regions that `torch.compile` has compiled so far."""
    functions: list[Any] = torch.autograd.Function.__subclasses__()
    return [one._backward_cls for one in functions if one.__name__ == "CompiledFunction"]
