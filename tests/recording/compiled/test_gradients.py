"""compiled="gradients" shows the gradients inside, or says why not, and the step stays as it is.

The answers come from the eager model's own gradients, and from the compiled step unrecorded.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from graphviz_torch import find, record
from graphviz_torch.graph import Graph, Node
from graphviz_torch.recording.compiled import gradients
from tests.recording.compiled.test_as_eager_has_it import SAME, Swish
from tests.recording.test_compiled import nothing_compiled_stays  # noqa: F401
from tests.support.models import TransformerBlock

X = torch.linspace(-1, 1, 64).view(2, 4, 8)


class Model(nn.Module):
    def __init__(self, calls: Callable[[Model, Tensor], Tensor]) -> None:
        super().__init__()
        self.a, self.b, self.block = nn.Linear(8, 8), nn.Linear(8, 8), TransformerBlock()
        self.drop = nn.Dropout(0.5)
        self.calls = calls

    def forward(self, x: Tensor) -> Tensor:
        return self.calls(self, x)


def with_a_custom_function(m: Model, x: Tensor) -> Tensor:
    h = Swish.apply(m.a(x))
    return m.b(h) + torch.add(h, x, alpha=3) - h.sum()


def with_breaks(m: Model, x: Tensor) -> Tensor:
    h = m.a(x).relu()
    torch._dynamo.graph_break()
    h = h * m.b(h).sigmoid()
    torch._dynamo.graph_break()
    return m.b(h) * 2


def with_a_checkpoint(m: Model, x: Tensor) -> Tensor:
    return m.b(checkpoint(lambda h: m.drop(m.block(h)), m.a(x), use_reentrant=False))


def root_of_zero(m: Model, x: Tensor) -> Tensor:
    h = m.a(x)
    return m.b((h - h).sqrt())


def compiled(calls: Callable[[Model, Tensor], Tensor]) -> tuple[Model, Any]:
    torch.manual_seed(0)
    model = Model(calls)
    return model, torch.compile(model, backend="aot_eager")


def step(model: Model, run: Any, **options: Any) -> tuple[Graph | None, list[Tensor]]:
    model.zero_grad()
    torch.manual_seed(1)
    with record(model, **options) if options else nullcontext() as recording:
        loss = run(X).square().mean()
        loss.backward()
    given = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    graph = None if recording is None else recording.graph
    return graph, [loss.detach(), *given, torch.get_rng_state()]


def known(graph: Graph | None) -> list[Node]:
    assert graph is not None
    return [node for node in graph.nodes if node.operation not in ("", "compiled", "pow", "mean")]


def norms(graph: Graph | None) -> list[tuple[Any, ...]]:
    rows = (
        (
            SAME.get(node.name, node.name),
            node.where,
            str(node.outputs),
            [0.0 if stats is None else float(f"{stats.norm:.3g}") for stats in node.grad_outputs],
        )
        for node in known(graph)
    )
    return sorted(rows)


@pytest.mark.parametrize("calls", [with_a_custom_function, with_breaks, with_a_checkpoint])
def test_the_nodes_inside_have_eagers_gradients_and_the_step_its_bits(
    calls: Callable[[Model, Tensor], Tensor],
) -> None:
    model, run = compiled(calls)
    eager, _ = step(model, model, compiled="open")
    step(model, run)
    _, bare = step(model, run)
    graph, found = step(model, run, compiled="gradients")
    assert all(map(torch.equal, found, bare))
    assert len(found) == len(bare)
    assert norms(graph) == norms(eager)


def test_what_made_a_nan_inside_is_named() -> None:
    model, run = compiled(root_of_zero)
    told = []
    for each in model, run:
        graph, _ = step(model, each, compiled="gradients")
        told += [(f.message, f.where) for f in find(graph) if f.rule == "nonfinite-gradient"]
    assert told[0] == told[1]


def region(graph: Graph | None) -> Node:
    assert graph is not None
    [found] = [node for node in graph.nodes if node.operation == "compiled"]
    return found


def backward_of(run: Any) -> Any:
    return type(run(X).grad_fn)._forward_cls._lazy_backward_info.bw_module


def test_where_the_gradients_differ_nothing_is_shown() -> None:
    model, run = compiled(with_a_custom_function)
    step(model, run)
    module = backward_of(run)
    multiplied = module.graph.find_nodes(op="call_function", target=torch.ops.aten.mm.default)
    with module.graph.inserting_after(multiplied[0]):
        doubled = module.graph.call_function(torch.ops.aten.mul.Tensor, (multiplied[0], 2.0))
    doubled.meta.update(multiplied[0].meta)
    multiplied[0].replace_all_uses_with(doubled, delete_user_cb=lambda user: user is not doubled)
    module.recompile()
    _, bare = step(model, run)
    graph, found = step(model, run, compiled="gradients")
    assert all(map(torch.equal, found, bare))
    assert not any(node.grad_outputs for node in known(graph))
    assert "gives other bits than compiled" in region(graph).note


def test_a_graph_that_is_not_as_it_was_is_not_run_and_it_is_said() -> None:
    def cleared(module: Any) -> None:  # as inductor leaves it
        for node in module.graph.nodes:
            node.meta.clear()

    def drawn(module: Any) -> None:
        [end] = module.graph.find_nodes(op="output")
        with module.graph.inserting_before(end):
            module.graph.call_function(torch.ops.aten.rand_like.default, (end.args[0][0],))

    for change, why in (cleared, "could be traced"), (drawn, "draws random numbers"):
        torch._dynamo.reset()
        model, run = compiled(with_a_custom_function)
        step(model, run)
        change(backward_of(run))
        graph, _ = step(model, run, compiled="gradients")
        assert not any(node.grad_outputs for node in known(graph))
        assert why in region(graph).note


def test_nothing_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    values, see = [], gradients._RegionGradients.on_value

    def noted(self: Any, name: str, value: Tensor) -> None:
        values.append(weakref.ref(value))
        see(self, name, value)

    monkeypatch.setattr(gradients._RegionGradients, "on_value", noted)
    model, run = compiled(with_a_custom_function)
    step(model, run)
    kind = type(run(X).grad_fn)._forward_cls
    before = kind._backward_impl
    step(model, run, compiled="gradients")
    assert len(values) > 5
    assert not any(value() is not None for value in values)
    assert kind._backward_impl is before
