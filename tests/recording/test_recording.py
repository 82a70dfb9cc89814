"""Test record(): the worked example, and what a recording must not disturb."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.flop_counter import FlopCounterMode

from graphviz_torch import Graph, record, simulate_accelerator, to_text, trace
from graphviz_torch.recording.recording import Recording
from tests.support import models
from tests.support.programs import function, in_threads


def test_the_worked_example_has_the_gradient_at_every_node() -> None:
    x = torch.arange(1, 4, dtype=torch.float32, requires_grad=True)
    with record() as recording:
        a = x + 2
        b = a**2
        c = b + 3
        y = c.mean()
        tensors = [x, a, b, c, y]
        y.backward(retain_graph=True)
    expected = torch.autograd.grad(y, tensors)
    nodes = {node.label: node for node in recording.graph.nodes}
    assert list(nodes) == ["x", "a", "b", "c", "y"]
    for name, gradient in zip("xabcy", expected, strict=True):
        (stats,) = nodes[name].grad_outputs
        assert stats is not None
        assert stats.values == tuple(gradient.reshape(-1).tolist())
        assert stats.norm == pytest.approx(gradient.norm().item())
    assert [nodes[name].order for name in "ycbax"] == [0, 1, 2, 3, 4]
    assert [round(value, 4) for value in nodes["x"].grad_outputs[0].values] == [2, 2.6667, 3.3333]


def test_at_a_prompt_a_recording_is_one_line_and_in_a_notebook_its_picture() -> None:
    recording = record()
    assert repr(recording) == "Recording(not entered)"
    with simulate_accelerator() as [device], recording:
        assert repr(recording) == "Recording(open)"
        assert recording._repr_mimebundle_() == {"text/plain": "Recording(open)"}
        a = torch.ones(3, device=device, requires_grad=True)
        (a * torch.ones(3).to(device)).sum().backward()
        (a * 2).sum().backward()
    assert repr(recording) == "Recording(6 nodes, 2 backwards, 1 transfer)"
    assert list(recording._repr_mimebundle_()) == ["image/svg+xml"]


def test_at_a_prompt_a_recording_names_its_worst_finding() -> None:
    model = models.MLP()
    with record(model) as recording:
        model.fc2(model.fc1(torch.ones(2, 4)).detach()).sum().backward()
    nodes, line = len(recording.graph.nodes), "test_recording.py:"
    assert repr(recording).startswith(
        f"Recording({nodes} nodes, 4 parameters, 1 backward, warning: cut-gradient at {line}"
    )
    with record() as recording:
        pass
    assert repr(recording) == "Recording(nothing was recorded)"
    assert recording._repr_mimebundle_() == {"text/plain": "Recording(nothing was recorded)"}


def test_there_and_back_is_four_copies_two_of_them_in_backward() -> None:
    x = torch.arange(1, 4, dtype=torch.float32, requires_grad=True)
    with simulate_accelerator() as [device], record() as recording:
        y = ((x.to(device) + 2) ** 2 + 3).mean().cpu()
        y.backward()
    graph = recording.graph
    seen = [
        (copy.kind, copy.source, copy.target, copy.phase, copy.nbytes, copy.operation)
        for copy in graph.transfers
    ]
    assert seen == [
        ("HtoD", "cpu", "sim:0", "forward", 12, "to"),
        ("DtoH", "sim:0", "cpu", "forward", 4, "cpu"),
        ("HtoD", "cpu", "sim:0", "backward", 4, ""),
        ("DtoH", "sim:0", "cpu", "backward", 12, ""),
    ]
    nodes = [graph.nodes[copy.node or 0] for copy in graph.transfers]
    assert all(node.name == "ToCopyBackward0" for node in nodes)
    assert graph.transfers[0].node == graph.transfers[3].node
    assert graph.nodes[0].grad_outputs[0].values == tuple(x.grad.tolist())
    assert {node.seconds for node in graph.nodes if node.device == "sim:0"} == {None}


class Noisy(nn.Module):
    """A model with dropout, a changing buffer and a custom Function."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16)
        self.drop = nn.Dropout(0.5)
        self.fc2 = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(torch.relu(self.norm(self.fc1(x))))
        return self.fc2(x * torch.rand_like(x))


def training(recorded: bool, autocast: bool) -> list[Tensor]:
    torch.manual_seed(3)
    model = Noisy()
    optimizer = torch.optim.Adam(model.parameters())
    values = []
    for _ in range(3):
        with record(model) if recorded else nullcontext():
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                loss = model(torch.randn(5, 8)).float().pow(2).mean()
            loss.backward()
            values += [loss.detach(), *(p.grad.clone() for p in model.parameters())]
            optimizer.step()
    return [*values, *model.state_dict().values(), torch.get_rng_state()]


@pytest.mark.parametrize("autocast", [False, True])
def test_recording_changes_no_value_no_gradient_and_no_random_number(autocast: bool) -> None:
    plain, recorded = training(False, autocast), training(True, autocast)
    assert len(plain) == len(recorded)
    assert all(torch.equal(a, b) for a, b in zip(plain, recorded, strict=True))


def test_the_graph_is_the_one_that_trace_reads() -> None:
    model = models.TransformerBlock()
    with record(model) as recording:
        loss = model(torch.randn(2, 3, 8)).sum()
        expected = trace(loss, names=model)
        loss.backward()
    graph = recording.graph
    assert graph.edges == expected.edges
    assert graph.outputs == expected.outputs
    for node, plain in zip(graph.nodes, expected.nodes, strict=True):
        assert node[:3] == plain[:3]
        assert node.leaf == plain.leaf
        assert node.label == plain.label or plain.label == ""


def test_without_a_backward_the_graph_is_of_what_the_model_returned_or_the_caller_holds() -> None:
    model = models.MLP()
    with record(model) as recording:
        model(torch.ones(2, 4))  # not even kept
    titles = [node.title for node in recording.graph.nodes if not node.leaf]
    assert titles == ["t", "addmm", "relu", "t", "addmm"]
    assert recording.graph.nodes[-1].module == "fc2"
    assert all(node.order is None for node in recording.graph.nodes)
    x = torch.ones(2, requires_grad=True)
    before = x + 1
    with record() as recording:
        a = x * 2
        b = a.exp()
        c = a.sin()
    assert [node.label for node in recording.graph.nodes] == ["x", "a", "b", "c"]
    assert len(recording.graph.outputs) == 2
    assert before.shape == b.shape == c.shape


@pytest.mark.parametrize("gradients", [True, False, "finite"])
@pytest.mark.parametrize("backwards", [0, 1, 2])
def test_a_parameter_says_whether_a_backward_gave_it_a_gradient(
    gradients: Any, backwards: int
) -> None:
    model = nn.ModuleDict({"used": nn.Linear(2, 1), "unused": nn.Linear(2, 1)})
    with record(model, gradients=gradients) as recording:
        for _ in range(backwards):
            model["used"](torch.ones(3, 2)).sum().backward()
        given = {name: p.grad is not None for name, p in model.named_parameters()}
        model["used"](torch.ones(3, 2))
        model.zero_grad()
    if gradients is False or not backwards:
        given = dict.fromkeys(given, None)
    elif gradients == "finite":  # not all gradients are looked at
        given = {name: reached or None for name, reached in given.items()}
    assert {p.name: p.got_gradient for p in recording.graph.parameters} == given


def test_a_block_in_which_nothing_happens_says_so() -> None:
    def nothing() -> Recording:
        with record() as recording:
            pass
        return recording

    with pytest.raises(ValueError, match="nothing was recorded"):
        _ = nothing().graph
    assert nothing().graphs == []


def test_nothing_of_the_program_is_held_after_the_block() -> None:
    def remember(ctx: Any, x: Tensor) -> Tensor:
        ctx.kept = x
        return x * 2

    def run() -> tuple[Recording, list[weakref.ref[Any]]]:
        remembers = function(remember, lambda ctx, gradient: gradient * 2)
        model = models.MLP()
        x = torch.ones(2, 4)
        with simulate_accelerator() as [device], record(model) as recording:
            h = remembers.apply(model(x))
            cut = h.detach()
            moved = h.to(device)
            loss = moved.sum() + cut.sum().to(device)
            loss.backward()
            model(x)
        return recording, [weakref.ref(t) for t in (model, x, h, cut, moved, loss)]

    recording, held = run()
    gc.collect()
    assert [ref() for ref in held] == [None] * 6
    assert recording.graph.nodes


def test_a_recording_is_entered_once_at_a_time() -> None:
    recording = record()
    with recording, pytest.raises(RuntimeError, match="entered only once"):
        recording.__enter__()


def test_an_exception_leaves_the_block_as_it_was_raised() -> None:
    error = RuntimeError("mine")
    with pytest.raises(RuntimeError) as caught, record():
        raise error
    assert caught.value is error
    assert error.__context__ is None


def test_one_recording_inside_another_leaves_both_right() -> None:
    x = torch.ones(2, requires_grad=True)
    with record() as outer:
        (x * 2).sum().backward()
        with record() as inner:
            (x * 3).exp().sum().backward()
            inside = inner.graph
        x.sin().sum().backward()
    assert [len(graph.nodes) for graph in outer.graphs] == [3, 4, 3]
    assert [len(graph.nodes) for graph in inner.graphs] == [4]
    assert inner.graph.nodes[1].grad_outputs == outer.graphs[1].nodes[1].grad_outputs
    assert inside.nodes[1].grad_outputs == inner.graph.nodes[1].grad_outputs


@pytest.mark.parametrize("model", [3, torch.ones(1), nn.Linear])
def test_what_is_no_module_is_refused_in_a_sentence(model: Any) -> None:
    with pytest.raises(TypeError, match=r"model is an? .* not an nn\.Module\. Pass the model"):
        record(model)


def test_recordings_in_several_threads_see_each_their_own() -> None:
    begin = threading.Barrier(4)

    def run(number: int) -> Graph:
        x = torch.ones(2, requires_grad=True)
        begin.wait(60)
        with record() as recording:
            begin.wait(60)
            with simulate_accelerator() as [device]:
                y = x.to(device)
                for _ in range(number):
                    y = y * 2
                begin.wait(60)
                y.sum().backward()
        (graph,) = recording.graphs
        return graph

    graphs = in_threads(*(partial(run, number) for number in range(1, 5)))
    for number, graph in enumerate(graphs, 1):
        assert [node.title for node in graph.nodes].count("mul") == number
        assert all(node.grad_outputs for node in graph.nodes)
        assert [copy.phase for copy in graph.transfers] == ["forward", "backward"]
        assert all(copy.node is not None for copy in graph.transfers)


def test_threads_that_record_again_and_again_see_each_their_own() -> None:
    def run() -> None:
        for _ in range(15):
            x = torch.ones(3, requires_grad=True)
            with simulate_accelerator() as [device], record() as recording:
                (x.to(device) * 2).sum().backward()
            assert [copy.phase for copy in recording.graph.transfers] == ["forward", "backward"]
            model = nn.Linear(2, 1)
            optimizer = torch.optim.SGD(model.parameters())
            with record(model) as recording:
                model(torch.ones(1, 2)).sum().backward()
                optimizer.step()
            assert [p.stepped for p in recording.graph.parameters] == [True, True]

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        in_threads(*[run] * 8)
    finally:
        sys.setswitchinterval(interval)


def test_the_optimizer_of_another_thread_is_not_this_recordings() -> None:
    model, other = nn.Linear(2, 1), nn.Linear(2, 1)
    optimizer = torch.optim.SGD(other.parameters())
    with record(model) as recording:
        model(torch.ones(1, 2)).sum().backward()
        in_threads(optimizer.step)
    assert [parameter.stepped for parameter in recording.graph.parameters] == [None, None]


def test_an_optimizer_steps_while_another_thread_begins_and_ends_a_recording() -> None:
    def recorded(*_: Any) -> None:
        in_threads(lambda: record().__enter__().__exit__(None, None, None))

    recorded()  # the first recording registers what stays
    weight = nn.Parameter(torch.ones(1))
    weight.grad = torch.ones(1)
    optimizer = torch.optim.SGD([weight], lr=0.25)
    hooks = recorded, lambda *_: None  # PyTorch is amid its hooks when the first one runs
    handles = [register_optimizer_step_pre_hook(hook) for hook in hooks]
    try:
        optimizer.step()
    finally:
        for handle in handles:
            handle.remove()
    assert weight.item() == 0.75


def test_function_transforms_run_and_are_not_mistaken_for_the_graph() -> None:
    x = torch.arange(3.0, requires_grad=True)

    def cube(v: Tensor) -> Tensor:
        return (v**3).sum()

    expected = torch.func.grad(cube)(x)
    with record() as recording:
        gradient = torch.func.grad(cube)(x)
        rows = torch.func.vmap(torch.func.grad(cube))(torch.ones(2, 3))
        gradient.sum().backward()
    assert torch.equal(gradient, expected)
    assert rows.shape == (2, 3)
    assert recording.graph.nodes[0].grad_outputs[0].values == (0.0, 6.0, 12.0)


def test_a_flop_counter_counts_the_users_operators_alone() -> None:
    def flops(recorded: bool) -> int:
        model = nn.Linear(8, 8)
        counter = FlopCounterMode(display=False)
        with counter, record(model) if recorded else nullcontext():
            model(torch.ones(2, 8)).sum().backward()
        return int(counter.get_total_flops())

    assert flops(recorded=True) == flops(recorded=False) > 0


def test_a_variable_whose_attributes_cannot_be_read_stops_no_recording() -> None:
    class Closed:
        def __getattribute__(self, name: str) -> Any:
            raise RuntimeError(f"{name} was read")

    closed, model = Closed(), nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
    assert "was read" not in to_text(recording, wide=True)
    assert type(closed) is Closed


def test_what_an_earlier_backward_freed_is_no_error() -> None:
    x = torch.ones(3, requires_grad=True)
    with record():
        y = x[torch.tensor([0, 1])]
        y.sum().backward()
        (gradient,) = torch.autograd.grad((y * 2).sum(), y)
    assert gradient.tolist() == [2, 2]


def test_a_failure_after_a_backward_has_a_graph_of_its_own() -> None:
    x = torch.ones(3, requires_grad=True)

    def program() -> None:
        (x * 2).sum().backward()
        x.exp().sin() + torch.ones(7)

    with pytest.raises(RuntimeError, match="size"), record() as recording:
        program()
    assert [[node.title for node in graph.nodes[1:]] for graph in recording.graphs] == [
        ["mul", "sum"],
        ["exp", "sin"],
    ]
    first, last = (graph.failure for graph in recording.graphs)
    assert first is None
    assert last is not None
    assert last.operands[0].node == 2


def test_an_error_of_the_program_itself_belongs_to_the_last_backward() -> None:
    x = torch.ones(3, requires_grad=True)

    def program() -> None:
        loss = (x * 2).sum()
        loss.backward()
        raise ValueError("its own")

    with pytest.raises(ValueError, match="its own"), record() as recording:
        program()
    (graph,) = recording.graphs
    assert graph.failure is not None
    assert graph.nodes[0].grad_outputs[0] is not None


def test_a_parameter_that_is_replaced_or_added_in_the_block_has_its_name() -> None:
    model = nn.Sequential(nn.Linear(3, 4, bias=False), nn.Linear(4, 1))
    other = nn.Sequential(nn.Linear(3, 4, bias=False), nn.Linear(4, 1))
    x = torch.ones(2, 3)
    with record(model) as recording:
        model(x).sum().backward()
        model.load_state_dict(other.state_dict(), assign=True)
        model[1].bias = nn.Parameter(torch.zeros(1))
        model[0].bias = nn.Parameter(torch.zeros(4))
        model(x).sum().backward()
    names = [["0.weight", "1.weight", "1.bias"], ["0.weight", "0.bias", "1.weight", "1.bias"]]
    for graph, expected in zip(recording.graphs, names, strict=True):
        leaves = {node.label: node for node in graph.nodes if node.leaf}
        assert set(expected) == set(leaves)
        assert {node.module for node in leaves.values()} == {"0", "1"}
        nodes = {p.name: p.node for p in graph.parameters if p.node is not None}
        assert nodes == {name: leaves[name].id for name in expected}
