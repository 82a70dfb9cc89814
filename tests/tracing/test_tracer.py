"""Compare a traced graph with autograd: nodes, edges, shapes, dtypes and devices."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from graphviz_torch import simulate_accelerator, trace
from graphviz_torch.graph import Edge, Graph
from graphviz_torch.internals.tensors.pytree import flatten
from graphviz_torch.tracing import iter_grad_fns
from graphviz_torch.tracing.nodes import operation
from graphviz_torch.tracing.tracer import roots
from tests.support import models
from tests.support.autograd_reference import check, meta

# --------------------------------------------------------------------------------- plain graphs


def test_the_worked_example_is_read_exactly() -> None:
    t = models.worked_example()
    graph = trace(t["y"], names=t)
    check(graph, t["y"])
    assert [(n.name, n.label, n.operation, n.leaf) for n in graph.nodes] == [
        ("AccumulateGrad", "x", "", "tensor"),
        ("AddBackward0", "a", "add", ""),
        ("PowBackward0", "b", "pow", ""),
        ("AddBackward0", "c", "add", ""),
        ("MeanBackward0", "y", "mean", ""),
    ]
    assert graph.edges == tuple(Edge(i, i + 1, 0, 0) for i in range(4))
    assert graph.outputs == ((4, 0),)
    for node, tensor in zip(graph.nodes, t.values(), strict=True):
        assert node.outputs == (meta(tensor),)


@pytest.mark.parametrize(
    "make",
    [
        lambda: models.MLP()(torch.ones(2, 4)),
        lambda: models.ConvNet()(torch.ones(2, 3, 8, 8)),
        lambda: models.UnrolledRNN(20)(torch.ones(2, 4)),
        lambda: models.UnrolledRNN(5, cell=nn.LSTMCell)(torch.ones(2, 4)),
        lambda: models.Transformer()(models.tokens()),
        lambda: models.ResNet(50)(torch.ones(2, 3, 32, 32)),
        lambda: models.dense_block(20),
        lambda: nn.LSTM(3, 4, num_layers=2)(torch.ones(5, 1, 3))[0],
    ],
    ids=["mlp", "conv", "rnn", "lstm cell", "transformer", "resnet", "dense", "lstm"],
)
def test_a_models_graph_is_autograds(make: Callable[[], Tensor]) -> None:
    output = make()
    graph = trace(output, names={})
    check(graph, output)
    assert trace(output, names={}) == graph
    again = trace(make(), names={})  # with other weights
    assert without_values(again) == without_values(graph)  # the same order on another run


def without_values(graph: Graph) -> Graph:
    return graph.annotate(values=dict.fromkeys(range(len(graph.nodes)), ()))


def test_a_shared_weight_is_one_leaf_with_several_edges() -> None:
    model = models.TiedMLP()
    graph = trace(model(torch.ones(1, 4)), names=model)
    leaf = next(node.id for node in graph.nodes if node.label == "fc.bias")
    assert sum(edge.source == leaf for edge in graph.edges) == 2
    assert [node.leaf for node in graph.nodes].count("parameter") == 2


def test_a_sub_graph_behind_several_outputs_is_there_once() -> None:
    x = torch.ones(3, requires_grad=True)
    a = x.exp()
    outputs = {"sum": a.sum(), "same": a, "twice": [a.prod(), a]}
    graph = trace(outputs, names={})
    check(graph, outputs["sum"], a, outputs["twice"][0], a)
    assert len(graph.nodes) == 4
    assert graph.outputs[1] == graph.outputs[3]


def test_a_leaf_has_the_shape_of_the_forward_after_its_data_is_replaced() -> None:
    layer = nn.Linear(3, 2)
    y = layer(torch.ones(1, 3)).sum()
    layer.bias.data, layer.weight.data = torch.zeros(0), layer.weight.data.double()
    found = {node.label: str(node.outputs[0]) for node in trace(y).nodes if node.label}
    assert found == {"weight": "f32[2, 3] cpu", "bias": "f32[2] cpu", "y": "f32[] cpu"}


def test_an_operation_has_an_edge_for_each_input_that_needs_a_gradient() -> None:
    x = torch.ones(3, requires_grad=True)
    assert trace(x * x, names={}).edges == (Edge(0, 1, 0, 0), Edge(0, 1, 0, 1))
    assert trace(torch.ones(3) - x, names={}).edges == (Edge(0, 1, 0, 1),)
    alone = trace(x)
    assert [(node.name, node.label) for node in alone.nodes] == [("AccumulateGrad", "x")]
    assert (alone.edges, alone.outputs) == ((), ((0, 0),))


def test_the_forwards_name_is_kept_beside_autograds() -> None:
    model = models.MLP()
    graph = trace(model(torch.ones(1, 4)))
    assert [n.operation for n in graph.nodes if n.operation] == ["t", "addmm", "relu", "t", "addmm"]
    assert operation("ScaledDotProductFlashAttentionForCpuBackward0") == (
        "scaled_dot_product_flash_attention_for_cpu"
    )
    assert operation("CopySlices") == "copy_slices"


# -------------------------------------------------------------------------------- what is passed


@dataclass
class Output:
    loss: Tensor
    hidden: tuple[Tensor, ...] = ()
    extra: Any = None
    unset: Any = field(init=False, repr=False)


def test_a_node_of_cpp_without_a_class_in_python_has_its_name_in_cpp() -> None:
    twice = torch.jit.script(_twice)
    x = torch.ones(2, requires_grad=True)
    for _ in range(4):  # it is compiled once its shapes are known
        y = twice(x)
    fn = y.grad_fn
    assert type(fn).__name__ == "CppFunction"
    node = trace(y).nodes[-1]
    assert (node.name, node.operation) == ("DifferentiableGraphBackward", "differentiable_graph")
    assert fn.name().endswith(f"::{node.name}")


def _twice(x: Tensor) -> Tensor:
    return (x * 2).sin()


def test_tensors_are_found_in_any_nesting() -> None:
    x = torch.ones(2, requires_grad=True)
    a, b, c, d = x * 1, x * 2, x * 3, x * 4
    value = {"out": Output(a, (b,), {"more": [c, None, 3]}), "t": OrderedDict(last=d)}
    paths = ["out.loss", "out.hidden[0]", "out.extra.more[0]", "t.last"]
    assert [path for path, _ in flatten(value)] == paths
    graph = trace(value)
    check(graph, a, b, c, d)


def test_a_nesting_may_hold_itself_and_tensors_without_a_graph() -> None:
    y = torch.ones(2, requires_grad=True) * 2
    nest: list[Any] = [y, torch.ones(2)]
    nest.append(nest)
    assert trace(nest).outputs == ((1, 0),)


def test_the_output_of_a_transformers_model_is_traced_and_named() -> None:
    graph = trace(models.gpt2(layers=1)(models.tokens(), labels=models.tokens()))
    assert [graph.nodes[node].label for node, _ in graph.outputs[:2]] == ["loss", "logits"]


@pytest.mark.parametrize(
    ("outputs", "error", "message"),
    [
        (torch.ones(3, 3), ValueError, r"outputs \(f32\[3, 3\] cpu\): no autograd graph"),
        ([torch.ones(1)], ValueError, r"outputs\[0\] \(f32\[1\] cpu\): no autograd graph"),
        ({"a": torch.ones(1), "b": torch.ones(1)}, ValueError, r"outputs\.a .*, and 1 more: no"),
        ([], ValueError, r"outputs contains no tensor: \[\]"),
        ({"a": 3}, ValueError, r"outputs contains no tensor: \{'a': 3\}"),
        (3, TypeError, "outputs is an int, not a tensor: 3"),
        (None, TypeError, "outputs is a NoneType"),
        ("y" * 99, TypeError, r"outputs is a str, not a tensor: 'y+…"),
        (nn.Linear(2, 2), TypeError, "outputs is a Linear"),
    ],
)
def test_what_has_no_graph_is_refused_with_the_reason(
    outputs: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        trace(outputs)
    with pytest.raises(error, match=message):
        iter_grad_fns(outputs)


def test_what_inference_mode_made_is_refused() -> None:
    x = torch.ones(2, requires_grad=True)
    with torch.inference_mode():
        y = x * 2
    with pytest.raises(ValueError, match="inference_mode"):
        trace(y)


def test_the_live_nodes_come_in_the_order_of_the_graph() -> None:
    t = models.worked_example()
    assert iter_grad_fns(t["y"])[1:] == [t[name].grad_fn for name in "abcy"]
    assert roots([t["y"], t["a"]]) == [(t["y"].grad_fn, 0), (t["a"].grad_fn, 0)]


# ------------------------------------------------------------------------------------- devices


def test_a_model_on_the_meta_device_is_traced_without_its_weights() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(  # 70 billion parameters
        vocab_size=128256,
        hidden_size=8192,
        intermediate_size=28672,
        num_hidden_layers=80,
        num_attention_heads=64,
        num_key_value_heads=8,
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
        mask = torch.ones(1, 1, 8, 8, dtype=torch.bool)  # a given one is not looked into
        y = model(torch.zeros(1, 8, dtype=torch.long), mask, use_cache=False).logits
    graph = trace(y, names=model)
    sizes = [node.outputs[0].nbytes for node in graph.nodes if node.leaf == "parameter"]
    assert sum(sizes) == 4 * sum(p.numel() for p in model.parameters()) > 4 * 70e9
    assert {node.device for node in graph.nodes} == {"meta"}


def test_fake_tensors_are_traced_with_the_devices_they_claim() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        y = models.MLP()(torch.ones(2, 4))
        check(trace(y), y)


def test_sizes_that_are_symbols_are_shown_by_their_hint() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    mode = FakeTensorMode(shape_env=ShapeEnv())
    x = mode.from_tensor(torch.ones(5, 3, requires_grad=True))
    y = (x * 2).sum(0)
    graph = trace(y)
    assert [node.outputs[0].shape for node in graph.nodes] == [(5, 3), (5, 3), (3,)]
    assert all(type(size) is int for node in graph.nodes for size in node.outputs[0].shape)
    assert not mode.shape_env.guards


def test_the_copies_that_backward_will_make_are_listed_from_the_graph_alone() -> None:
    with simulate_accelerator(2) as (first, second):
        x = torch.ones(3, requires_grad=True)
        a = x.to(first) * 2
        b = a.double().to(second)  # a cast on one device is no transfer
        y = b.cpu().sum()
        graph = trace(y)
    moves = [(t.kind, t.source, t.target, t.tensor.dtype, t.phase) for t in graph.transfers]
    assert moves == [
        ("HtoD", "cpu", "sim:1", "float64", "backward"),
        ("DtoD", "sim:1", "sim:0", "float64", "backward"),
        ("DtoH", "sim:0", "cpu", "float32", "backward"),
    ]
    assert [graph.nodes[t.node].operation for t in graph.transfers] == ["to_copy"] * 3


def test_copying_into_a_tensor_elsewhere_is_a_copy_of_backward_too() -> None:
    x = torch.ones(3, requires_grad=True)
    target = torch.zeros(3, device="meta") * 1
    target.copy_(x)
    (copy,) = trace(target).transfers
    assert (copy.source, copy.target, copy.operation) == ("meta", "cpu", "copy_")


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_where_gradients_are_off_a_graph_is_read_all_the_same(mode: Callable[[], Any]) -> None:
    y = torch.ones(3, requires_grad=True) * 2
    with mode():
        assert [node.name for node in trace(y).nodes] == ["AccumulateGrad", "MulBackward0"]
