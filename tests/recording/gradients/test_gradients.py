"""Compare the gradient at each node with that of torch.autograd.grad for the same tensor."""

from __future__ import annotations

import math
from collections.abc import Callable
from time import sleep
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from graphviz_torch import Graph, record
from graphviz_torch.graph import GradientStats
from graphviz_torch.recording.gradients.gradients import GradientHooks
from tests.support import models
from tests.support.programs import function


def independent(graph_output: Tensor, end: torch.autograd.graph.GradientEdge) -> Tensor | None:
    return torch.autograd.grad(graph_output, end, retain_graph=True, allow_unused=True)[0]


def assert_described(stats: GradientStats | None, gradient: Tensor | None) -> None:
    if gradient is None:
        assert stats is None
        return
    assert stats is not None
    gradient = gradient.detach().to_dense() if gradient.layout != torch.strided else gradient
    wide = gradient.abs() if gradient.is_complex() else gradient
    wide = wide.double().reshape(-1)
    close = {"rel": 1e-4, "abs": 1e-9}
    assert stats.norm == pytest.approx(wide.norm().item(), **close)
    assert stats.max_abs == pytest.approx(wide.abs().max().item() if len(wide) else 0.0, **close)
    assert stats.mean == pytest.approx(wide.mean().item() if len(wide) else 0.0, rel=1e-3, abs=1e-7)
    zeros = (wide == 0).double().mean().item() if len(wide) else 0.0
    assert stats.zero_fraction == pytest.approx(zeros)
    assert stats.nonfinite == 0
    assert stats.tensor is not None
    assert stats.tensor.shape == tuple(gradient.shape)


def assert_every_gradient(graph: Graph, output: Tensor) -> int:
    """Compares every output of every node; the graph must still be alive."""
    from graphviz_torch.tracing import iter_grad_fns

    compared = 0
    for node, fn in zip(graph.nodes, iter_grad_fns(output), strict=True):
        assert node.name == type(fn).__name__
        for nr, stats in enumerate(node.grad_outputs):
            edge = torch.autograd.graph.GradientEdge(fn, nr)
            assert_described(stats, independent(output, edge))
            compared += 1
    assert all(node.grad_outputs for node in graph.nodes if node.order is not None)
    return compared


def loss_of(out: Any) -> Tensor:
    loss: Tensor = out if isinstance(out, Tensor) else out[0]
    return loss.pow(2).mean()


MODELS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "MLP": lambda: (models.MLP(), torch.randn(3, 4)),
    "TiedMLP": lambda: (models.TiedMLP(), torch.randn(3, 4)),
    "ConvNet": lambda: (models.ConvNet(), torch.randn(2, 3, 8, 8)),
    "RNN": lambda: (models.UnrolledRNN(5), torch.randn(2, 4)),
    "LSTM": lambda: (nn.LSTM(3, 4, batch_first=True), torch.randn(2, 5, 3)),
    "block": lambda: (models.TransformerBlock(), torch.randn(2, 5, 8)),
    "encoder": lambda: (
        nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
        torch.randn(2, 5, 8),
    ),
    "wide": lambda: (nn.Linear(400, 400), torch.randn(2, 400)),  # weights beyond the batched size
}


@pytest.mark.parametrize("name", MODELS)
def test_every_gradient_equals_autograds_own(name: str) -> None:
    torch.manual_seed(0)
    model, x = MODELS[name]()
    with record(model) as recording:
        loss = loss_of(model(x))
        loss.backward(retain_graph=True)
    assert assert_every_gradient(recording.graph, loss) >= len(recording.graph.nodes)


def test_autograd_grad_has_the_gradients_of_the_inputs_that_it_returns() -> None:
    x = torch.randn(3, requires_grad=True)
    with record() as recording:
        h = x * 2
        y = (h**2).sum()
        gradients = torch.autograd.grad(y, [x, h])
    nodes = {node.label: node for node in recording.graph.nodes}
    assert nodes["x"].grad_outputs[0].values == tuple(gradients[0].tolist())
    assert nodes["h"].grad_outputs[0].values == tuple(gradients[1].tolist())
    assert x.grad is None


def test_each_backward_has_its_graph_and_the_last_is_shown() -> None:
    x = torch.tensor(3.0, requires_grad=True)
    with record() as recording:
        (x * 2).backward()
        (x**2).backward()
    assert [graph.nodes[-1].name for graph in recording.graphs] == ["MulBackward0", "PowBackward0"]
    assert recording.graph == recording.graphs[1]
    # What arrives in one backward, not what .grad has accumulated.
    assert recording.graph.nodes[0].grad_outputs[0].values == (6.0,)
    assert x.grad == 8


def test_a_gradient_penalty_records_the_backward_through_the_backward() -> None:
    x = torch.randn(4, requires_grad=True)
    with record() as recording:
        y = (x**3).sum()
        (gradient,) = torch.autograd.grad(y, x, create_graph=True)
        penalty = (gradient**2).sum()
        penalty.backward(retain_graph=True)
    assert len(recording.graphs) == 2
    assert_every_gradient(recording.graph, penalty)


def test_values_of_a_scaled_loss_are_scaled_and_the_graph_says_by_how_much() -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    x = torch.randn(2, 3)
    with record(model) as recording:
        loss = model(x).pow(2).mean()
        scaler.scale(loss).backward()
        scaled = model.weight.grad.norm().item()
        scaler.step(optimizer)
        scaler.update()
    graph = recording.graph
    assert graph.step.loss_scale == 1024.0
    weight = next(node for node in graph.nodes if node.label == "weight")
    assert weight.grad_outputs[0].norm == pytest.approx(scaled)
    assert all(parameter.stepped for parameter in graph.parameters)
    with record(model) as recording:
        model(x).sum().backward()
    assert recording.graph.step.loss_scale is None


def test_a_scale_whose_device_has_failed_is_not_known() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    x = torch.ones(3, requires_grad=True)
    with record() as recording:
        loss = scaler.scale(x.sum())
        scaler._scale = torch.empty((), device="meta")  # its value cannot be read either
        loss.backward()
    assert recording.graph.step.loss_scale is None
    assert recording.graph.nodes[0].grad_outputs[0].mean == 4.0


def test_nan_and_inf_are_counted_and_left_out_of_the_rest() -> None:
    x = torch.ones(5, requires_grad=True)
    with record() as recording:
        y = x * 1
        y.backward(torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -4.0]))
    (stats,) = recording.graph.nodes[0].grad_outputs
    assert (stats.nan, stats.inf, stats.nonfinite) == (1, 2, 3)
    assert (stats.norm, stats.max_abs, stats.mean) == (4.0, 4.0, -2.0)
    assert stats.zero_fraction == pytest.approx(0.2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.complex64])
def test_other_types_of_gradients_are_described(dtype: torch.dtype) -> None:
    x = torch.randn(5).to(dtype).requires_grad_()
    weight = torch.randn(5).to(dtype)
    with record() as recording:
        y = (x * weight).sum()
        y.backward(torch.ones_like(y), retain_graph=True)
    gradient = torch.autograd.grad(y, x, torch.ones_like(y))[0]
    assert_described(recording.graph.nodes[0].grad_outputs[0], gradient)


def test_a_sparse_gradient_counts_as_the_dense_one_that_it_stands_for() -> None:
    embedding = nn.Embedding(10, 3, sparse=True)
    with record() as recording:
        embedding(torch.tensor([1, 4, 4])).pow(2).sum().backward()
    assert embedding.weight.grad.is_sparse
    assert_described(recording.graph.nodes[0].grad_outputs[0], embedding.weight.grad)


def test_an_undefined_gradient_is_none() -> None:
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    first = function(forward, lambda ctx, first, second: first if second is None else 1 / 0)
    with record() as recording:
        a, _b = first.apply(torch.ones(2, requires_grad=True))
        a.sum().backward()
    node = next(node for node in recording.graph.nodes if node.name == "CustomBackward")
    assert node.grad_outputs[0].values == (1.0, 1.0)
    assert node.grad_outputs[1] is None


def test_an_empty_gradient_has_statistics_and_a_batched_backward_none() -> None:
    x = torch.ones(0, 3, requires_grad=True)
    with record() as recording:
        (x * 2).sum().backward()
        assert recording.graph.nodes[0].grad_outputs[0].norm == 0.0
        y = torch.ones(3, requires_grad=True) * 2
        torch.autograd.grad(y, y, torch.eye(3), is_grads_batched=True)
    assert [node.name for node in recording.graph.nodes] == ["AccumulateGrad", "MulBackward0"]
    assert recording.graph.nodes[1].grad_outputs == ()


def test_hooks_of_others_run_and_what_they_return_is_what_is_described() -> None:
    x = torch.ones(3, requires_grad=True)
    with record() as recording:
        y = x * 2
        y.register_hook(lambda gradient: gradient * 10)
        order = []
        y.grad_fn.register_prehook(lambda gradients: order.append("prehook"))
        y.grad_fn.register_hook(lambda inputs, outputs: order.append("hook"))
        y.sum().backward()
    assert order == ["prehook", "hook"]
    assert recording.graph.nodes[1].grad_outputs[0].values == (10.0, 10.0, 10.0)
    assert x.grad.tolist() == [20.0, 20.0, 20.0]


def test_durations_add_up_to_no_more_than_the_backward() -> None:
    from time import perf_counter

    x = torch.randn(200, 200, requires_grad=True)
    with record() as recording:
        y = (x @ x).relu().sum()
        start = perf_counter()
        y.backward()
        whole = perf_counter() - start
    seconds = [node.seconds for node in recording.graph.nodes]
    assert all(value is not None and value > 0 for value in seconds)
    assert sum(value or 0.0 for value in seconds) < whole
    order = [node.order for node in recording.graph.nodes]
    assert sorted(order) == list(range(len(order)))
    assert recording.graph.nodes[-1].order == 0


def assert_two_short_nodes(graph: Graph) -> None:
    seconds = [node.seconds for node in graph.nodes if node.order is not None]
    assert len(seconds) == 2
    assert all(value is not None and value < 0.4 for value in seconds)


@pytest.mark.parametrize("later", ["describing", "callback"])
def test_what_comes_after_the_last_node_is_not_its_duration(
    later: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(*args: Any) -> None:
        sleep(0.5)

    def queue(gradient: Tensor) -> None:
        torch.autograd.Variable._execution_engine.queue_callback(slow)  # type: ignore[attr-defined]

    x = torch.ones(3, requires_grad=True)
    with record() as recording:
        y = x * 2
        if later == "describing":
            monkeypatch.setattr(GradientHooks, "add", slow)
        else:
            y.register_hook(queue)
        torch.autograd.grad(y.sum(), x)
    assert_two_short_nodes(recording.graph)


def test_a_backward_within_a_hook_before_the_first_node_does_not_end_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def inner(gradient: Tensor) -> None:
        if not ran:
            ran.append(True)
            torch.autograd.grad(loss, x, retain_graph=True)

    ran: list[bool] = []
    monkeypatch.setattr(GradientHooks, "add", lambda *args: sleep(0.5))
    x = torch.ones(3, requires_grad=True)
    with record() as recording:
        loss = (x * 2).sum()
        loss.register_hook(inner)
        torch.autograd.grad(loss, x)
    assert ran
    assert_two_short_nodes(recording.graph)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="times nodes with CUDA events")
def test_a_node_on_cuda_does_not_last_while_the_cpu_works() -> None:
    slow = function(lambda ctx, x: x.clone(), lambda ctx, gradient: (sleep(0.5), gradient)[1])
    x = torch.ones(50, device="cuda", requires_grad=True)
    for _ in range(2):  # the first time, CUDA's libraries set themselves up
        with record() as recording:
            slow.apply((x * 2).cpu()).cuda().exp().sum().backward()
    seconds = [n.seconds for n in recording.graph.nodes if "cuda" in str(n.device)]
    assert len(seconds) > 4
    assert all(value is not None and value < 0.4 for value in seconds)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="captures a CUDA graph")
def test_nothing_of_ours_becomes_a_part_of_a_cuda_graph() -> None:
    x = torch.ones(50, device="cuda", requires_grad=True)
    graph = torch.cuda.CUDAGraph()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        (x * 2).exp().sum().backward()  # PyTorch wants to be warm
    x.grad = None
    torch.cuda.synchronize()
    with record() as recording, torch.cuda.graph(graph):
        (x * 2).exp().sum().backward()
    graph.replay()
    assert recording.graph.nodes[0].label == "x"
    assert all(node.order is None and not node.grad_outputs for node in recording.graph.nodes)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two CUDA devices")
def test_a_node_with_outputs_on_two_devices_is_timed_and_described() -> None:
    both = function(
        lambda ctx, x: (x.to("cuda:0"), x.to("cuda:1")), lambda ctx, a, b: a.cpu() + b.cpu()
    )
    with record() as recording:
        first, second = both.apply(torch.ones(50, requires_grad=True))
        (first.sum() + second.exp().sum().to("cuda:0")).backward()
    (node,) = [node for node in recording.graph.nodes if node.name == "CustomBackward"]
    assert node.seconds is not None
    assert [stats and stats.mean for stats in node.grad_outputs] == pytest.approx([1, math.e])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="times nodes with CUDA events")
def test_nodes_on_cuda_are_timed_by_events() -> None:
    x = torch.randn(200, 200, device="cuda", requires_grad=True)
    with record() as recording:
        F.relu(x @ x).sum().backward()
    assert all((node.seconds or 0) > 0 for node in recording.graph.nodes)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="times nodes with CUDA events")
def test_durations_on_cuda_add_up_to_no_more_than_the_backward_and_the_product_is_longest() -> None:
    x = torch.randn(4000, 4000, device="cuda", requires_grad=True)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(2):  # the first time, CUDA's libraries set themselves up
        with record() as recording:
            y = (x @ x).sum()
            start.record()
            y.backward()
            end.record()
    end.synchronize()
    seconds = {node.title: node.seconds or 0.0 for node in recording.graph.nodes}
    assert sum(seconds.values()) <= start.elapsed_time(end) / 1000
    assert max(seconds, key=seconds.__getitem__) == "mm"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA streams")
def test_a_node_whose_stream_is_left_before_the_next_has_no_duration() -> None:
    x = torch.randn(200, 200, device="cuda", requires_grad=True)
    side = torch.cuda.Stream()
    with record() as recording:
        h = x * 2
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = h.exp()
        torch.cuda.current_stream().wait_stream(side)
        y.sum().backward()
    seconds = {node.title: node.seconds for node in recording.graph.nodes}
    assert seconds["exp"] is None
    assert (seconds["mul"] or 0) > 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA streams")
def test_gradients_on_other_streams_are_described_when_they_are_there() -> None:
    x = torch.randn(3000, 3000, device="cuda", requires_grad=True)
    side = torch.cuda.Stream()
    with record() as recording:
        h = x @ x
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = (h @ h)[:100].sin()
        torch.cuda.current_stream().wait_stream(side)
        loss = y.sum()
        loss.backward(retain_graph=True)
    assert_every_gradient(recording.graph, loss)


def test_a_gradient_that_a_custom_backward_changes_in_place_is_described_as_it_arrived() -> None:
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        gradient[0] = 0
        return gradient

    x = torch.ones(2, requires_grad=True)
    with record() as recording:
        (function(lambda ctx, x: x.clone(), backward).apply(x * 1) * 3).sum().backward()
    found = {node.name: node.grad_outputs for node in recording.graph.nodes}
    (arrived,), (passed_on,) = found["CustomBackward"], found["AccumulateGrad"]
    assert arrived is not None
    assert passed_on is not None
    assert (arrived.values, passed_on.values) == ((3.0, 3.0), (0.0, 3.0))


def test_a_gradient_that_a_hook_changed_while_it_waited_is_not_described() -> None:
    x = torch.ones(3, requires_grad=True)
    with record() as recording:
        a = x * 5
        b = a + 0
        a.register_hook(lambda gradient: (gradient.zero_(), None)[1])
        (b * 3).sum().backward()
    (node,) = [node for node in recording.graph.nodes if node.name == "AddBackward0"]
    assert node.grad_outputs in ((), (None,))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("dtype", "value", "size"),
    [(torch.float32, 1e-25, n) for n in (3, 200, 200_000)]
    + [(torch.float64, 1e-200, n) for n in (3, 200, 200_000)]
    + [(torch.float32, 1e30, 4), (torch.float64, 1e307, 40)],
)
def test_a_gradient_near_the_limits_of_its_type_has_a_norm(
    dtype: torch.dtype, value: float, size: int
) -> None:
    x = torch.ones(size, dtype=dtype, requires_grad=True)
    with record() as recording:
        (x * value).sum().backward()
    (stats,) = recording.graph.nodes[0].grad_outputs
    assert stats is not None
    assert stats.norm == pytest.approx(value * size**0.5, rel=1e-4)
    assert (stats.max_abs, stats.mean) == pytest.approx((value, value), rel=1e-5)


@pytest.mark.parametrize("size", [5, 1 << 18])
def test_a_gradient_of_a_dtype_without_a_norm_ends_no_backward(size: int) -> None:
    x = torch.ones(size, requires_grad=True)
    with record() as recording:
        x.to(torch.float8_e4m3fn).float().sum().backward()
    assert torch.equal(x.grad, torch.ones(size))  # type: ignore[arg-type]
    (stats,) = recording.graph.nodes[0].grad_outputs
    assert stats is not None
    assert stats.norm == pytest.approx(size**0.5, rel=1e-3)


def test_the_node_at_which_backward_failed_has_no_duration() -> None:
    def refuse(gradient: Tensor) -> Tensor:
        raise ValueError("no")

    x = torch.ones(3, requires_grad=True)
    a = x.exp()
    a.register_hook(refuse)
    loss = a.sin().cos().sum()
    recording = record()
    with pytest.raises(ValueError, match="no"), recording:
        loss.backward()
    timed = {node.title: node.seconds is not None for node in recording.graph.nodes}
    # The hook runs when sin has ended, and before exp is given anything.
    assert timed == {"AccumulateGrad": False, "exp": False, "sin": False, "cos": True, "sum": True}
