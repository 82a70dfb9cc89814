"""Test findings on gradient paths in recordings of models with common mistakes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from graphviz_torch import Graph, find, record
from graphviz_torch.graph import Edge, GradientStats, Node, Parameter, TensorMeta
from tests.findings.by_hand.lost import passed
from tests.support.recorded import only, serious, trained

pytestmark = pytest.mark.usefixtures("the_same_numbers")


class Broken(nn.Module):
    """A model with one layer before a detach(), and one layer that is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.middle = nn.Linear(4, 8), nn.Linear(8, 8)
        self.head, self.spare = nn.Linear(8, 2), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        features = torch.relu(self.encoder(x))
        features = features.detach()
        return self.head(torch.relu(self.middle(features)))


def test_a_detached_layer_and_one_never_called_are_two_findings_with_two_causes() -> None:
    graph = trained(Broken(), torch.randn(64, 4))
    never, cut = only("never-called", graph), only("cut-gradient", graph)
    assert never.message == "spare.weight and spare.bias got no gradient: spare was never called."
    assert cut.message.startswith(
        "encoder.weight and encoder.bias got no gradient: features was cut by detach() at "
        "test_paths.py:"
    )
    assert (never.cause, cut.cause) == ("never called", "cut by detach()")
    line = int(cut.where.split(":")[1])
    assert "features.detach()" in Path(__file__).read_text().splitlines()[line - 1]
    names = [graph.nodes[node].name for node in cut.nodes]
    assert "ReluBackward0" in names  # before the cut
    assert "AddmmBackward0" in names  # and after it
    (seen,) = graph.cuts
    assert seen.before is not None
    assert seen.before < seen.after[0]  # what was computed first is drawn first
    assert len(serious(graph)) == 2


class Cutting(nn.Module):
    """A model of a body, a cut, and a head."""

    def __init__(self, cut: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.body, self.head, self.cut = nn.Linear(4, 4), nn.Linear(4, 4), cut

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cut(self.body(x)))


def without_grad(x: Tensor) -> Tensor:
    with torch.no_grad():
        return x * 2


CUTS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "detach": (lambda x: x.detach(), "detach()"),
    "detach_": (lambda x: x.detach_(), "detach_()"),
    "data": (lambda x: x.data, ".data"),
    "no_grad": (without_grad, "torch.no_grad()"),
    "item": (lambda x: torch.full_like(x, x.sum().item()), "item()"),
    "tolist": (lambda x: torch.FloatTensor(x.tolist()), "tolist()"),
    "a list for torch.tensor": (lambda x: torch.tensor(x.tolist()), "torch.tensor()"),
    "argmax": (lambda x: x.argmax(1, keepdim=True).expand(-1, 4).float(), "argmax()"),
    "topk": (lambda x: x.topk(1).indices.expand(-1, 4).float(), "topk()"),
    "sort": (lambda x: x.sort()[1].float(), "sort()"),
    "isfinite": (lambda x: x.isfinite().float(), "isfinite()"),
    "long": (lambda x: x.long().float(), "an integer cast"),
    "to": (lambda x: x.to(torch.int32).float(), "an integer cast"),
    "sign": (lambda x: (x > 0).float(), "a comparison"),
    "float": (lambda x: torch.ones_like(x) * float(x.sum()), "float()"),
    "tensor": (lambda x: torch.tensor(x), "torch.tensor()"),
}


@pytest.mark.parametrize("name", CUTS)
def test_each_way_to_cut_a_gradient_is_told_by_its_name(name: str) -> None:
    cut, cause = CUTS[name]
    found = only("cut-gradient", trained(Cutting(cut), torch.randn(64, 4)))
    assert found.cause == f"cut by {cause}"
    assert found.message.startswith("body.weight and body.bias got no gradient: ")
    assert found.where.startswith("test_paths.py:")


@pytest.mark.parametrize("ask", ["grad", "backward"])
def test_what_backward_was_not_asked_for_is_not_missing(ask: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    asked = list(model[0].parameters())
    with record(model) as recording:
        loss = model(torch.randn(64, 4)).sum()
        if ask == "grad":
            torch.autograd.grad(loss, asked)
        else:
            loss.backward(inputs=asked)
    assert find(recording.graph) == []


@pytest.mark.parametrize("step", [torch.round, torch.sign, torch.floor, torch.bernoulli])
def test_a_step_gives_zeros_and_one_with_the_gradient_passed_through_does_not(
    step: Callable[[Tensor], Tensor],
) -> None:
    def stepped(x: Tensor) -> Tensor:
        return step(x.sigmoid())

    def through(x: Tensor) -> Tensor:
        return x + (stepped(x) - x).detach()

    model = Cutting(stepped)
    found = only("zero-gradient", trained(model, torch.randn(64, 4)))
    assert model.body.weight.grad is not None
    assert not model.body.weight.grad.any()
    assert found.message.startswith(
        f"body.weight and body.bias got a gradient of only zeros: {step.__name__} at test_paths.py:"
    )
    assert serious(trained(Cutting(through), torch.randn(64, 4))) == []


class OneKey(nn.Module):
    """Attention without several keys, as over an image that is reduced to one position."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        scores = self.q(x) @ self.k(x).transpose(-1, -2)
        mixed: Tensor = x + scores.softmax(-1) @ self.v(x)
        return mixed


def test_attention_over_one_position_is_told_once_for_all_its_layers() -> None:
    found = only("zero-gradient", trained(nn.Sequential(OneKey(), OneKey()), torch.randn(8, 1, 4)))
    line = inspect.getsourcelines(OneKey.forward)[1] + 2
    assert found.message == (
        "0.q.weight, 0.q.bias, 0.k.weight and 5 more got a gradient of only zeros: softmax in "
        f"0, and in 1 other module, at test_paths.py:{line} normalizes a dimension of size 1, "
        "so its result is 1 for every input."
    )
    assert found.advice == ""  # a sigmoid would not give weights
    many = trained(nn.Sequential(OneKey(), OneKey()), torch.randn(8, 3, 4))
    assert "zero-gradient" not in {each.rule for each in find(many)}


def test_a_softmax_of_a_single_number_is_one_of_size_1() -> None:
    model = Cutting(lambda x: x.mean().softmax(0).expand(64, 4))
    found = only("zero-gradient", trained(model, torch.randn(64, 4)))
    assert "body.weight and body.bias got a gradient of only zeros" in found.message
    assert "size 1" in found.message


def test_a_gradient_left_from_before_the_recording_hides_no_finding() -> None:
    model = Cutting(lambda x: x)
    model.never = nn.Linear(4, 4)
    model.never.weight.grad = torch.ones(4, 4)
    model(torch.randn(8, 4)).sum().backward()
    model.cut = Tensor.detach
    graph = trained(model, torch.randn(8, 4))
    assert model.body.weight.grad is not None
    assert only("cut-gradient", graph).message.startswith("body.weight and body.bias")
    assert "never.weight" in only("never-called", graph).message


class Both(nn.Module):
    """A model that drops the result of `a` and returns that of `b`."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        self.a(x)
        return self.b(x)


def averaged(mean: Tensor, weight: Tensor) -> None:
    mean.mul_(0.9).add_(weight, alpha=0.1)


@pytest.mark.parametrize(
    "use",
    [averaged, lambda mean, weight: mean.lerp_(weight, 0.1), lambda mean, weight: weight.norm()],
)
def test_what_is_done_with_weights_between_forwards_is_no_cut(
    use: Callable[[Tensor, Tensor], Any],
) -> None:
    model = Both()
    means = [p.detach().clone() for p in model.parameters()]
    with record(model) as recording:
        for _ in range(2):
            with torch.no_grad():
                for mean, weight in zip(means, model.parameters(), strict=True):
                    use(mean, weight)
            model(torch.randn(8, 4)).sum().backward()
    assert "a.weight" in only("output-not-in-loss", recording.graph).message
    assert [f.rule for f in find(recording.graph)] == ["output-not-in-loss"]


@pytest.mark.filterwarnings("ignore:.*global hooks.*")
def test_what_a_compiled_region_does_not_use_is_told_as_that() -> None:
    model = Both()
    model.spare = nn.Linear(4, 4)
    graph = trained(torch.compile(model, backend="aot_eager"), torch.randn(8, 4))
    assert "spare was never called" in only("never-called", graph).message
    assert "a ran, but the loss does not depend" in only("output-not-in-loss", graph).message


class TwoResults(nn.Module):
    """A model with two heads, one of which a loss may leave out."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.first(x), self.second(x)


def test_a_result_that_the_loss_leaves_out_is_not_laid_to_ddps_own_node() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = nn.parallel.DistributedDataParallel(TwoResults(), find_unused_parameters=True)
        with record(model) as recording:
            model(torch.randn(3, 4))[0].sum().backward()
    finally:
        dist.destroy_process_group()
    graph = recording.graph
    sink = next(node for node in graph.nodes if node.name == "_DDPSinkBackward")
    assert len(sink.outputs) == 2  # and one of them has no gradient
    found = find(graph)
    assert "second ran, but the loss does not depend" in only("output-not-in-loss", graph).message
    assert "DDPSink" not in " ".join(each.message + each.advice for each in found)


@pytest.mark.parametrize("ours", [True, False])
def test_nobody_is_told_to_mend_a_function_of_torchs_own(ours: bool) -> None:
    name = "ScaleBackward" if ours else "CheckpointFunctionBackward"
    graph = passed(None, 1.0, 1.0)
    leaf, step, loss = graph.nodes
    graph = replace(graph, nodes=(leaf, step._replace(name=name), loss))
    assert bool(only("backward-returned-none", graph).advice) is ours


@pytest.mark.filterwarnings("ignore:.*global hooks.*")
def test_of_what_a_closed_region_does_not_use_it_is_not_told_whether_it_ran() -> None:
    model = Both()
    model.spare = nn.Linear(4, 4)
    run = torch.compile(model, backend="aot_eager")
    with record(run, compiled="closed") as recording:
        run(torch.randn(8, 4)).sum().backward()
    graph = recording.graph
    spare, forgotten = only("output-not-in-loss", graph), only("backward-returned-none", graph)
    assert (
        "spare.weight and spare.bias got no gradient: the compiled model does not" in spare.message
    )
    assert forgotten.message.startswith("a.weight and a.bias got no gradient: ")
    assert forgotten.severity == "warning"
    assert forgotten.advice.endswith('record(compiled="eager") to see where.')


def test_of_plain_leaves_only_one_that_was_cut_off_counts_as_a_parameter() -> None:
    w, b = torch.randn(3, requires_grad=True), torch.zeros(3, requires_grad=True)
    with record() as recording:
        h = torch.randn(5, 3) * w
        (h.detach() + b).sum().backward()
    assert [(p.name, p.got_gradient) for p in recording.graph.parameters] == [("w", False)]


def test_a_loop_that_updates_plain_leaves_has_no_parameters_and_no_findings() -> None:
    w, x = torch.randn(3, requires_grad=True), torch.randn(5, 3)
    with record() as recording:
        for _ in range(3):
            (x @ w).square().mean().backward()
            with torch.no_grad():
                w -= 0.1 * w.grad
                w.grad = None
    assert [(graph.parameters, serious(graph)) for graph in recording.graphs] == [((), [])] * 3


def test_a_leaf_that_a_custom_function_is_not_given_is_no_module_that_ran() -> None:
    meta = TensorMeta((3,), "float32", "cpu")
    some = (GradientStats(1.0, 1.0, 1.0, 0.0),)
    nodes = (
        Node(0, "AccumulateGrad", (meta,), label="rates[0]", leaf="tensor"),
        Node(1, "AccumulateGrad", (meta,), leaf="tensor", grad_outputs=some, order=1),
        Node(2, "AdjointBackward", (meta,), where="net.py:46", grad_outputs=some, order=0),
    )
    lost = Parameter("rates[0]", meta, True, 0, got_gradient=False)
    graph = Graph(nodes, (Edge(1, 2),), ((2, 0),), parameters=(lost,))
    [found] = [each for each in find(graph) if each.rule == "output-not-in-loss"]
    assert found.message == "rates[0] got no gradient: the loss does not depend on it."
    assert "at net.py:46 is a custom Function" in found.advice
