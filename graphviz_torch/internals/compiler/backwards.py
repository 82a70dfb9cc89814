"""The seam that runs a region's backward once more, before the compiled one, and compares the two.

AOTAutograd keeps the graph that it gave to the compiler. It runs here operation by operation, on
the values that the compiled backward is about to take, seen by nobody. It says something of the
compiled backward only where both end with the same gradients, bit by bit.

It is not run where that could change anything: where an operation draws random numbers, writes into
what it is given, or is not PyTorch's own, as one that other processes wait for.

Private: what a region's node calls with all that its backward takes, and the graph (2.13).
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


class Backwards(Protocol):
    """What is told of the backward of one region."""

    @property
    def values(self) -> Collection[str]:
        """Names of those in its graph that are to be shown."""

    def see(self, name: str, value: Tensor) -> None:
        """The value of this name."""

    def describe(self) -> None:
        """They were all shown, and are to be described now."""

    def equal(self) -> None:
        """It ended with the gradients of the compiled backward."""

    def miss(self, why: str) -> None:
        """It did not, or could not run."""


class RegionBackwardWatch(Watch):
    """A context in which the backwards of these regions run once more.

    Args:
        told: what is told of each, by the region's live node.
    """

    def __init__(self, told: Mapping[Any, Backwards]) -> None:
        self.told = dict(told)

    def close(self) -> None:
        """Watch no more, and hold no node."""
        super().close()
        self.told.clear()


_theirs: dict[Any, Callable[..., Any]] = {}  # by the class of the region


def _replaced(theirs: Callable[..., Any]) -> Callable[..., Any]:
    def _backward_impl(node: Any, values: list[Any]) -> Any:
        told = next((w.told[node] for w in _INSTALLATION.watchers if node in w.told), None)
        if told is None:
            return theirs(node, values)
        gradients = _run(node, list(values), told)
        result = theirs(node, values)
        if gradients is not None:
            _compare(gradients, result, told)
        return result

    return _backward_impl


def _compare(gradients: list[Any], result: Any, told: Backwards) -> None:
    try:
        with unseen_calls(), unseen(), unseen_operators(), torch.no_grad():
            same = _same(gradients, result)
    except Exception as error:
        told.miss(f"its gradients could not be compared ({type(error).__name__})")
        return
    if same:
        told.equal()
    else:
        told.miss("run operation by operation, it gives other bits than compiled")


def _run(node: Any, values: list[Any], told: Backwards) -> list[Any] | None:
    """The gradients that the graph ends with; None where it was not run."""
    info = getattr(type(node)._forward_cls, "_lazy_backward_info", None)
    module = getattr(info, "bw_module", None)
    if not isinstance(module, GraphModule):
        told.miss("the code came from a cache, without the graph of its backward")
        return None
    if not told.values:
        told.miss("no value in the graph of its backward could be traced to a node inside")
        return None
    reason = _refusal(module)
    if reason:
        told.miss(reason)
        return None
    try:
        with unseen_calls(), unseen(), unseen_operators(), torch.no_grad(), no_autocast():
            given = _Values(module, told).run(*values, enable_io_processing=False)
            told.describe()
    except Exception as error:
        told.miss(f"its graph could not be run again ({type(error).__name__})")
        return None
    return list(given)


class _Values(Interpreter):
    """Runs a graph, and shows the values that are asked for."""

    def __init__(self, module: GraphModule, told: Backwards) -> None:
        super().__init__(module)
        self._told = told

    def run_node(self, n: Any) -> Any:
        value = super().run_node(n)
        if n.name in self._told.values and isinstance(value, Tensor):
            self._told.see(n.name, value)
        return value


def _refusal(module: GraphModule) -> str:
    """Why a graph is not to be run once more; "" where it may."""
    for op in module.graph.nodes:
        target: Any = op.target
        drawn_again = str(target) == "run_with_rng_state"  # as in forward; it puts the state back
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


def _same(these: list[Any], those: Any) -> bool:
    return len(these) == len(those) and all(map(_equal, these, those))


def _equal(one: Any, other: Any) -> bool:
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return one is other or (type(one) is type(other) and bool(one == other))
    if one.shape != other.shape or one.dtype != other.dtype or one.device != other.device:
        return False
    return torch.equal(one, other) or bool(((one == other) | (one != one) & (other != other)).all())


def _install() -> None:
    for watch in _INSTALLATION.watchers:
        for kind in {type(node)._forward_cls for node in watch.told}:
            if kind not in _theirs:
                _theirs[kind] = theirs = kind._backward_impl
                kind._backward_impl = staticmethod(_replaced(theirs))


def _remove() -> None:
    while _theirs:
        kind, theirs = _theirs.popitem()
        kind._backward_impl = staticmethod(theirs)


_INSTALLATION: Installation[RegionBackwardWatch] = Installation(_install, _remove)
RegionBackwardWatch.installation = _INSTALLATION
