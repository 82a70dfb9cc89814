"""Test where gradients are cut, and the operands of operations that raise."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from graphviz_torch import Graph, find, record, simulate_accelerator


class Cut(nn.Module):
    """A model of a layer, a cut, and another layer."""

    def __init__(self, cut: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.fc1 = nn.Linear(3, 3)
        self.fc2 = nn.Linear(3, 1)
        self.never = nn.Linear(3, 3)
        self.cut = cut

    def forward(self, x: Tensor) -> Tensor:
        h = self.fc1(x)
        h = self.cut(h)
        return self.fc2(h)


def graph_of(model: nn.Module) -> Graph:
    with record(model) as recording:
        model(torch.ones(2, 3)).sum().backward()
    return recording.graph


def inside_no_grad(h: Tensor) -> Tensor:
    with torch.no_grad():
        return h * 2


WAYS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "detach": (lambda h: h.detach(), "detach"),
    "data": (lambda h: h.data, "data"),
    "no_grad": (inside_no_grad, "no_grad"),
    "integers": (lambda h: h.long().float(), "long"),
    "truth": (lambda h: h.bool().float(), "bool"),
    "comparison": (lambda h: (h > 0).float(), "gt"),
    "argmax": (lambda h: h.argmax(1, keepdim=True).expand(2, 3) * 1.0, "argmax"),
    "topk": (lambda h: h.topk(1).indices.expand(2, 3) * 1.0, "topk"),
    "through others": (lambda h: h.detach().relu().reshape(2, 3) + 1, "detach"),
}


def test_a_cut_goes_on_where_a_call_of_several_operations_reads_its_result() -> None:
    teacher, student = nn.Linear(3, 4), nn.Linear(3, 4)
    x = torch.rand(2, 3)
    with record(student) as recording:
        target = teacher(x).softmax(-1).detach()
        loss = nn.functional.kl_div(student(x).log_softmax(-1), target, reduction="batchmean")
        loss.backward()
    graph = recording.graph
    # kl_div multiplies its target with what it is given; the quotient behind is its result.
    product = next(node for node in graph.nodes if node.operation == "mul")
    assert [node.operation for node in graph.nodes if node.id > product.id] == ["sub", "sum", "div"]
    assert {cut.after for cut in graph.cuts} == {(product.id,)}


@pytest.mark.parametrize("way", WAYS)
def test_a_cut_is_found_with_the_nodes_on_both_sides(way: str) -> None:
    function, how = WAYS[way]
    graph = graph_of(Cut(function))
    (cut,) = graph.cuts
    assert cut.how == how
    assert cut.where.startswith("test_cuts.py:")
    assert cut.label == "h"
    # The side that no gradient reaches is in the graph, and so are its parameters.
    assert cut.before is not None
    before = graph.nodes[cut.before]
    assert (before.title, before.module, before.order) == ("addmm", "fc1", None)
    assert [(graph.nodes[i].title, graph.nodes[i].module) for i in cut.after] == [("addmm", "fc2")]
    assert graph.outputs[0][0] == next(n.id for n in graph.nodes if n.title == "sum")
    parameters = {parameter.name: parameter for parameter in graph.parameters}
    weight = parameters["fc1.weight"]
    assert (weight.module_called, weight.has_grad) == (True, False)
    assert weight.node is not None
    assert graph.nodes[weight.node].order is None
    never = parameters["never.weight"]
    assert (never.module_called, never.has_grad, never.node) == (False, False, None)


@pytest.mark.parametrize("how", ["item", "tolist", "float"])
def test_a_number_read_into_python_is_a_cut_where_it_hides_a_parameter(how: str) -> None:
    reads: dict[str, Callable[[Tensor], float]] = {
        "item": lambda t: t.item(),
        "tolist": lambda t: t.tolist(),
        "float": float,
    }
    graph = graph_of(Cut(lambda h: torch.ones(2, 3) * reads[how](h.sum())))
    (cut,) = graph.cuts
    assert cut.how == how
    assert cut.after == ()
    assert graph.nodes[cut.before or 0].title == "sum"


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_every_operand_that_needed_a_gradient_is_a_cut(mode: Any) -> None:
    model = nn.ModuleDict({"encoder": nn.Linear(3, 3), "head": nn.Linear(3, 1)})
    with record(model) as recording:
        with mode():
            h = model["encoder"](torch.ones(2, 3)) * model["encoder"].bias
        model["head"](h.clone()).sum().backward()
    graph = recording.graph
    assert {cut.how for cut in graph.cuts} == {mode.__name__}
    before = [graph.nodes[cut.before or 0].label for cut in graph.cuts]
    assert before == ["encoder.weight", "encoder.bias", "encoder.bias"]
    assert [cut.label for cut in graph.cuts] == before
    assert all([graph.nodes[i].title for i in cut.after] == ["addmm"] for cut in graph.cuts)


ARRAYS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "numpy": (lambda h: torch.from_numpy(h.detach().numpy()), "numpy"),
    "through cpu": (lambda h: torch.from_numpy(h.detach().cpu().numpy() * 2), "numpy"),
    "array": (lambda h: torch.tensor(np.array(h.detach())), "array"),
    "tolist": (lambda h: torch.tensor(h.data.tolist()), "tensor"),
    "used too": (lambda h: torch.ones(2, 3) * h.detach() * h.detach().sum().item(), "detach"),
}


@pytest.mark.parametrize("way", ARRAYS)
def test_an_array_of_a_detached_result_is_a_cut_though_that_is_gone(way: str) -> None:
    function, how = ARRAYS[way]
    graph = graph_of(Cut(function))
    cut = graph.cuts[0]
    assert cut.how == how
    assert cut.label == "h"
    assert cut.where.startswith("test_cuts.py:")
    assert graph.nodes[cut.before or 0].module == "fc1"


def test_numbers_of_results_that_are_gone_keep_few_graphs_alive() -> None:
    held = []
    with record():
        for _ in range(100):
            h = torch.ones(3, requires_grad=True)
            (h * 1).detach().numpy()
            held.append(weakref.ref(h))
            del h
        assert sum(ref() is not None for ref in held) == 32


def test_what_is_read_or_made_beside_the_loss_is_no_cut() -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    with record(model) as recording:
        for _ in range(2):
            optimizer.zero_grad()
            h = model(torch.ones(2, 3))
            zeros = torch.zeros_like(h) + h.new_ones(1) + h.shape[0] + h.numel() + h.dim()
            one = torch.ones(1, dtype=torch.int64)
            zeros = zeros + one.expand_as(h) + torch.ones(2).view_as(h) + one.type_as(h) + one.to(h)
            loss = (h + zeros).sum()
            loss.item()
            float(loss.detach())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            loss.item()
    assert [(graph.cuts, len(graph.nodes)) for graph in recording.graphs] == [((), 6)] * 2
    assert all(parameter.stepped for parameter in recording.graph.parameters)


def test_a_frozen_parameter_and_one_outside_the_optimizer_are_told() -> None:
    model = Cut(lambda h: h)
    model.fc1.requires_grad_(False)
    optimizer = torch.optim.SGD(model.fc1.parameters())
    with record(model) as recording:
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
    parameters = {parameter.name: parameter for parameter in recording.graph.parameters}
    assert parameters["fc1.weight"].requires_grad is False
    assert parameters["fc2.weight"].stepped is False
    assert parameters["fc1.weight"].stepped is True


def test_what_was_cut_off_is_not_kept_alive_for_long() -> None:
    with record():
        held = []
        for _ in range(3):
            h = torch.ones(3, requires_grad=True) * 2
            h.register_hook(lambda gradient: None)
            (h * 1).detach()
            held.append(weakref.ref(h))
            del h
        assert [ref() for ref in held] == [None] * 3


def test_a_result_that_outlives_a_backward_keeps_nothing_that_was_cut_off_alive() -> None:
    with record():
        x = torch.ones(3, requires_grad=True)
        h = x * 2
        result = h.detach()
        x_alive = weakref.ref(x)
        (result * torch.ones(3, requires_grad=True)).sum().backward()
        del x, h
        assert x_alive() is None
        assert result.shape == (3,)


CUTS: list[tuple[str, Callable[[Tensor], Tensor]]] = [
    ("detach", lambda loss: loss.detach()),
    ("tensor", lambda loss: torch.tensor(loss.item())),
]


@pytest.mark.parametrize(("how", "cut"), CUTS)
def test_a_backward_that_fails_for_a_cut_names_the_line_of_the_cut(
    how: str, cut: Callable[[Tensor], Tensor]
) -> None:
    model = nn.Linear(3, 1)

    def train() -> None:
        loss = model(torch.ones(2, 3)).sum()
        loss = cut(loss)
        loss.backward()

    with pytest.raises(RuntimeError, match="does not require grad"), record(model) as recording:
        train()
    graph = recording.graph
    (seen,) = graph.cuts
    line = f"test_cuts.py:{cut.__code__.co_firstlineno}"
    assert (seen.how, seen.label, seen.where) == (how, "loss", line)
    assert graph.nodes[seen.before or 0].title == "sum"
    (found,) = [finding for finding in find(graph) if finding.rule == "cut-gradient"]
    assert found.where == seen.where
    assert found.message.startswith("weight and bias got no gradient: loss was cut by")


def test_a_failing_operation_names_its_operands_and_the_graph_up_to_it() -> None:
    model = nn.Linear(3, 2)
    with simulate_accelerator() as [device]:
        x = torch.ones(4, 3).to(device)
        bias = torch.ones(4, 2, requires_grad=True)
        recording = record(model.to(device))

        def run() -> None:
            h = model(x)
            h + bias * 1

        with pytest.raises(RuntimeError, match="on the same device") as error, recording:
            run()
    graph = recording.graph
    assert graph.failure is not None
    assert (graph.failure.error, graph.failure.operation) == ("RuntimeError", "add")
    assert graph.failure.message == str(error.value)
    assert graph.failure.where.startswith("test_cuts.py:")
    first, second = graph.failure.operands
    assert (first.label, first.tensor.device) == ("h", "sim:0")
    assert (second.label, second.tensor.device) == ("", "cpu")
    assert graph.nodes[first.node or 0].title == "addmm"
    assert graph.nodes[second.node or 0].title == "mul"
    assert first.where != second.where != ""
    assert {node for node, _ in graph.outputs} == {first.node, second.node}


def test_operands_of_torchs_own_modules_go_by_the_users_names() -> None:
    model = nn.Linear(3, 2)
    with simulate_accelerator() as [device]:
        model.to(device)
        batch = torch.ones(4, 3)
        recording = record(model)
        with pytest.raises(RuntimeError, match="on the same device"), recording:
            model(batch)
    assert recording.graph.failure is not None
    labels = [operand.label for operand in recording.graph.failure.operands]
    assert labels == ["batch", "weight", "bias"]


def test_a_failure_in_backward_keeps_the_gradients_up_to_it() -> None:
    def fail(gradient: Tensor) -> None:
        raise ValueError("in a hook")

    x = torch.ones(3, requires_grad=True)
    a = x * 2
    a.register_hook(fail)
    loss = a.exp().sum()
    recording = record()
    with pytest.raises(ValueError, match="in a hook"), recording:
        loss.backward()
    graph = recording.graph
    assert graph.failure is not None
    assert (graph.failure.error, graph.failure.operation) == ("ValueError", "backward")
    titles = {node.title: bool(node.grad_outputs) for node in graph.nodes}
    assert titles == {"AccumulateGrad": False, "mul": False, "exp": True, "sum": True}


def test_a_failure_under_inference_mode_is_the_users_own() -> None:
    weight = nn.Parameter(torch.ones(3, 3))
    recording = record()
    with pytest.raises(RuntimeError, match="must match"), recording, torch.inference_mode():
        weight + torch.ones(2)
    assert recording.graph.failure is not None
    assert [operand.label for operand in recording.graph.failure.operands] == ["weight", ""]


def test_an_exception_that_torch_did_not_raise_leaves_the_graph_so_far() -> None:
    model = nn.Linear(3, 1)
    recording = record(model)
    with pytest.raises(KeyError), recording:
        {}[model(torch.ones(2, 3))]
    assert recording.graph.failure is not None
    assert recording.graph.failure.error == "KeyError"
    assert recording.graph.failure.where.startswith("test_cuts.py:")
    assert [node.title for node in recording.graph.nodes if not node.leaf] == ["t", "addmm"]


def test_a_loss_that_is_read_after_its_backward_cuts_nothing_of_the_next() -> None:
    critic, actor = nn.Linear(2, 1), nn.Linear(2, 1)
    with record(nn.ModuleDict({"critic": critic, "actor": actor})) as recording:
        loss = critic(torch.ones(1, 2)).sum()
        loss.backward()
        loss.item()
        loss.mean().item()
        actor(torch.ones(1, 2)).sum().backward()
    assert [graph.cuts for graph in recording.graphs] == [(), ()]
    names = {parameter.name: parameter.node for parameter in recording.graph.parameters}
    assert names["critic.weight"] is None
    assert names["actor.weight"] is not None


def test_a_graph_that_is_read_before_its_backward_takes_no_cut_from_it() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    with record(model) as recording:
        loss = model[1](model[0](torch.ones(3, 4)).detach()).sum()
        [before] = recording.graph.cuts
        loss.backward()
    [after] = recording.graph.cuts
    assert (after.how, after.where) == (before.how, before.where)
    assert after.how == "detach"
    assert after.after
