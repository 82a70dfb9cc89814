"""Test that other tools that observe a program see the same inside a recording."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from functorch.experimental.control_flow import map as torch_map
from torch import Tensor, nn
from torch._dynamo import compiled_autograd
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from graphviz_torch import record
from graphviz_torch.recording.cuts.cuts import Cuts
from tests.support.programs import Functions, Operators


class Model(nn.Module):
    """A model that uses a weight twice, once after a cut."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.w.detach()).sum() + (self.w * x).sum()


X = torch.ones(4, 3)


def product(x: Tensor, w: Tensor) -> Tensor:
    return (x * w.detach()).sum() + (w * x).sum()


class Outer(nn.Module):
    """A model with modules inside."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(Model(), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * 2


def exported(dynamic: bool, strict: bool) -> list[Any]:
    """The program, which modules its operations are of, and what it computes."""
    shapes = {"x": {0: torch.export.Dim("batch")}} if dynamic else None
    program = torch.export.export(Outer(), (X,), strict=strict, dynamic_shapes=shapes)
    graph = program.graph_module
    modules = [
        [path for path, _ in node.meta.get("nn_module_stack", {}).values()]
        for node in graph.graph.nodes
    ]
    return [str(graph.code), str(program.graph_signature), modules, program.module()(X).tolist()]


def traced(mode: str) -> str:
    return str(make_fx(product, tracing_mode=mode)(X, Model().w).code)


def watched(mode: Any) -> list[str]:
    model = Model()
    with mode:
        model(X).backward()
    return [str(func) for func in mode.calls]


def policy() -> list[str]:
    seen: list[str] = []

    def rule(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        seen.append(str(operator))
        return CheckpointPolicy.PREFER_RECOMPUTE

    contexts = functools.partial(create_selective_checkpoint_contexts, rule)
    x = X.clone().requires_grad_()
    out: Any = checkpoint(Model(), x, use_reentrant=False, context_fn=contexts)
    out.backward()
    return seen


WATCHERS: dict[str, Callable[[], Any]] = {
    "export": lambda: exported(dynamic=False, strict=False),
    "export, dynamic": lambda: exported(dynamic=True, strict=False),
    "strict export": lambda: exported(dynamic=False, strict=True),
    "strict export, dynamic": lambda: exported(dynamic=True, strict=True),
    "make_fx": lambda: traced("real"),
    "make_fx, symbolic": lambda: traced("symbolic"),
    "dispatch mode": lambda: watched(Operators()),
    "function mode": lambda: watched(Functions()),
    "checkpoint policy": policy,
    "opcheck": lambda: torch.library.opcheck(
        torch.ops.aten.mm.default, (torch.ones(2, 2, requires_grad=True), torch.ones(2, 2))
    ),
}


@pytest.mark.parametrize("watcher", WATCHERS)
def test_a_watcher_sees_what_it_sees_outside(watcher: str) -> None:
    bare = WATCHERS[watcher]()
    with record():
        assert WATCHERS[watcher]() == bare


# An export that raises there leaves a hook on all modules, without a recording too.
_LEAVES = pytest.mark.skipif(torch.__version__ < "2.12", reason="torch 2.8 to 2.11 leave a hook")


@pytest.mark.parametrize("strict", [True, pytest.param(False, marks=_LEAVES)])
def test_modules_are_seen_again_after_an_export_that_ran_or_raised(strict: bool) -> None:
    class Refused(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + 1 if x.sum() > 0 else x - 1

    model = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    with record() as outer:
        with record(model) as recording:
            torch.export.export(model, (X,), strict=strict)
            with pytest.raises(Exception, match=r"data-dependent|Could not guard"):
                torch.export.export(Refused(), (X,), strict=strict)
            assert not torch.compiler.is_exporting()
            model(X).sum().backward()
        torch.export.export(model, (X,), strict=strict)
        model(X).sum().backward()
    for graph in (recording.graph, outer.graph):
        assert {node.module for node in graph.nodes if node.name == "ReluBackward0"} == {"1"}
    torch.export.export(model, (X,), strict=strict)  # nothing is there to come back


HIGHER_ORDER: dict[str, Callable[[Tensor], Tensor]] = {
    "cond": lambda x: torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,)),
    "map": lambda x: torch_map(lambda x: x * 2, x),
}


@pytest.mark.parametrize("operator", HIGHER_ORDER)
def test_higher_order_operators_run(operator: str) -> None:
    x = torch.ones(3)
    bare = HIGHER_ORDER[operator](x)
    with record():
        assert torch.equal(HIGHER_ORDER[operator](x), bare)


def test_a_backward_that_is_compiled_runs_and_its_graph_says_what_is_missing() -> None:
    torch._dynamo.reset()
    x = torch.ones(3, requires_grad=True)
    y = x * 2
    y.register_hook(lambda gradient: gradient * 2)
    compiler = functools.partial(torch.compile, backend="eager", fullgraph=True)
    enabled: Any = compiled_autograd._enable(compiler)  # type: ignore[no-untyped-call]
    with record() as recording, enabled:
        y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [4, 4, 4]
    (end,) = recording.graph.outputs
    assert "compiled autograd" in recording.graph.nodes[end[0]].note


class Pointer(torch.autograd.Function):
    """Notes where the values of its gradient lie."""

    at = 0

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        return a + b

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        Pointer.at = gradient._values().data_ptr()
        return gradient, gradient


def test_a_sparse_gradient_is_taken_by_its_leaf_and_not_copied() -> None:
    leaves = [torch.ones(10, 3, requires_grad=True) for _ in range(2)]
    with record() as recording:
        weight = Pointer.apply(*leaves)  # type: ignore[no-untyped-call]
        indices, offsets = torch.tensor([1, 2, 4, 5]), torch.tensor([0, 2])
        bags = nn.functional.embedding_bag(indices, weight, offsets, sparse=True)
        bags.sum().backward()
    grads: list[Any] = [leaf.grad for leaf in leaves]
    assert Pointer.at in [grad._values().data_ptr() for grad in grads]
    assert all(n.grad_outputs for n in recording.graph.nodes if n.leaf)


class Minus:
    """A tensor-like object that answers each call with a number."""

    requires_grad = True

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return -1


class Odd(Tensor):
    """A tensor subclass that answers each call with a word."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        odd: Any = (Tensor.detach, Tensor.requires_grad.__get__, Tensor.grad_fn.__get__)  # type: ignore[attr-defined]
        return "odd" if func in odd else super().__torch_function__(func, types, args, kwargs or {})


def test_objects_that_answer_with_something_else_do_so() -> None:
    minus: Any = Minus()
    odd: Any = torch.ones(2, 2).as_subclass(Odd)
    x = torch.ones(2, requires_grad=True)
    with record() as recording:
        assert torch.mm(minus, minus) == -1
        assert torch.add(x, minus) == -1
        assert (odd.detach(), odd.requires_grad) == ("odd", "odd")
        with torch.no_grad():
            assert odd.detach() == "odd"
        (x * 2).sum().backward()
    assert recording.graph.nodes


def test_what_we_cannot_read_is_noted_and_never_reaches_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise LookupError("no such thing")

    monkeypatch.setattr(Cuts, "on_call_end", fail)
    x = torch.ones(2, requires_grad=True)
    with record() as recording:
        assert torch.equal(x.detach(), x)
        (x * 2).sum().backward()
    graph = recording.graph
    assert "not recorded: LookupError: no such thing" in graph.nodes[graph.outputs[0][0]].note


def test_a_profiler_counts_as_many_of_the_programs_operators() -> None:
    """What a recording computes of gradients it computes with others: norms, comparisons."""

    def counted(recorded: bool) -> dict[str, int]:
        x, y = torch.randn(10, 10, requires_grad=True), torch.randn(10, 10, requires_grad=True)
        profiled = torch.autograd.profiler.profile()
        with profiled as profile, record() if recorded else nullcontext():
            ((x + y) * x).sum().backward()
        names = [event.name for event in profile.function_events]
        return {name: names.count(name) for name in ("aten::add", "aten::mul", "aten::sum")}

    bare = counted(False)
    assert all(bare.values())
    assert counted(True) == bare
