"""Compare compiled regions with eager mode: custom Functions, lines of libraries, module paths.

The model is compiled during the recording or before it. The expected values come from the same
model, recorded without torch.compile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from graphviz_torch import record
from graphviz_torch.graph import Graph
from tests.recording.test_compiled import nothing_compiled_stays  # noqa: F401
from tests.support import models
from tests.support.models import Swish

# What dynamo runs for the same function of the program's.
SAME = {"UnsafeViewBackward0": "ViewBackward0", "ReshapeAliasBackward0": "ViewBackward0"}
SAME |= {"NativeDropoutBackward0": "MulBackward0"}

Key = tuple[str, str, str, str]


class Scaled(torch.autograd.Function):
    """A Function of two operands and a number, with setup_context."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, scale: Tensor, power: int) -> Tensor:
        return x * scale**power

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, scale, ctx.power = inputs
        ctx.save_for_backward(x, scale)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, scale = ctx.saved_tensors
        return grad * scale**ctx.power, (grad * x * ctx.power * scale).sum(0), None


class Sorted(torch.autograd.Function):
    """A Function with two results, the second of which has no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        values, order = x.sort(-1)
        ctx.save_for_backward(order)
        ctx.mark_non_differentiable(order)
        return values, order

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> Tensor:
        [order] = ctx.saved_tensors
        return torch.zeros_like(grad).scatter(-1, order, grad)


class Split(torch.autograd.Function):
    """A Function with two results, both with a gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, x * 3

    @staticmethod
    def backward(ctx: Any, first: Tensor, second: Tensor) -> Tensor:
        return first * 2 + second * 3


class Act(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return Swish.apply(x)


class Model(nn.Module):
    def __init__(self, calls: Callable[[Model, Tensor], Tensor]) -> None:
        super().__init__()
        self.a, self.b, self.act = nn.Linear(8, 8), nn.Linear(8, 8), Act()
        self.scale = nn.Parameter(torch.ones(8))
        self.calls = calls

    def forward(self, x: Tensor) -> Tensor:
        return self.calls(self, x)


def squared(m: Model, x: Tensor) -> Tensor:
    h = Swish.apply(m.a(x))
    return m.b(h * h)


def alone(m: Model, x: Tensor) -> Tensor:
    return m.b(Swish.apply(m.a(x)))


def in_a_module(m: Model, x: Tensor) -> Tensor:
    return m.b(m.act(m.a(x)))


def twice(m: Model, x: Tensor) -> Tensor:
    h = Swish.apply(m.a(x))
    return m.b(Swish.apply(h) + h)


def of_an_input(m: Model, x: Tensor) -> Tensor:
    return m.b(x) + Swish.apply(m.scale)


def with_setup_context(m: Model, x: Tensor) -> Tensor:
    return m.b(Scaled.apply(m.a(x), m.scale, 2))


def with_indices(m: Model, x: Tensor) -> Tensor:
    values, order = Sorted.apply(m.a(x))
    return m.b(values) + order


def with_two_results(m: Model, x: Tensor) -> Tensor:
    first, second = Split.apply(m.a(x))
    return m.b(first.sin()) + second.cos()


def of_no_gradient(m: Model, x: Tensor) -> Tensor:
    return m.b(Swish.apply(m.a(x)) + Swish.apply(x))


def before_a_cut(m: Model, x: Tensor) -> Tensor:
    return m.b(x * Swish.apply(m.a(x)).detach())


CALLS = (
    squared,
    alone,
    in_a_module,
    twice,
    of_an_input,
    with_setup_context,
    with_indices,
    with_two_results,
    of_no_gradient,
    before_a_cut,
)


def recorded(
    model: nn.Module, run: Callable[..., Any], *args: Tensor, before: int = 0, **options: Any
) -> Graph:
    for _ in range(before):
        run(*args, **options)
    with record(model) as recording:
        output = run(*args, **options)
        loss = output if isinstance(output, Tensor) else output[0]
        loss.square().mean().backward()
    recording.graph.check()
    return recording.graph


def nodes_and_edges(graph: Graph) -> tuple[Counter[Key], Counter[tuple[Key, Key, int]]]:
    """What a node is and where it comes from; the region's own node is left out."""
    keys = [
        (SAME.get(node.name, node.name), node.module, node.scope, node.where)
        for node in graph.nodes
    ]
    own = {node.id for node in graph.nodes if node.operation == "compiled"}
    ends: dict[int, list[int]] = {}
    for edge in graph.edges:
        if edge.target in own:
            ends.setdefault(edge.target, []).append(edge.source)
    edges = Counter(
        (keys[source], keys[edge.target], edge.input_nr)
        for edge in graph.edges
        for source in ends.get(edge.source, [edge.source])
        if edge.target not in own
    )
    return Counter(keys[node.id] for node in graph.nodes if node.id not in own), edges


@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("calls", CALLS)
def test_a_custom_function_inside_is_a_node_with_its_edges(
    calls: Callable[[Model, Tensor], Tensor], before: int
) -> None:
    model, x = Model(calls), torch.rand(4, 8)
    eager = recorded(model, model, x)
    compiled = recorded(model, torch.compile(model, backend="aot_eager"), x, before=before)
    assert any("torch.compile region" in node.note for node in compiled.nodes)
    assert nodes_and_edges(compiled) == nodes_and_edges(eager)


def test_a_cut_behind_a_custom_function_is_eagers() -> None:
    model, x = Model(before_a_cut), torch.rand(4, 8)
    runs = (model, torch.compile(model, backend="aot_eager"))
    eager, compiled = (
        [(cut.how, cut.tensor, cut.where, cut.module) for cut in recorded(model, run, x).cuts]
        for run in runs
    )
    assert compiled == eager != []


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("make", [models.gpt2, models.llama])
def test_a_librarys_model_has_eagers_paths_and_the_users_line(
    make: Callable[[int], nn.Module], before: int
) -> None:
    model, words = make(2).train(), models.tokens()  # in eval mode dynamo clones for a dropout
    eager = recorded(model, model, words)
    compiled = recorded(model, torch.compile(model, backend="aot_eager"), words, before=before)
    found, expected = nodes_and_edges(compiled), nodes_and_edges(eager)
    assert any(", called at test_as_eager_has_it.py:" in source for *_, source in expected[0])
    assert found[0] == expected[0]


def test_of_a_module_of_pytorchs_that_is_compiled_every_node_has_its_line() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    x = torch.rand(2, 3, 8)
    eager = nodes_and_edges(recorded(model, model, x))
    for each in model.layers:
        each.compile(backend="aot_eager")
    assert nodes_and_edges(recorded(model, model, x)) == eager


def test_a_layer_that_uses_the_code_of_another_does_not_get_its_path() -> None:
    model = nn.ModuleDict({"one": nn.Linear(8, 8), "two": nn.Linear(8, 8)})

    @torch.compile(backend="aot_eager")
    def called(layer: nn.Module, x: Tensor) -> Tensor:
        return layer(x).relu()

    x = torch.rand(4, 8)
    with record(model) as recording:
        (called(model["one"], x) * called(model["two"], x)).sum().backward()
    graph = recording.graph
    modules = {node.id: node.module for node in graph.nodes if node.note == "inside torch.compile"}
    leaves = {node.id: node.module for node in graph.nodes if node.leaf}
    pairs = {(leaves[e.source], modules[e.target]) for e in graph.edges if e.source in leaves}
    assert pairs == {("one", "one"), ("two", "")}  # "two" uses the code of "one"
