"""Run a region's backward graph eagerly, and compare its gradients with the compiled ones.

AOTAutograd keeps the graph that it gave to the compiler. Before the compiled backward runs, that
graph is run operation by operation on the same inputs, hidden from all modes. Its values describe
the compiled backward only if both produce the same gradients bit by bit.

The graph is not run if that could have side effects: if an operation draws random numbers, mutates
its arguments, or is not PyTorch's own (such as a collective, which other processes wait for).

Uses private API (2.13): the function that a region's node calls with the inputs of its backward,
and the graph.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter

from ..guards import no_autocast
from ..hooks.dispatch import unseen
from ..hooks.modes import unseen_calls, unseen_operators
from ..hooks.watch import Installation, Watch


class RegionBackwardCallbacks(Protocol):
    """Callbacks for the backward of one region."""

    @property
    def values(self) -> Collection[str]:
        """Names of the graph's values to report."""

    def on_value(self, name: str, value: Tensor) -> None:
        """Receive a value and its name."""

    def on_complete(self) -> None:
        """Describe the values, after all of them were received."""

    def on_equal(self) -> None:
        """Accept the gradients, which equal those of the compiled backward."""

    def on_mismatch(self, why: str) -> None:
        """Receive the reason if the gradients differ, or if the graph could not be run."""


class RegionBackwardWatch(Watch):
    """A watch that runs the backward graphs of some regions.

    Args:
        callbacks: callbacks by the region's live node.
    """

    def __init__(self, callbacks: Mapping[Any, RegionBackwardCallbacks]) -> None:
        self.callbacks = dict(callbacks)

    def close(self) -> None:
        """Stop watching and drop all references to nodes."""
        super().close()
        self.callbacks.clear()


_originals: dict[Any, Callable[..., Any]] = {}  # PyTorch's functions, by the class of the region


def _wrap_backward(original: Callable[..., Any]) -> Callable[..., Any]:
    def _backward_impl(node: Any, values: list[Any]) -> Any:
        callbacks = next(
            (w.callbacks[node] for w in _INSTALLATION.watchers if node in w.callbacks), None
        )
        if callbacks is None:
            return original(node, values)
        gradients = _run(node, list(values), callbacks)
        result = original(node, values)
        if gradients is not None:
            _compare(gradients, result, callbacks)
        return result

    return _backward_impl


def _compare(gradients: list[Any], result: Any, callbacks: RegionBackwardCallbacks) -> None:
    try:
        with unseen_calls(), unseen(), unseen_operators(), torch.no_grad():
            same = _all_equal(gradients, result)
    except Exception as error:
        callbacks.on_mismatch(f"its gradients could not be compared ({type(error).__name__})")
        return
    if same:
        callbacks.on_equal()
    else:
        callbacks.on_mismatch("run operation by operation, it gives other bits than compiled")


def _run(node: Any, values: list[Any], callbacks: RegionBackwardCallbacks) -> list[Any] | None:
    """Return the gradients that the graph computes, or None if it was not run."""
    info = getattr(type(node)._forward_cls, "_lazy_backward_info", None)
    module = getattr(info, "bw_module", None)
    if not isinstance(module, GraphModule):
        callbacks.on_mismatch("the code came from a cache, without the graph of its backward")
        return None
    if not callbacks.values:
        callbacks.on_mismatch("no value in its backward graph could be traced to a node inside")
        return None
    reason = _refusal(module)
    if reason:
        callbacks.on_mismatch(reason)
        return None
    try:
        with unseen_calls(), unseen(), unseen_operators(), torch.no_grad(), no_autocast():
            given = _ReportingInterpreter(module, callbacks).run(
                *values, enable_io_processing=False
            )
            callbacks.on_complete()
    except Exception as error:
        callbacks.on_mismatch(f"its graph could not be run again ({type(error).__name__})")
        return None
    return list(given)


class _ReportingInterpreter(Interpreter):
    """Interpreter that reports the requested values of a graph."""

    def __init__(self, module: GraphModule, callbacks: RegionBackwardCallbacks) -> None:
        super().__init__(module)
        self._callbacks = callbacks

    def run_node(self, n: Any) -> Any:
        value = super().run_node(n)
        if n.name in self._callbacks.values and isinstance(value, Tensor):
            self._callbacks.on_value(n.name, value)
        return value


def _refusal(module: GraphModule) -> str:
    """Return the reason why a graph cannot be run without side effects, or "" if it can."""
    for op in module.graph.nodes:
        target: Any = op.target
        # Draws the same numbers as forward did, and restores the state.
        drawn_again = str(target) == "run_with_rng_state"
        if drawn_again:
            target = op.args[1]
        if op.op in ("placeholder", "output") or target in _ON_SIZES:
            continue
        if not isinstance(target, torch._ops.OpOverload) or target.namespace not in _PURE:
            return f"it calls {target}"
        if torch.Tag.nondeterministic_seeded in target.tags and not drawn_again:
            return f"it draws random numbers ({target})"
        if target._schema.is_mutable:
            return f"it writes into what it is given ({target})"
    return ""


_PURE = frozenset(("aten", "prims"))
_ON_SIZES = frozenset(function for function in vars(operator).values() if callable(function))


def _all_equal(these: list[Any], those: Any) -> bool:
    return len(these) == len(those) and all(map(_equal, these, those))


def _equal(one: Any, other: Any) -> bool:
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return one is other or (type(one) is type(other) and bool(one == other))
    if one.shape != other.shape or one.dtype != other.dtype or one.device != other.device:
        return False
    return torch.equal(one, other) or bool(((one == other) | (one != one) & (other != other)).all())


def _install() -> None:
    for watch in _INSTALLATION.watchers:
        for kind in {type(node)._forward_cls for node in watch.callbacks}:
            if kind not in _originals:
                _originals[kind] = original = kind._backward_impl
                kind._backward_impl = staticmethod(_wrap_backward(original))


def _remove() -> None:
    while _originals:
        kind, original = _originals.popitem()
        kind._backward_impl = staticmethod(original)


_INSTALLATION: Installation[RegionBackwardWatch] = Installation(_install, _remove)
RegionBackwardWatch.installation = _INSTALLATION
