"""Compare each operation inside a compiled module with the same operation run eagerly.

A copy of the module's forward is compiled. In this compilation, the graph also returns the result
of each operation. Afterwards Dynamo's counters are restored, and the names that Dynamo added to the
program's globals are removed. The program's own compiled code is not touched.

Uses private API (2.13): the compiler of a module, Dynamo's counters, and the metadata of operations
in its graphs.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from ...graph.immutable import NamedTuple
from .retrace import restored_counters


class CompiledOperation(NamedTuple):
    """An operation of a compiled region, with its results."""

    name: str  # such as "layer_norm"
    lines: tuple[tuple[str, int], ...]  # (file, line) of each call on its stack, outermost first
    eager: Tensor  # result of the operation run eagerly
    compiled: Tensor  # result of the compiled operation


def compiler_of(module: Module) -> Any:
    """Return the backend with which a module was compiled, or None if it was not compiled."""
    innermost = import_module("torch._dynamo.eval_frame").innermost_backend
    called = getattr(module, "_compiled_call_impl", None)
    if called is not None:
        cells = zip(called.__code__.co_freevars, called.__closure__ or (), strict=True)
        callback = {name: cell.cell_contents for name, cell in cells}.get("callback")
    else:
        callback = getattr(getattr(module, "dynamo_ctx", None), "callback", None)
    return None if callback is None else innermost(callback)


def compare_operations(
    module: Module, args: Any, kwargs: Any, on_operation: Callable[[CompiledOperation], None]
) -> None:
    """Run a compiled module's forward, and report each operation of its graphs.

    Args:
        module: the result of `torch.compile`, or a module that was compiled in place.
        args: arguments of its forward; they may be mutated.
        kwargs: keyword arguments of its forward.
        on_operation: called in order with each operation that returns a floating-point tensor.
    """
    compiler, inner = compiler_of(module), getattr(module, "_orig_mod", module)
    forward = inner.forward
    if compiler is None or not isinstance(forward, MethodType):
        return
    function: Any = forward.__func__
    copy = FunctionType(
        function.__code__.replace(),  # Dynamo caches compiled code by code object
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__

    def compile_both(graph: Any, inputs: Any) -> Any:
        return _compile_both(graph, inputs, compiler, on_operation)

    frames = import_module("torch._dynamo.eval_frame")
    with restored_counters(), torch.compiler.set_stance("default"):
        try:
            torch.compile(MethodType(copy, inner), backend=compile_both)(*args, **kwargs)
        finally:
            # This removes the compiled code and the globals that the code uses.
            frames.reset_code(copy.__code__)


def _compile_both(
    graph: Any, inputs: Any, compiler: Any, on_operation: Callable[[CompiledOperation], None]
) -> Any:
    """Return a function that runs a graph eagerly and compiled, and reports both results.

    Args:
        graph: the graph, as an fx module.
        inputs: example inputs of the graph.
        compiler: the backend that compiles the graph.
        on_operation: called with each operation and its results.
    """
    plain, nodes = _with_results(graph)
    compiled = compiler(_with_results(graph)[0], inputs)
    count = len(plain.graph.output_node().args[0]) - len(nodes)

    def run_both(*args: Any) -> Any:
        others = [a.clone() if isinstance(a, Tensor) else a for a in args]
        results = compiled(*others)[count:]
        expected = plain(*args)
        for node, eager, other in zip(nodes, expected[count:], results, strict=True):
            on_operation(
                CompiledOperation(_name(node), _lines(node), eager.detach(), other.detach())
            )
        return expected[:count]

    return run_both


def _with_results(module: Any) -> tuple[Any, list[Any]]:
    """Return a copy of a graph that also returns all operations' results, and the operations."""
    graph, copies = torch.fx.Graph(), dict[Any, Any]()
    nodes, results = list[Any](), list[Any]()
    for node in module.graph.nodes:
        if node.op == "output":
            graph.output((*torch.fx.map_arg(node.args[0], copies.__getitem__), *results))
            continue
        copies[node] = graph.node_copy(node, copies.__getitem__)
        value = node.meta.get("example_value")
        if node.op.startswith("call") and isinstance(value, Tensor) and value.is_floating_point():
            nodes.append(node)
            results.append(graph.call_function(torch.clone, (copies[node],)))
            results[-1].meta = dict(copies[node].meta)
    return torch.fx.GraphModule(module, graph), nodes


def _name(node: Any) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


def _lines(node: Any) -> tuple[tuple[str, int], ...]:
    found = []
    for line in node.meta.get("stack_trace", "").splitlines():
        head, _, rest = line.strip().partition('", line ')
        if head.startswith('File "') and rest:
            found.append((head.removeprefix('File "'), int(rest.partition(",")[0])))
    return tuple(found)
