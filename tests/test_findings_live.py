"""Findings on recordings of real models with the mistakes that people make."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from models import (
    MLP,
)
from recorded import classified, only, serious, tower, trained
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from graphviz_torch import Finding, Graph, find, record, simulate_accelerator


@pytest.fixture(autouse=True)
def the_same_numbers_each_time() -> None:
    torch.manual_seed(0)


@pytest.fixture
def sim() -> Iterator[torch.device]:
    with simulate_accelerator() as [device]:
        yield device


# Gradient paths.


class Broken(nn.Module):
    """One layer behind a detach(), one that is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(4, 8)
        self.middle = nn.Linear(8, 8)
        self.head = nn.Linear(8, 2)
        self.spare = nn.Linear(8, 2)

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
        "test_findings_live.py:"
    )
    assert (never.cause, cut.cause) == ("never called", "cut by detach()")
    line = int(cut.where.split(":")[1])
    assert "features.detach()" in Path(__file__).read_text().splitlines()[line - 1]
    names = [graph.nodes[node].name for node in cut.nodes]
    assert "ReluBackward0" in names  # before the cut
    assert "AddmmBackward0" in names  # and after it
    assert len(serious(graph)) == 2


class Cutting(nn.Module):
    """body, something that cuts, head."""

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
    "data": (lambda x: x.data, ".data"),
    "no_grad": (without_grad, "torch.no_grad()"),
    "item": (lambda x: torch.full_like(x, x.sum().item()), "item()"),
    "tolist": (lambda x: torch.tensor(x.tolist()), "tolist()"),
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
    assert found.where.startswith("test_findings_live.py:")


def test_an_encoder_that_should_learn_but_runs_under_no_grad_is_one_warning() -> None:
    model = nn.ModuleDict({"encoder": MLP(4, 8, 4), "head": nn.Linear(4, 2)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        with torch.no_grad():
            features = model["encoder"](torch.randn(64, 4))
        model["head"](features).sum().backward()
        optimizer.step()
    found = only("cut-gradient", recording.graph)
    assert found.severity == "warning"
    assert found.cause == "cut by torch.no_grad()"
    assert "got no gradient: encoder ran under torch.no_grad() at" in found.message
    assert {recording.graph.nodes[node].label for node in found.nodes} >= {"encoder.fc1.weight"}
    assert len(serious(recording.graph)) == 1


def test_a_model_that_ran_under_no_grad_before_its_backward_failed_is_an_error() -> None:
    model = MLP()
    recording = record(model)

    def train() -> None:
        with torch.no_grad():
            out = model(torch.randn(64, 4))
        out.sum().backward()

    with pytest.raises(RuntimeError, match="does not require grad"), recording:
        train()
    found = only("cut-gradient", recording.graph)
    assert found.severity == "error"
    assert "the model ran under torch.no_grad() at models.py:" in found.message


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


def test_a_target_network_behind_a_detach_is_not_blamed_on_an_argmax_elsewhere() -> None:
    model = nn.ModuleDict({"online": MLP(4, 64, 2), "target": MLP(4, 64, 2)})
    online, target = model["online"], model["target"]
    with record(model) as recording:
        states = torch.randn(64, 4)
        actions = online(states).argmax(1)
        best = target(torch.randn(64, 4)).max(1)[0]
        best = best.detach()
        values = online(states).gather(1, actions[:, None]).squeeze(1)
        (values - best).pow(2).mean().backward()
    found = only("cut-gradient", recording.graph)
    assert found.cause == "cut by detach()"
    assert found.message.startswith("target.fc1.weight, ")


def test_a_metric_beside_the_loss_is_no_cut() -> None:
    def loss(logits: Tensor) -> Tensor:
        target = torch.zeros(len(logits), dtype=torch.long)
        (logits.argmax(1) == target).float().mean().item()
        logits.detach().numpy()
        return cross_entropy(logits, target)

    assert serious(trained(MLP(), torch.randn(64, 4), loss=loss)) == []


def test_a_result_that_the_loss_does_not_use_is_told_from_a_cut() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(4, 2), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            self.unused(x)
            return self.used(x)

    found = only("unused-result", trained(Two(), torch.randn(64, 4)))
    assert found.message.startswith("unused.weight and unused.bias got no gradient: unused ran")


def test_frozen_parameters_are_worth_knowing_and_no_more() -> None:
    model = MLP()
    model.fc1.requires_grad_(False)
    graph = trained(model, torch.randn(64, 4))
    assert only("frozen", graph).severity == "info"
    assert serious(graph) == []


def test_a_parameter_that_the_optimizer_never_heard_of_is_found() -> None:
    model = MLP()
    optimizer = torch.optim.SGD(model.fc2.parameters(), lr=0.1)
    with record(model) as recording:
        model(torch.randn(64, 4)).sum().backward()
        optimizer.step()
    found = only("not-in-optimizer", recording.graph)
    assert found.message.startswith("fc1.weight and fc1.bias got a gradient")


class Doubled(torch.autograd.Function):
    """y = 2 x, with a backward that forgets to return."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> None:
        return None


def test_a_function_whose_backward_returns_none_is_named_with_its_line() -> None:
    model = Cutting(lambda x: Doubled.apply(x))
    found = only("dropped-gradient", trained(model, torch.randn(64, 4)))
    assert model.body.weight.grad is None
    assert found.severity == "error"
    assert found.message.startswith(
        "body.weight and body.bias got no gradient: Doubled at test_findings_live.py:"
    )
    assert len(serious(trained(model, torch.randn(64, 4)))) == 1


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
        f"body.weight and body.bias got a gradient of zeros only: {step.__name__} at "
        "test_findings_live.py:"
    )
    assert serious(trained(Cutting(through), torch.randn(64, 4))) == []


# Gradient values.


def test_a_deep_stack_of_sigmoids_vanishes_and_names_the_first_layers() -> None:
    found = only(
        "vanishing-gradient", trained(tower(12, nn.Sigmoid), torch.randn(32, 64), loss=classified)
    )
    assert found.severity == "warning"
    assert "0.weight" in found.message


def test_weights_that_are_too_large_explode() -> None:
    model = tower(20, nn.ReLU, gain=2.0)
    graph = trained(model, torch.randn(32, 64), loss=classified)
    assert only("exploding-gradient", graph).severity == "warning"


def test_a_bias_far_below_zero_kills_a_relu() -> None:
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 2))
    with torch.no_grad():
        model[0].bias[:62] = -50
    found = only("dead-relu", trained(model, torch.randn(64, 8)))
    assert "96.9% of its units" in found.message  # 62 of 64


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("SqrtBackward0", lambda h: (h - h).sqrt().sum()),
        ("LogBackward0", lambda h: (h * 0).log().sum()),
        ("DivBackward0", lambda h: (h.sum() * 0) / (h.sum() * 0)),
    ],
)
def test_the_node_that_made_the_first_nan_is_named(
    name: str, wrong: Callable[[Tensor], Tensor]
) -> None:
    found = only("nonfinite-gradient", trained(MLP(), torch.randn(64, 4), loss=wrong))
    assert found.severity == "error"
    assert found.message.startswith(name)
    assert found.where.startswith("test_findings_live.py:")


def test_the_first_nan_agrees_with_detect_anomaly() -> None:
    def loss(h: Tensor) -> Tensor:
        return (torch.where(h > 1e9, h, (h * 0).sqrt()) + h).sum()

    model = MLP()
    x = torch.randn(64, 4)
    with (
        pytest.warns(UserWarning, match="Anomaly Detection"),
        pytest.raises(RuntimeError, match="'SqrtBackward0' returned nan"),
        torch.autograd.detect_anomaly(),
    ):
        (loss(model(x)) * 0).backward()
    graph = trained(model, x, loss=lambda h: loss(h) * 0)
    assert only("nonfinite-gradient", graph).message.startswith("SqrtBackward0")


def test_a_loss_that_is_summed_with_its_history_makes_the_graph_grow() -> None:
    model = MLP()
    total = torch.zeros(())
    with record(model) as recording:
        for _ in range(4):
            total = total + model(torch.randn(64, 4)).sum()
            total.backward(retain_graph=True)
    *previous, last = recording.graphs
    (found,) = [f for f in find(last, previous) if f.rule == "growing-graph"]
    assert found.where.startswith("test_findings_live.py:")


class Meter:
    """What people log with."""

    def __init__(self) -> None:
        self.total: Any = 0
        self.all: list[Any] = []

    def add(self, value: Any) -> None:
        self.total = self.total + value

    def append(self, value: Any) -> None:
        self.all.append(value)


def steps(count: int, log: Callable[[Any, Any], Any], rounds: int = 1) -> Graph:
    """The last graph of a training loop that logs its loss."""
    model = MLP()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    meter, kept = Meter(), None
    with record(model) as recording:
        for _ in range(count):
            for _ in range(rounds):
                loss = model(torch.randn(8, 4)).sum()
                loss.backward()
                kept = log(meter, loss)
            optimizer.step()
    del kept
    return recording.graph


@pytest.mark.parametrize(
    ("log", "line"),
    [
        (lambda meter, loss: meter.add(loss), "self.total = self.total + value"),
        (lambda meter, loss: meter.append(loss), "loss = model(torch.randn(8, 4)).sum()"),
    ],
    ids=["sum", "list"],
)
def test_a_loss_logged_with_its_history_is_found_with_the_line_that_keeps_it(
    log: Callable[[Meter, Tensor], None], line: str
) -> None:
    found = only("kept-history", steps(4, log))
    assert found.message.startswith("The graphs of 3 earlier steps are still alive: ")
    assert line in Path(__file__).read_text().splitlines()[int(found.where.split(":")[1]) - 1]


@pytest.mark.parametrize(
    ("count", "rounds", "log"),
    [
        (4, 1, lambda meter, loss: meter.add(loss.item())),
        (4, 1, lambda meter, loss: meter.append(loss.detach())),
        (4, 1, lambda meter, loss: loss),  # until the next one
        (1, 4, lambda meter, loss: meter.append(loss)),  # the parts of one step
        (2, 1, lambda meter, loss: meter.append(loss)),  # no trend yet
    ],
)
def test_a_loss_logged_without_its_history_or_kept_for_a_step_is_fine(
    count: int, rounds: int, log: Callable[[Meter, Tensor], object]
) -> None:
    assert steps(count, log, rounds).kept is None


def test_a_variable_that_keeps_history_is_named() -> None:
    model = MLP()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    total: Any = 0
    with record(model) as recording:
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(torch.randn(8, 4)).sum()
            (loss / 2).backward()
            optimizer.step()
            total += loss
    found = only("kept-history", recording.graph)
    assert ": total at test_findings_live.py:" in found.message


def test_a_state_carried_on_with_its_history_is_found_where_it_is_used_again() -> None:
    cell = nn.RNNCell(4, 4)
    other = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    state = torch.zeros(2, 4)
    with record(cell) as recording:
        for _ in range(4):
            state = cell(torch.randn(2, 4), state)
            state.sum().backward(retain_graph=True)
            other.step()
    found = only("kept-history", recording.graph)
    assert "3 earlier steps are still alive, and backward runs through them again" in found.message
    (node,) = found.nodes
    nodes = recording.graph.nodes
    assert nodes[node].operation == "addmm"
    assert [n.order is not None for n in nodes] == [True] * len(nodes)
    assert not [f for f in find(recording.graph, recording.graphs[:-1]) if "growing" in f.rule]


# Transfers, on a simulated accelerator.


def test_a_tensor_moved_without_assignment_is_found(sim: torch.device) -> None:
    model = MLP().to(sim)
    with record(model) as recording:
        x = torch.randn(64, 4)
        x.to(sim)
        x = x.to(sim)
        model(x).sum().backward()
    found = only("unused-copy", recording.graph)
    assert found.message.startswith("x was copied to sim:0 at test_findings_live.py:")
    assert found.advice.startswith('Replace x.to("sim:0") with x = x.to("sim:0")')
    assert len(found.transfers) == 1


def test_a_table_copied_in_every_step_is_found_and_a_batch_is_not(sim: torch.device) -> None:
    model, table = MLP().to(sim), torch.randn(64, 4)
    with record(model) as recording:
        for _ in range(4):
            x = torch.randn(64, 4).to(sim)
            model(x + table.to(sim)).sum().backward()
    found = only("repeated-copy", recording.graph)
    assert found.message.startswith("table was copied from cpu to sim:0 4 times")


def test_an_activation_that_visits_the_cpu_is_a_round_trip(sim: torch.device) -> None:
    class Visit(MLP):
        def forward(self, x: Tensor) -> Tensor:
            h = self.fc1(x)
            h = h.cpu().relu().to(x.device)
            return self.fc2(h)

    graph = trained(Visit().to(sim), torch.randn(64, 4).to(sim))
    found = only("round-trip", graph)
    assert found.severity == "warning"
    assert found.message.startswith("h went from sim:0 to cpu at ")
    assert "1 node in between" in found.message
    assert only("copy-in-backward", graph).severity == "info"


def test_a_parameter_left_on_the_cpu_is_copied_in_every_step(sim: torch.device) -> None:
    class Left(MLP):
        def forward(self, x: Tensor) -> Tensor:
            return x.to(sim) @ self.fc1.weight.to(sim).t()

    found = only("copy-in-backward", trained(Left(), torch.randn(64, 4)))
    assert found.severity == "warning"
    assert found.message.startswith("fc1.weight: 1 copy between devices inside the graph (128 B)")


def test_rows_copied_one_by_one_are_many_tiny_copies(sim: torch.device) -> None:
    model = MLP().to(sim)
    with record(model) as recording:
        rows = [torch.randn(4).to(sim) for _ in range(32)]
        model(torch.stack(rows)).sum().backward()
    found = only("tiny-copies", recording.graph)
    assert found.message.startswith("32 copies cpu to sim:0 in a row")
    assert found.severity == "warning"


def test_the_tiny_batch_of_each_of_many_steps_is_not_many_tiny_copies(sim: torch.device) -> None:
    model = MLP().to(sim)
    with record(model) as recording:
        for _ in range(32):
            model(torch.randn(4).to(sim))
        for _ in range(32):
            (model.fc1.weight * torch.randn(4).to(sim)).sum().backward()
    assert not [f for f in find(recording.graph) if f.rule == "tiny-copies"]


def test_pieces_that_one_backward_came_by_are_tiny_copies_of_one_step(sim: torch.device) -> None:
    model = nn.Linear(4, 4)
    with record(model) as recording:
        rows = [row.to(sim) for row in model(torch.randn(32, 4))]
        torch.stack(rows).sum().backward()
    assert only("tiny-copies", recording.graph).severity == "warning"


@pytest.mark.parametrize("pinned", [False, True])
def test_a_large_batch_should_come_from_pinned_memory(sim: torch.device, pinned: bool) -> None:
    model = MLP().to(sim)
    with record(model) as recording:
        for _ in range(3):
            batch = torch.randn(100_000, 4)
            batch = batch.pin_memory() if pinned else batch
            model(batch.to(sim, non_blocking=True)).sum().backward()
    found = [f.severity for f in find(recording.graph) if f.rule == "pageable-copy"]
    assert found == ([] if pinned else ["warning"])


def test_a_number_read_in_a_forward_is_a_warning_and_in_a_loop_a_note(sim: torch.device) -> None:
    class Reads(MLP):
        def forward(self, x: Tensor) -> Tensor:
            h = self.fc1(x)
            return self.fc2(h / h.abs().max().item())

    model = Reads().to(sim)
    losses = []
    with record(model) as recording:
        for _ in range(4):
            loss = model(torch.randn(64, 4).to(sim)).sum()
            loss.backward()
            losses.append(loss.item())
    found = {f.severity: f for f in find(recording.graph) if f.rule == "blocking-read"}
    assert set(found) == {"warning", "info"}
    assert "in the forward of the model" in found["warning"].message
    assert found["info"].message.startswith("loss is read with item() in a loop at ")


# Devices.


def test_mixed_devices_are_explained_and_the_error_passes_unchanged(sim: torch.device) -> None:
    model = MLP().to(sim)
    recording = record(model)

    def train() -> None:
        with recording:
            x = torch.randn(64, 4)
            model(x)

    with pytest.raises(RuntimeError, match="same device") as raised:
        train()
    found = only("mixed-devices", recording.graph)
    assert recording.graph.failure is not None
    assert recording.graph.failure.message == str(raised.value)
    assert " on cpu" in found.message
    assert "fc1.weight on sim:0" in found.message


def test_shapes_that_do_not_fit_are_explained_with_what_was_given() -> None:
    recording = record(MLP())
    with pytest.raises(RuntimeError), recording:
        MLP()(torch.randn(3, 5))
    assert "f32[3, 5] cpu" in only("failed", recording.graph).message


# Memory and dtype.


def test_what_keeps_most_is_named_by_module() -> None:
    model = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 2))
    found = only("most-memory", trained(model, torch.randn(2048, 64)))
    assert found.severity == "info"
    assert "most of it in module 1 (gelu, " in found.message  # GELU keeps its input, 4 MiB
    # Under a checkpoint a layer that saves its own input alone would keep as much.
    assert "run several layers around module 1 together under" in found.advice


def test_the_block_around_what_keeps_most_is_what_to_checkpoint() -> None:
    block = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 2))
    found = only("most-memory", trained(nn.ModuleList([block])[0], torch.randn(2048, 64)))
    assert "module 1" in found.message
    model = nn.Sequential(nn.Sequential(nn.Linear(64, 64), block), nn.Tanh())
    found = only("most-memory", trained(model, torch.randn(2048, 64)))
    assert "most of it in 0.1.1 (gelu, " in found.message
    assert found.advice == "To trade time for memory, run 0.1 under torch.utils.checkpoint."


def test_a_batch_norm_is_not_to_be_run_twice() -> None:
    block = nn.Sequential(nn.Linear(64, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, 2))
    found = only("most-memory", trained(nn.Sequential(block), torch.randn(2048, 64)))
    assert found.advice.startswith("Use a smaller batch, or torch.utils.checkpoint around a part ")
    assert "without BatchNorm" in found.advice


def test_an_array_from_numpy_makes_float64_creep_in() -> None:
    scale = torch.from_numpy(np.ones(2))
    graph = trained(MLP(), torch.randn(64, 4), loss=lambda h: (h * scale).sum())
    found = only("float64-crept-in", graph)
    assert found.severity == "warning"
    assert found.where.startswith("test_findings_live.py:")
    assert serious(trained(MLP().double(), torch.randn(64, 4, dtype=torch.float64))) == []


def test_a_slice_that_keeps_its_storage_alive_is_found_and_a_clone_is_not() -> None:
    class Sliced(nn.Module):
        def __init__(self, clone: bool) -> None:
            super().__init__()
            self.fc, self.clone = nn.Linear(64, 64), clone

        def forward(self, x: Tensor) -> Tensor:
            row = (x + 1)[:4]
            return self.fc(row.clone() if self.clone else row)

    x = torch.randn(20_000, 64)
    assert only("view-keeps-storage", trained(Sliced(False), x)).severity == "warning"
    assert serious(trained(Sliced(True), x)) == []


def test_a_gradient_left_from_before_the_recording_hides_no_finding() -> None:
    model = Cutting(lambda x: x)
    model.never = nn.Linear(4, 4)
    model.never.weight.grad = torch.ones(4, 4)
    model(torch.randn(8, 4)).sum().backward()
    model.cut = lambda x: x.detach()
    with record(model) as recording:
        model(torch.randn(8, 4)).sum().backward()
    assert model.body.weight.grad is not None
    assert only("cut-gradient", recording.graph).message.startswith("body.weight and body.bias")
    assert "never.weight" in only("never-called", recording.graph).message


def test_an_operand_on_another_device_is_named_and_told_how_to_move() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)
            self.pos = torch.ones(4)  # no buffer: to() leaves it where it is

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(x) + self.pos

    def failed(run: Callable[[], Tensor]) -> Finding:
        recording = record(model)
        with pytest.raises(RuntimeError), recording:
            run()
        return only("mixed-devices", recording.graph)

    with simulate_accelerator() as [device]:
        model = Model().to(device)
        batch = {"y": torch.ones(2, 4)}
        attribute = failed(lambda: model(torch.ones(2, 4, device=device)))
        assert "self.pos on cpu" in attribute.message
        assert 'self.register_buffer("pos", ...)' in attribute.advice
        item = failed(lambda: model.fc(torch.ones(2, 4, device=device)) - batch["y"])
        assert "batch['y'] on cpu" in item.message
        assert """batch['y'] = batch['y'].to("sim:0")""" in item.advice
