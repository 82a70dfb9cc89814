"""Observe Dynamo's tracing: each operation of a graph while it runs on fake tensors.

Dynamo runs every operation that it adds to a graph once, on tensors that have shapes and autograd
nodes, but no values. Autograd therefore builds the same graph as for the uncompiled program.

Uses private API (2.11 to 2.14): the function that runs an operation, the method that applies a
custom Function, and the method that gives the graph to the compiler, with the reason why the graph
ended. They are replaced only while something is compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from threading import local
from types import CodeType
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves


class Break(NamedTuple):
    """The graph break at which a graph ended."""

    reason: str  # Dynamo's message: the cause in the first line, then explanations, hints, a URL
    lines: tuple[tuple[str, int], ...]  # (file, line) in the program, outermost first


class Recompiled(NamedTuple):
    """A recompilation of a function."""

    code: CodeType
    reason: str  # Dynamo's message: the guard that failed
    before: int  # how many times it was compiled before


class Trace(Protocol):
    """Callbacks invoked while Dynamo traces one graph."""

    def begun(self, operands: list[Tensor]) -> None:
        """Called before an operation runs."""

    def ended(self, function: Any, meta: dict[str, Any], made: list[Tensor]) -> None:
        """Called after an operation with its function, Dynamo's metadata and its outputs."""

    def called(
        self, function: Any, meta: dict[str, Any], args: Any, kwargs: Any, result: Any
    ) -> None:
        """Called after `ended`, with the arguments and the result."""

    def applied(
        self, function: type, meta: dict[str, Any], operands: list[Tensor], made: list[Tensor]
    ) -> None:
        """Called after a custom `autograd.Function` was applied as one operation."""

    def ordered(self, order: list[int]) -> None:
        """Called after `applied`, with the argument position of each operand in the program."""

    def complete(
        self,
        inputs: list[Tensor],
        results: list[Tensor | None],
        broken: Break | None,
        again: Recompiled | None,
    ) -> None:
        """Called when the graph is complete, before the compiler changes it.

        Args:
            inputs: input tensors.
            results: outputs, with None for one that is not a tensor.
            broken: the graph break that ended the graph, if any.
            again: the reason for a recompilation, if it is one.
        """

    def compiled(self, kinds: list[Any]) -> None:
        """Called with the classes of nodes that the compiler created for the graph."""


class Whole(Exception):
    """Raised to stop Dynamo once a graph that is traced again is complete."""


class _Here(local):
    """The state of one thread."""

    output: Any = None  # Dynamo's OutputGraph of the current graph
    trace: Trace | None = None  # None also after a callback has raised
    again: bool = False  # True to stop before the graph is compiled
    recompiled: Recompiled | None = None  # the recompilation since the last graph
    new: Any = None, None  # code and trace of the last compiled graph, until it runs


_here = _Here()
_theirs: dict[str, Any] = {}


def begin(new: Callable[[], Trace], *, again: bool = False) -> None:
    """Start observing a compilation.

    Args:
        new: creates the callbacks for a graph.
        again: raise `Whole` when the graph is complete, before it is compiled.
    """
    utils, output = _utils(), _output_graph()
    _here.again = again
    if _theirs:
        return
    _theirs.update(run=utils.run_node, compile=output.call_user_compiler)
    _theirs.update(apply=_functions().call_apply)

    def run_node(tracer: Any, node: Any, args: Any, kwargs: Any, nnmodule: Any) -> Any:
        if tracer is not _here.output:  # Dynamo starts or restarts a graph
            _here.output, _here.trace = tracer, new()
        _tell("begun", _tensors((args, kwargs)))
        result = _theirs["run"](tracer, node, args, kwargs, nnmodule)
        method = node.op == "call_method"
        function = getattr(Tensor, node.target, None) if method else node.target
        _tell("ended", function, node.meta, _tensors(result))
        _tell("called", function, node.meta, args, kwargs, result)
        return result

    def call_user_compiler(self: Any, gm: Any, examples: Any) -> Any:
        if self is not _here.output:
            return _theirs["compile"](self, gm, examples)
        before = set(_kinds())
        with suppress(Exception):  # otherwise the region is shown without its operations
            _tell("complete", *_completed(self, gm))
        if _here.again:
            raise Whole
        _here.new = self.root_tx.f_code, _here.trace
        try:
            compiled = _theirs["compile"](self, gm, examples)
            _tell("compiled", [kind for kind in _kinds() if kind not in before])
        finally:
            _here.output = _here.trace = None
        return compiled

    def call_apply(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        before = _last_applied(tx)
        result = _theirs["apply"](self, tx, args, kwargs)
        node = _last_applied(tx)
        if node is not before and tx.output is _here.output:
            operands, made = _values(node.all_input_nodes), _values([node])
            _tell("applied", self.fn_cls, node.meta, operands, made)
            with suppress(Exception):
                _tell("ordered", _order(node, args))
        return result

    utils.run_node, output.call_user_compiler = run_node, call_user_compiler
    _functions().call_apply = call_apply


def recompiled(code: CodeType, reason: str, before: int) -> None:
    """Record that a function is about to be compiled again."""
    _here.recompiled = Recompiled(code, reason, before)


def _completed(output: Any, gm: Any) -> tuple[Any, ...]:
    """Return the arguments of `Trace.complete`."""
    inputs = [node for node in gm.graph.nodes if node.op == "placeholder"]
    given = [getattr(one, "meta", {}) for one in gm.graph.output_node().args[0]]
    results = [
        value if isinstance(value := m.get("example_value"), Tensor) else None for m in given
    ]
    again, _here.recompiled = _here.recompiled, None
    if again is not None and again.code is not output.root_tx.f_code:
        again = None  # the recompilation of a function without a graph
    return _values(inputs), results, _broken(output), again


def _broken(output: Any) -> Break | None:
    ended = output.compile_subgraph_reason
    if not ended.graph_break:
        return None
    return Break(ended.reason, tuple((f.filename, f.lineno or 0) for f in ended.user_stack))


def end() -> None:
    """Stop observing."""
    _here.output, _here.trace, _here.again, _here.recompiled = None, None, False, None
    if _theirs:
        _utils().run_node = _theirs["run"]
        _output_graph().call_user_compiler = _theirs["compile"]
        _functions().call_apply = _theirs["apply"]
        _theirs.clear()


def new_trace(code: Any) -> Trace | None:
    """Return this code's trace, once, if it was the last one compiled in this thread."""
    (last, trace), _here.new = _here.new, (None, None)
    return trace if last is code else None


def _tell(event: str, *what: Any) -> None:
    if _here.trace is not None:
        try:
            getattr(_here.trace, event)(*what)
        except Exception:  # then the region is shown without its operations
            _here.trace = None


def _values(nodes: list[Any]) -> list[Tensor]:
    return _tensors([node.meta.get("example_value") for node in nodes])


def _tensors(values: Any) -> list[Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, Tensor)]


def _utils() -> Any:
    return import_module("torch._dynamo.utils")


def _output_graph() -> Any:
    return import_module("torch._dynamo.output_graph").OutputGraph


def _functions() -> Any:
    return import_module("torch._dynamo.variables.misc").AutogradFunctionVariable


def _last_applied(tx: Any) -> Any:
    """Return the last node of a custom Function in Dynamo's graph, or None."""
    apply = import_module("torch._functorch.autograd_function").autograd_function_apply
    found = tx.output.graph.find_nodes(op="call_function", target=apply)
    return found[-1] if found else None


def _order(node: Any, args: Any) -> list[int]:
    """Return the position of each operand of a custom Function among its tensor arguments."""
    proxies = [arg.as_proxy() for arg in args]
    given = [proxy.node for proxy in proxies if isinstance(proxy, torch.fx.Proxy)]
    return [given.index(one) for one in node.args[2:] if _values([one])]


def _kinds() -> list[Any]:
    """Return the node classes of all compiled regions so far."""
    functions: list[Any] = torch.autograd.Function.__subclasses__()
    return [one._backward_cls for one in functions if one.__name__ == "CompiledFunction"]
