"""Test the experiment that runs a compiled model eagerly, and compares the operations."""

from __future__ import annotations

import gc
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphviz_torch import record
from graphviz_torch.experiments import experiment
from tests.experiments.programs import net

pytestmark = pytest.mark.usefixtures("the_same_numbers")
Rewrite = Callable[[torch.fx.Node], None]


@pytest.fixture(autouse=True)
def nothing_compiled() -> None:
    """Reset Dynamo, which compiles the same code for at most eight backends."""
    torch._dynamo.reset()


class Block(nn.Module):
    """A few operations, each on a line of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.head = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = self.fc(x)
        low = h.to(torch.bfloat16)
        h = h - low.float() * 3
        h = F.layer_norm(h, (8,))
        a = h.relu()
        h = h * 0.5 + a
        h = torch.sub(h, a)
        return self.head(h)


def another_epsilon(node: torch.fx.Node) -> None:
    if node.target is F.layer_norm:
        node.args = (*node.args[:2], None, None, 0.5)


def without_cast(node: torch.fx.Node) -> None:
    if node.target == "to":
        node.replace_all_uses_with(node.args[0])


def other_operands(node: torch.fx.Node) -> None:
    if node.target is torch.sub:
        node.args = (node.args[1], node.args[0])


def folded_wrongly(node: torch.fx.Node) -> None:
    if node.target is operator.mul and node.args[1] == 0.5:
        node.args = (node.args[0], int(0.5))


def buffer_used_again(node: torch.fx.Node) -> None:
    if node.target == "relu":
        node.target = "relu_"


def compiler(rewrite: Rewrite) -> Callable[[Any, Any], Any]:
    """Return a backend that rewrites graphs in this way."""

    def compile_graph(graph: Any, inputs: Any) -> Any:
        for node in list(graph.graph.nodes):
            rewrite(node)
        graph.recompile()
        return graph

    return compile_graph


def step(model: nn.Module) -> Any:
    with record(model, experiments=True) as recording:
        model(torch.randn(6, 8)).mean().backward()
    return recording


def compiled(backend: Any, model: nn.Module | None = None) -> Any:
    return torch.compile(model or Block(), backend=backend)


def compiled_in_place(backend: Any) -> nn.Module:
    model = Block()
    model.compile(backend=backend)
    return model


def a_part(backend: Any) -> nn.Module:
    forward: Any = lambda self, x: self.head(self.block(x))  # noqa: E731
    return net(forward, block=compiled(backend), head=nn.Linear(8, 8))


@pytest.mark.parametrize("make", [compiled, compiled_in_place, a_part], ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    ("rewrite", "operation", "line"),
    [
        (another_epsilon, "layer_norm", "F.layer_norm(h"),
        (without_cast, "float", "low.float()"),
        (other_operands, "sub", "torch.sub(h, a)"),
        (folded_wrongly, "mul", "h * 0.5"),
        (buffer_used_again, "mul", "h * 0.5"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_where_a_compiler_changes_values_is_named_with_its_line(
    rewrite: Rewrite, operation: str, line: str, make: Callable[[Any], nn.Module]
) -> None:
    [found] = experiment(step(make(compiler(rewrite))), "eager")
    assert found.finding is not None, str(found)
    assert found.finding.rule == "compiled-differs"
    assert operation in found.operation
    assert "test_compiled.py:" in found.where
    number = int(found.where.rpartition(":")[2])
    assert line in Path(__file__).read_text().splitlines()[number - 1]


def operands_of_a_sum(node: torch.fx.Node) -> None:
    if node.target is operator.add:
        node.args = (node.args[1], node.args[0])


def module_of_another_name(node: torch.fx.Node) -> None:
    if node.target is operator.mul:
        node.target = torch.mul


def broken_graph(self: Any, x: Tensor) -> Tensor:
    h = self.fc(x)
    torch._dynamo.graph_break()
    return self.fc(h.relu())


@pytest.mark.parametrize(
    "make",
    [
        lambda: compiled("eager"),
        lambda: compiled("aot_eager"),
        lambda: compiled(compiler(operands_of_a_sum)),
        lambda: compiled(compiler(module_of_another_name)),
        lambda: compiled("aot_eager", net(broken_graph, fc=nn.Linear(8, 8))),
        lambda: compiled("aot_eager", nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))),
    ],
)
def test_what_compilers_may_do_is_no_finding(make: Callable[[], nn.Module]) -> None:
    [found] = experiment(step(make()), "eager")
    assert found.holds is True, str(found)


def test_a_compiled_region_that_draws_random_numbers_is_not_judged() -> None:
    model = compiled("aot_eager", nn.Sequential(nn.Linear(8, 8), nn.Dropout()))
    [found] = experiment(step(model), "eager")
    assert (found.holds, found.finding) == (None, None)
    assert "random numbers" in found.message


def test_nothing_is_compiled_for_the_program_and_no_count_differs_afterwards() -> None:
    graphs = []

    def count(graph: Any, inputs: Any) -> Any:
        graphs.append(len(graph.graph.nodes))
        return compiler(other_operands)(graph, inputs)

    model = compiled(count)
    recording = step(model)
    counters, names = torch._dynamo.utils.counters, set(globals())
    before = {name: dict(counted) for name, counted in counters.items()}
    [known] = graphs
    [found] = experiment(recording, "eager")
    assert found.finding is not None
    gc.collect()
    assert {name: dict(counted) for name, counted in counters.items()} == before
    assert set(globals()) == names
    assert len(graphs) == 2  # a second graph, with what is to be seen
    assert graphs[1] > known
    model(torch.randn(6, 8))
    assert len(graphs) == 2  # the program's own code is still there
