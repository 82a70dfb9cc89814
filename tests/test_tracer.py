"""A traced graph is autograd's own: nodes, edges, shapes, dtypes and devices."""

from __future__ import annotations

import gc
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import models
import pytest
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.autograd.graph import get_gradient_edge, saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from graphviz_torch import Edge, Graph, TensorMeta, simulate_accelerator, trace, walk
from graphviz_torch.tracer import flatten, operation, roots


def counted(*tensors: Tensor) -> tuple[int, int]:
    """Nodes and edges behind tensors, by the plainest breadth-first walk."""
    seen = [get_gradient_edge(tensor).node for tensor in tensors]
    seen = list(dict.fromkeys(seen))
    edges = 0
    for fn in seen:
        for source, _ in fn.next_functions:
            if source is not None:
                edges += 1
                if source not in seen:
                    seen.append(source)
    return len(seen), edges


def check(graph: Graph, *tensors: Tensor) -> None:
    """Holds a graph against the tensors it was traced from."""
    assert (len(graph.nodes), len(graph.edges)) == counted(*tensors)
    fns = walk(list(tensors))
    assert [node.id for node in graph.nodes] == list(range(len(fns)))
    assert [node.name for node in graph.nodes] == [type(fn).__name__ for fn in fns]
    assert list(graph.edges) == [
        Edge(fns.index(source), target, output_nr, input_nr)
        for target, fn in enumerate(fns)
        for input_nr, (source, output_nr) in enumerate(fn.next_functions)
        if source is not None
    ]
    assert all(edge.source < edge.target for edge in graph.edges)
    assert len(graph.outputs) == len(tensors)
    for (node, output_nr), tensor in zip(graph.outputs, tensors, strict=True):
        assert fns[node] is get_gradient_edge(tensor).node
        assert output_nr == tensor.output_nr
        assert graph.nodes[node].outputs[output_nr] == meta(tensor)


def meta(tensor: Tensor) -> TensorMeta:
    return TensorMeta(
        tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), str(tensor.device)
    )


def named(graph: Graph, name: str) -> Any:
    (node,) = [node for node in graph.nodes if node.name == name]
    return node


def labels(graph: Graph) -> dict[str, str]:
    return {node.label: node.name for node in graph.nodes if node.label}


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
    assert trace(make(), names={}) == graph  # the same order on another run


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


def test_one_tensor_used_twice_by_an_operation_has_two_edges() -> None:
    x = torch.ones(3, requires_grad=True)
    assert trace(x * x, names={}).edges == (Edge(0, 1, 0, 0), Edge(0, 1, 0, 1))


def test_an_input_that_needs_no_gradient_has_no_edge() -> None:
    x = torch.ones(3, requires_grad=True)
    assert trace(torch.ones(3) - x, names={}).edges == (Edge(0, 1, 0, 1),)


def test_a_leaf_alone_is_a_graph_of_one_node() -> None:
    x = torch.ones(3, requires_grad=True)
    graph = trace(x)
    assert [(node.name, node.label) for node in graph.nodes] == [("AccumulateGrad", "x")]
    assert graph.outputs == ((0, 0),)


def test_the_forwards_name_is_kept_beside_autograds() -> None:
    model = models.MLP()
    graph = trace(model(torch.ones(1, 4)))
    assert [n.operation for n in graph.nodes if n.operation] == ["t", "addmm", "relu", "t", "addmm"]
    assert operation("ScaledDotProductFlashAttentionForCpuBackward0") == (
        "scaled_dot_product_flash_attention_for_cpu"
    )
    assert operation("CopySlices") == "copy_slices"


# ------------------------------------------------------------------- operations of every nature


def split(x: Tensor) -> list[Tensor]:
    return list(x.split(2))


@pytest.mark.parametrize(
    "several",
    [
        split,
        lambda x: x.unbind(1),
        lambda x: torch.linalg.svd(x),
        lambda x: torch.var_mean(x),
        lambda x: x.sort().values.topk(2),
        lambda x: nn.LSTM(3, 2)(x)[0].unbind(0),
        lambda x: torch.linalg.slogdet(x @ x.T + torch.eye(4)),
    ],
    ids=["split", "unbind", "svd", "var_mean", "topk", "lstm", "slogdet"],
)
def test_each_output_of_an_operation_with_several_has_its_own_metadata(
    several: Callable[[Tensor], Any],
) -> None:
    x = torch.rand(4, 3, requires_grad=True)
    tensors = [t for t in several(x) if t.requires_grad]
    check(trace(tensors), *tensors)
    for tensor in tensors:  # also where the others are not used
        graph = trace(tensor)
        check(graph, tensor)
        for other in tensors:
            if other.grad_fn is tensor.grad_fn:
                assert graph.nodes[-1].outputs[other.output_nr] == meta(other)


def test_a_change_in_place_through_a_view_is_read_as_autograd_rewrote_it() -> None:
    x = torch.ones(4, 3, requires_grad=True)
    base = x * 1
    row = base[0]
    row.mul_(2)
    base[:, 1] = 5.0
    graph = trace(base)
    check(graph, base)
    assert [node.name for node in graph.nodes].count("CopySlices") == 2
    check(trace(row), row)


class Affine(torch.autograd.Function):
    """Returns a tensor, an index, a number and a scalar; takes a number and a text too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float, how: str) -> Any:
        # Names of node attributes, which a careless reader would take for autograd's.
        ctx.name, ctx.variable, ctx.label = "shadow", x, how
        ctx.scale = scale
        index = torch.arange(3)
        ctx.mark_non_differentiable(index)
        return x * scale, index, 7, x.sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * ctx.scale, None, None


def test_a_custom_function_is_read_right_whatever_it_keeps() -> None:
    x = torch.ones(3, requires_grad=True)
    y, _, _, total = Affine.apply(x, 2.0, "text")
    graph = trace(y)
    check(graph, y)
    node = graph.nodes[-1]
    assert (node.name, node.operation, node.leaf) == ("AffineBackward", "Affine", "")
    # The index is not differentiable and 7 is no tensor; nothing uses the sum, which cannot be
    # told from these. If something does, it is there.
    assert node.outputs == (meta(y), None, None, None)
    both = trace([y, total])
    check(both, y, total)
    assert both.nodes[-1].outputs == (meta(y), None, None, meta(total))


def test_an_output_that_autograd_left_undefined_is_none() -> None:
    weight = torch.randn(2, 3, 3, 3, requires_grad=True)
    y = nn.functional.conv2d(torch.randn(1, 3, 8, 8), weight)
    (gradient,) = torch.autograd.grad(y.square().sum(), weight, create_graph=True)
    node = trace(gradient).nodes[-1]
    assert node.name == "ConvolutionBackwardBackward0"
    # The gradients of the image and of a bias were not asked for.
    assert node.outputs == (None, meta(weight), None)


def test_an_unused_true_scalar_of_a_forward_operation_is_kept() -> None:
    x = torch.ones(3, requires_grad=True)
    first, second, _ = x.unbind()
    assert named(trace(first * second), "UnbindBackward0").outputs == (meta(first),) * 3


def test_double_and_triple_backward_are_read() -> None:
    x = torch.rand(3, requires_grad=True)
    gradient = x.sin().exp()
    sizes = []
    for _ in range(3):
        (gradient,) = torch.autograd.grad(gradient.sum(), x, create_graph=True)
        check(trace(gradient), gradient)
        sizes.append(len(trace(gradient).nodes))
    assert sizes[0] < sizes[1] < sizes[2]


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_parts_are_read_without_running_them_again(reentrant: bool) -> None:
    runs = 0

    def part(x: Tensor) -> Tensor:
        nonlocal runs
        runs += 1
        return x.sin().cos()

    x = torch.rand(3, requires_grad=True)
    y = checkpoint(part, x, use_reentrant=reentrant).sum()
    graph = trace(y)
    assert runs == 1
    check(graph, y)
    if reentrant:
        assert "runs this part's forward again" in named(graph, "CheckpointFunctionBackward").note
    y.backward()
    assert runs == 2
    assert trace(y) == graph


def test_no_saved_tensor_is_unpacked() -> None:
    unpacked = []
    x = torch.rand(3, requires_grad=True)
    with saved_tensors_hooks(lambda t: t.clone(), lambda t: unpacked.append(t) or t):
        y = (x.exp() * x.sin()).sum()
    check(trace(y), y)
    assert not unpacked
    y.backward()
    assert unpacked


def test_a_freed_graph_is_read_as_before() -> None:
    model = models.ConvNet()
    y = model(torch.ones(1, 3, 4, 4)).sum()
    before = trace(y)
    y.backward()
    assert trace(y) == before
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()


@pytest.mark.parametrize(
    "make",
    [
        lambda x: (x.to(torch.complex64) * 1j).exp().real,
        lambda x: torch.view_as_complex(x[:, :2].contiguous()),
        lambda x: torch.sparse.mm(x.to_sparse(), torch.ones(3, 2)),
        lambda x: x.to_sparse(),
        lambda x: x.to_sparse_csr().to_dense(),
        lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, 0, 255),
        lambda x: x.double().half().bfloat16(),
        lambda x: torch.func.vmap(torch.sin)(x),
        lambda x: torch.func.vmap(torch.func.grad(lambda row: row.exp().sum()))(x),
        lambda x: torch.func.jvp(torch.sin, (x,), (torch.ones_like(x),))[1],
        lambda x: torch.func.jacrev(torch.sin)(x[0]),
        lambda x: torch.empty(0, 3) @ x.T,
        lambda x: torch.where(x > 0, x, 0).sum((0, 1)),
    ],
    ids=[
        *("complex", "view_as_complex", "sparse mm", "to_sparse", "csr", "fake quantised"),
        *("casts", "vmap", "vmap of grad", "jvp", "jacrev", "empty", "where"),
    ],
)
def test_unusual_tensors_are_read(make: Callable[[Tensor], Tensor]) -> None:
    x = torch.rand(4, 3, requires_grad=True)
    y = make(x)
    check(trace(y), y)


def test_ragged_sizes_are_minus_one() -> None:
    rows = [torch.rand(2, 3), torch.rand(4, 3)]
    jagged = torch.nested.nested_tensor(rows, layout=torch.jagged, requires_grad=True)
    graph = trace(jagged * 2)
    assert graph.nodes[-1].outputs[0].shape == (2, -1, 3)
    assert graph.nodes[-1].outputs[0].nbytes is None


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_strided_nested_tensor_is_read_as_far_as_autograd_knows_it() -> None:
    x = torch.nested.nested_tensor([torch.rand(2, 3), torch.rand(4, 3)], requires_grad=True)
    node = trace(x * 2).nodes[-1]
    assert node.outputs == (TensorMeta((-1,), "float32", "cpu"),)


def test_autocast_shows_the_casts_and_their_dtypes() -> None:
    model = models.MLP()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = model(torch.ones(2, 4))
    graph = trace(y)
    check(graph, y)
    assert graph.nodes[-1].outputs[0].dtype == "bfloat16"
    assert sum(node.operation == "to_copy" for node in graph.nodes) >= 4


def test_a_compiled_region_is_one_node_that_says_so() -> None:
    model = torch.compile(models.MLP(), backend="aot_eager")
    x = torch.ones(2, 4, requires_grad=True)
    y = model(x * 2).sum()
    graph = trace(y, names={})
    check(graph, y)
    region = named(graph, "CompiledFunctionBackward")
    assert (region.operation, region.note) == ("compiled", "torch.compile region")
    assert region.outputs == (TensorMeta((2, 2), "float32", "cpu"),)
    assert sum(edge.target == region.id for edge in graph.edges) == 5  # x and four parameters
    torch.compiler.reset()


def test_tensor_hooks_stay_and_are_not_run() -> None:
    x = torch.rand(3, requires_grad=True)
    a = x * 2
    seen: list[Tensor] = []
    a.register_hook(seen.append)
    y = a.sum()
    check(trace(y), y)
    assert not seen
    y.backward()
    assert len(seen) == 1


def test_a_graph_that_threads_built_together_is_read() -> None:
    x = torch.rand(3, requires_grad=True)
    parts: list[Tensor] = [x] * 4

    def work(i: int) -> None:
        for _ in range(20):
            parts[i] = parts[i].sin()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    y = torch.stack(parts).sum()
    check(trace(y), y)


# -------------------------------------------------------------------------------- what is passed


@dataclass
class Output:
    loss: Tensor
    hidden: tuple[Tensor, ...] = ()
    extra: Any = None
    unset: Any = field(init=False, repr=False)


def test_tensors_are_found_in_any_nesting() -> None:
    x = torch.ones(2, requires_grad=True)
    a, b, c, d = x * 1, x * 2, x * 3, x * 4
    value = {"out": Output(a, (b,), {"more": [c, None, 3]}), "t": OrderedDict(last=d)}
    paths = ["out.loss", "out.hidden[0]", "out.extra.more[0]", "t.last"]
    assert [path for path, _ in flatten(value)] == paths
    graph = trace(value)
    check(graph, a, b, c, d)


def test_a_nesting_that_holds_itself_ends() -> None:
    x = torch.ones(2, requires_grad=True)
    nest: list[Any] = [x * 2]
    nest.append(nest)
    assert len(trace(nest).outputs) == 1


def test_the_output_of_a_transformers_model_is_traced_and_named() -> None:
    model = models.gpt2(layers=1)
    output = model(models.tokens(), labels=models.tokens())
    graph = trace(output)
    assert graph.nodes[graph.outputs[0][0]].label == "loss"
    assert graph.nodes[graph.outputs[1][0]].label == "logits"


def test_tensors_without_a_graph_are_passed_over_in_a_nesting() -> None:
    x = torch.ones(2, requires_grad=True)
    y = x * 2
    assert trace({"y": y, "mask": torch.ones(2)}).outputs == ((1, 0),)


@pytest.mark.parametrize(
    ("outputs", "error", "message"),
    [
        (torch.ones(3, 3), ValueError, r"outputs \(f32\[3, 3\] cpu\): no autograd graph"),
        ([torch.ones(1)], ValueError, r"outputs\[0\] \(f32\[1\] cpu\): no autograd graph"),
        ({"a": torch.ones(1), "b": torch.ones(1)}, ValueError, r"outputs\.a .*, and 1 more: no"),
        ([], ValueError, r"outputs holds no tensor: \[\]"),
        ({"a": 3}, ValueError, r"outputs holds no tensor: \{'a': 3\}"),
        (3, TypeError, "outputs is a int, not a tensor: 3"),
        (None, TypeError, "outputs is a NoneType"),
        ("y" * 99, TypeError, r"outputs is a str, not a tensor: 'y+\.\.\."),
        (nn.Linear(2, 2), TypeError, "outputs is a Linear"),
    ],
)
def test_what_has_no_graph_is_refused_with_the_reason(
    outputs: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        trace(outputs)
    with pytest.raises(error, match=message):
        walk(outputs)


def test_what_inference_mode_made_is_refused() -> None:
    x = torch.ones(2, requires_grad=True)
    with torch.inference_mode():
        y = x * 2
    with pytest.raises(ValueError, match="inference_mode"):
        trace(y)


def test_the_live_nodes_come_in_the_order_of_the_graph() -> None:
    t = models.worked_example()
    assert walk(t["y"])[1:] == [t[name].grad_fn for name in "abcy"]
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


# -------------------------------------------------------------------------- nothing is disturbed


def test_reading_makes_no_node_and_no_accumulator() -> None:
    x = torch.ones(4, requires_grad=True)
    unused = torch.ones(4, requires_grad=True)  # it has no accumulator, and is to get none
    base = x * 1
    stale = base[:2]
    base.mul_(2)  # the next reading of stale.grad_fn makes a node
    y = base.sum()
    before = torch._C._autograd._get_sequence_nr()
    graph = trace(y)
    assert torch._C._autograd._get_sequence_nr() == before
    assert set(labels(graph)) == {"x", "base", "y"}
    assert stale.requires_grad
    assert unused.requires_grad


def test_no_mode_sees_the_reading() -> None:
    calls: list[Any] = []

    class Functions(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            calls.append(func)
            return func(*args, **(kwargs or {}))

    class Dispatches(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            calls.append(func)
            return func(*args, **(kwargs or {}))

    model = models.ConvNet()
    y = model(torch.ones(1, 3, 4, 4))
    with Functions(), Dispatches():
        trace(y)
        walk(y)
    assert not calls


class Watched(Tensor):
    reads = 0

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.reads += 1
        return super().__torch_function__(func, types, args, kwargs or {})


def test_a_tensor_subclass_does_not_see_the_reading() -> None:
    x = torch.ones(3).as_subclass(Watched).requires_grad_()
    y = (x * 2).sum()
    Watched.reads = 0
    graph = trace(y)
    assert Watched.reads == 0
    assert labels(graph) == {"x": "AccumulateGrad", "y": "AliasBackward0"}


def test_gradients_are_those_of_an_untraced_run() -> None:
    def gradients(traced: bool) -> list[Tensor]:
        torch.manual_seed(0)
        model = models.Transformer()
        y = model(models.tokens()).sum()
        if traced:
            trace(y)
        y.backward()
        return [p.grad for p in model.parameters()]

    for traced, plain in zip(gradients(True), gradients(False), strict=True):
        assert torch.equal(traced, plain)


def test_nothing_outlives_the_users_own_outputs() -> None:
    def run() -> list[weakref.ref[Any]]:
        model = models.ConvNet()
        x = torch.ones(1, 3, 4, 4, requires_grad=True)
        a = model(x)
        y = a.sum()
        fns = walk(y)
        graph = trace({"y": y, "a": a})
        assert len(graph.nodes) == len(fns)
        held = [weakref.ref(value) for value in (model, model.conv.weight, x, a, y)]
        del fns, model, x, a, y
        # While the function runs on, and without the collector's help.
        assert [ref() for ref in held] == [None] * 5
        return held

    gc.disable()
    try:
        run()
    finally:
        gc.enable()


def test_the_caller_may_go_on_with_a_snapshot_of_its_variables() -> None:
    x = torch.ones(3, requires_grad=True)
    y = x * 2
    snapshot = locals()
    trace(y)
    assert snapshot["x"] is x
    assert snapshot["y"] is y


@pytest.mark.parametrize("enabled", [True, False])
def test_the_garbage_collector_is_left_as_it_was(enabled: bool) -> None:
    (gc.enable if enabled else gc.disable)()
    try:
        trace(models.chain(3))
        assert gc.isenabled() is enabled
        with pytest.raises(TypeError):
            trace(3)
        assert gc.isenabled() is enabled
    finally:
        gc.enable()
