"""The seam of dynamo's tracing: each operation of a graph, while it runs on tensors without memory.

Dynamo runs every operation that it puts into a graph once, on tensors that have shapes and nodes of
autograd, but no values. So autograd says there what it would say of the program uncompiled.

Private: the function that runs one operation, the method that applies a custom Function, and the
one that gives the graph to the compiler, with what ended the graph (2.11 to 2.14). They are
replaced only while something is compiled.
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
    """What ended a graph before the function did."""

    reason: str  # dynamo's: a line on what it met, then explanations, hints, an address
    lines: tuple[tuple[str, int], ...]  # of the program, outermost first


class Recompiled(NamedTuple):
    """Why a function is compiled once more."""

    code: CodeType
    reason: str  # dynamo's: the guard that does not hold
    before: int  # how often it was compiled


class Trace(Protocol):
    """What is told of one graph."""

    def begun(self, operands: list[Tensor]) -> None:
        """An operation is about to run."""

    def ended(self, function: Any, meta: dict[str, Any], made: list[Tensor]) -> None:
        """It has run: what was called, what dynamo knows of the call, what it gave."""

    def called(
        self, function: Any, meta: dict[str, Any], args: Any, kwargs: Any, result: Any
    ) -> None:
        """The same, with all that it was given."""

    def applied(
        self, function: type, meta: dict[str, Any], operands: list[Tensor], made: list[Tensor]
    ) -> None:
        """A custom `autograd.Function` has been applied, as one operation."""

    def ordered(self, order: list[int]) -> None:
        """Of what was applied last: which argument each operand is in the program."""

    def complete(
        self,
        inputs: list[Tensor],
        results: list[Tensor | None],
        broken: Break | None,
        again: Recompiled | None,
    ) -> None:
        """The graph is whole; the compiler has not changed it yet.

        Args:
            inputs: tensors.
            results: None stands for a result that is not a tensor.
            broken: what ended the graph.
            again: why it was compiled once more.
        """

    def compiled(self, kinds: list[Any]) -> None:
        """The compiler made these classes of nodes of it."""


class Whole(Exception):
    """A graph that was traced again is whole."""


class _Here(local):
    """What belongs to the thread that asks."""

    output: Any = None  # dynamo's, for the graph that is traced
    trace: Trace | None = None  # None where one could not be read, too
    again: bool = False  # nothing is compiled: the trace is all that is wanted
    recompiled: Recompiled | None = None  # since the last graph
    new: Any = None, None  # the code whose graph was compiled last, and its trace, until it runs


_here = _Here()
_theirs: dict[str, Any] = {}


def begin(new: Callable[[], Trace], *, again: bool = False) -> None:
    """Something is compiled: tell a new trace of each graph.

    Args:
        new: makes a trace.
        again: end with `Whole` where the graph is, before it is compiled.
    """
    utils, output = _utils(), _output_graph()
    _here.again = again
    if _theirs:
        return
    _theirs.update(run=utils.run_node, compile=output.call_user_compiler)
    _theirs.update(apply=_functions().call_apply)

    def run_node(tracer: Any, node: Any, args: Any, kwargs: Any, nnmodule: Any) -> Any:
        if tracer is not _here.output:  # dynamo begins a graph, or begins it anew
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
        with suppress(Exception):  # else the region stays closed
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
    """A function is about to be compiled once more."""
    _here.recompiled = Recompiled(code, reason, before)


def _completed(output: Any, gm: Any) -> tuple[Any, ...]:
    """What `Trace.complete` takes."""
    inputs = [node for node in gm.graph.nodes if node.op == "placeholder"]
    given = [getattr(one, "meta", {}) for one in gm.graph.output_node().args[0]]
    results = [
        value if isinstance(value := m.get("example_value"), Tensor) else None for m in given
    ]
    again, _here.recompiled = _here.recompiled, None
    if again is not None and again.code is not output.root_tx.f_code:
        again = None  # of a function that gave no graph
    return _values(inputs), results, _broken(output), again


def _broken(output: Any) -> Break | None:
    ended = output.compile_subgraph_reason
    if not ended.graph_break:
        return None
    return Break(ended.reason, tuple((f.filename, f.lineno or 0) for f in ended.user_stack))


def end() -> None:
    """Nothing is compiled any more."""
    _here.output, _here.trace, _here.again, _here.recompiled = None, None, False, None
    if _theirs:
        _utils().run_node = _theirs["run"]
        _output_graph().call_user_compiler = _theirs["compile"]
        _functions().call_apply = _theirs["apply"]
        _theirs.clear()


def new_trace(code: Any) -> Trace | None:
    """The trace of this code's graph, if that was the last that was compiled here, once."""
    (last, trace), _here.new = _here.new, (None, None)
    return trace if last is code else None


def _tell(event: str, *what: Any) -> None:
    if _here.trace is not None:
        try:
            getattr(_here.trace, event)(*what)
        except Exception:  # the region stays closed
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
    """The last node that stands in dynamo's graph for a custom Function; None for none."""
    apply = import_module("torch._functorch.autograd_function").autograd_function_apply
    found = tx.output.graph.find_nodes(op="call_function", target=apply)
    return found[-1] if found else None


def _order(node: Any, args: Any) -> list[int]:
    """Which argument of the program's each operand of a custom Function is, among the tensors."""
    proxies = [arg.as_proxy() for arg in args]
    given = [proxy.node for proxy in proxies if isinstance(proxy, torch.fx.Proxy)]
    return [given.index(one) for one in node.args[2:] if _values([one])]


def _kinds() -> list[Any]:
    """The classes of nodes that regions have so far."""
    functions: list[Any] = torch.autograd.Function.__subclasses__()
    return [one._backward_cls for one in functions if one.__name__ == "CompiledFunction"]
