"""Test graphs of programs from torch.export, torch.fx, Dynamo and AOTAutograd."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch.export import export
from torch.fx.passes.shape_prop import ShapeProp

from graphviz_torch import Graph, draw_graph, find, record
from graphviz_torch.graph.graph import graph_of


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(8), nn.Linear(8, 8)
        self.register_buffer("scale", torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.norm(x).chunk(2, -1)
        mixed = torch.cat([second, first], -1)
        return x + torch.tanh(self.linear(mixed)) * self.scale


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x).softmax(-1)


@pytest.fixture(scope="module")
def net() -> Net:
    return Net()


@pytest.fixture(scope="module")
def exported(net: Net) -> Graph:
    return graph_of(export(net, (torch.randn(4, 8),)))


def test_an_exported_program_has_the_models_names_shapes_and_modules(
    net: Net, exported: Graph
) -> None:
    leaves = {node.label: node for node in exported.nodes if node.leaf}
    named = {name: list(value.shape) for name, value in net.state_dict().items()}
    assert {name: list(node.outputs[0].shape) for name, node in leaves.items()} == {  # type: ignore[union-attr]
        **named,
        "x": [4, 8],
    }
    assert {name for name, node in leaves.items() if node.leaf == "parameter"} == {
        name for name, _ in net.named_parameters()
    }
    shapes: dict[str, Any] = {}
    for path, module in net.named_modules():
        module.register_forward_hook(
            lambda _m, _a, result, path=path: shapes.update({path: tuple(result.shape)})  # type: ignore[misc]
        )
    net(torch.randn(4, 8))
    for module in net.modules():
        module._forward_hooks.clear()
    for path in ("blocks.0.norm", "blocks.1.linear", "head"):
        [node] = [n for n in exported.nodes if n.module == path and not n.leaf]
        assert node.outputs[0] is not None
        assert node.outputs[0].shape == shapes[path]
        assert node.module_class.rpartition("/")[2] == path.rpartition(".")[2].replace(
            "norm", "LayerNorm"
        ).replace("linear", "Linear").replace("head", "Linear")


def test_its_operations_stand_at_the_lines_at_which_a_recording_has_them(
    net: Net, exported: Graph
) -> None:
    with record(net) as recording:
        net(torch.randn(4, 8)).sum().backward()
    lines = {(node.module, node.line) for node in recording.graph.nodes if node.operation == "tanh"}
    assert len(lines) == 2
    assert {(n.module, n.line) for n in exported.nodes if n.operation == "tanh"} == lines


def test_what_picks_one_of_several_results_is_an_output_of_the_node_that_made_them(
    exported: Graph,
) -> None:
    chunks = [node for node in exported.nodes if node.operation == "chunk"]
    assert [len(node.outputs) for node in chunks] == [2, 2]
    [cat] = [n for n in exported.nodes if n.operation == "cat" and n.module == "blocks.0"]
    into = [(e.source, e.output_nr, e.input_nr) for e in exported.edges if e.target == cat.id]
    assert into == [(chunks[0].id, 1, 0), (chunks[0].id, 0, 1)]
    assert "getitem" not in {node.operation for node in exported.nodes}


def test_an_argument_that_is_no_tensor_stands_at_its_node_by_its_name(exported: Graph) -> None:
    [softmax] = [node for node in exported.nodes if node.operation == "softmax"]
    assert softmax.attributes == ("dim=-1",)
    assert softmax.name == "aten.softmax.int"
    assert exported.outputs == ((softmax.id, 0),)


def test_a_graph_of_fx_is_drawn_with_its_modules_and_without_shapes_that_nobody_knows(
    net: Net,
) -> None:
    module = torch.fx.symbolic_trace(net)
    graph = draw_graph(module).graph
    heads = [(n.name, n.module, n.outputs) for n in graph.nodes if n.module == "head"]
    assert heads == [("Linear", "head", ())]
    assert "shape not known" in draw_graph(module).source
    ShapeProp(module).propagate(torch.randn(4, 8))
    assert [str(n.outputs[0]) for n in graph_of(module).nodes if n.module == "head"] == [
        "f32[4, 3] meta"
    ]


def test_what_dynamo_and_aot_autograd_write_down_is_drawn() -> None:
    found: list[Any] = []

    def keep(module: Any, _examples: Any) -> Any:
        found.append(module)
        return make_boxed_func(module.forward)

    def loss(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w).relu().mean()

    x, w = torch.randn(4, 3), torch.randn(3, 2, requires_grad=True)
    torch.compile(loss, backend=lambda module, _: found.append(module) or module)(x, w)  # type: ignore[func-returns-value]
    torch.compile(loss, backend=aot_autograd(fw_compiler=keep, bw_compiler=keep))(x, w).backward()
    dynamo, forward, backward = map(graph_of, found)
    assert [n.operation for n in dynamo.nodes if not n.leaf] == ["matmul", "relu", "mean"]
    ran = [n.operation for n in forward.nodes]
    assert [operation for operation in ran if operation in ("mm", "relu", "mean")] == [
        "mm",
        "relu",
        "mean",
    ]
    [product] = [n for n in backward.nodes if n.operation == "mm"]
    assert str(product.outputs[0]) == "f32[3, 2] cpu"  # the gradient of w


def test_branches_and_loops_of_an_exported_program_are_nodes() -> None:
    class Branch(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))

    graph = graph_of(export(Branch(), (torch.randn(3),)))
    assert [n.operation for n in graph.nodes if not n.leaf] == [
        "sum",
        "gt",
        "true_graph_0",
        "false_graph_0",
        "cond",
    ]


def test_sizes_that_are_open_are_drawn_and_a_program_is_called_where_inputs_are_given(
    net: Net,
) -> None:
    batch = torch.export.Dim("batch", min=2)
    program = export(net, (torch.randn(4, 8),), dynamic_shapes=({0: batch},))
    assert draw_graph(program).graph.nodes
    called = draw_graph(program.module(), torch.randn(4, 8)).graph
    assert "AddmmBackward0" in {node.name for node in called.nodes}


def test_nothing_is_found_in_a_healthy_program(exported: Graph) -> None:
    assert not list(find(exported))
