"""Findings on gradient paths, on recordings of models with common mistakes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from graphviz_torch import find, record
from tests.support.models import MLP
from tests.support.recorded import only, serious, trained

pytestmark = pytest.mark.usefixtures("the_same_numbers")


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
    "detach_": (lambda x: x.detach_(), "detach_()"),
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
    assert found.where.startswith("test_paths.py:")


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
        "body.weight and body.bias got no gradient: Doubled at test_paths.py:"
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
        f"body.weight and body.bias got a gradient of zeros only: {step.__name__} at test_paths.py:"
    )
    assert serious(trained(Cutting(through), torch.randn(64, 4))) == []


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


class Both(nn.Module):
    """a runs, and its result is forgotten; b gives the output."""

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
    assert "a.weight" in only("unused-result", recording.graph).message
    assert [f.rule for f in find(recording.graph)] == ["unused-result"]


def test_a_draw_and_its_checks_do_not_hide_a_detach() -> None:
    actor, critic = nn.Linear(4, 3), nn.Linear(4, 1)
    with record(nn.ModuleDict({"actor": actor, "critic": critic})) as recording:
        x = torch.randn(8, 4)
        policy = torch.distributions.Categorical(logits=actor(x))
        chosen = policy.log_prob(policy.sample())
        (critic(x).squeeze() - chosen.detach()).mean().backward()
    found = only("cut-gradient", recording.graph)
    assert found.message.startswith(
        "actor.weight and actor.bias got no gradient: chosen was cut by detach()"
    )


def test_of_two_cuts_on_the_way_the_one_next_to_the_loss_is_named() -> None:
    cell, head = nn.RNNCell(4, 4), nn.Linear(4, 4)
    state, extra = torch.zeros(2, 4), nn.Parameter(torch.ones(4))
    with record(nn.ModuleDict({"cell": cell, "head": head})) as recording:
        for _ in range(2):
            state = state.detach()  # as it should be
            state = cell(torch.randn(2, 4), state)
            logits = head(state)
            (logits.detach() * extra).sum().backward()
    found = only("cut-gradient", recording.graph)
    assert "logits was cut by detach()" in found.message
    assert "cell.weight_ih" in found.message


def test_a_number_that_was_logged_is_not_blamed_for_a_cut_by_numpy() -> None:
    encoder, head = nn.Linear(4, 4), nn.Linear(4, 4)
    with record(nn.ModuleDict({"encoder": encoder, "head": head})) as recording:
        z = encoder(torch.randn(8, 4))
        z.detach().abs().mean().item()
        head(torch.from_numpy(z.detach().numpy().copy())).sum().backward()
    assert only("cut-gradient", recording.graph).cause == "cut by numpy()"


def test_indices_without_their_values_are_told_as_that() -> None:
    gate, expert = nn.Linear(4, 2), nn.Linear(4, 4)
    with record(nn.ModuleDict({"gate": gate, "expert": expert})) as recording:
        x = torch.randn(8, 4)
        _, index = gate(x).topk(1)
        (expert(x) * index).sum().backward()
    found = only("cut-gradient", recording.graph)
    assert found.severity == "warning"
    assert found.advice.startswith("Only the indices of topk() are used at test_paths.py:")


def test_a_frozen_teacher_is_not_told_to_learn() -> None:
    teacher, student = nn.Linear(4, 4), nn.Linear(4, 4)
    with record(nn.ModuleDict({"teacher": teacher, "student": student})) as recording:
        x = torch.randn(8, 4)
        with torch.no_grad():
            target = teacher(x)
        (student(x) - target).square().mean().backward()
    found = only("cut-gradient", recording.graph)
    assert found.severity == "info"
    assert found.advice == "Nothing, if it is meant: requires_grad_(False) says so."


@pytest.mark.filterwarnings("ignore:.*global hooks.*")
def test_what_a_compiled_region_does_not_use_is_told_as_that() -> None:
    model = Both()
    model.spare = nn.Linear(4, 4)
    compiled = torch.compile(model, backend="aot_eager")
    with record(compiled) as recording:
        compiled(torch.randn(8, 4)).sum().backward()
    spare = only("unused-result", recording.graph)
    assert "spare.weight and spare.bias got no gradient: what torch.compile made" in spare.message
    forgotten = only("dropped-gradient", recording.graph)
    assert forgotten.message.startswith("a.weight and a.bias got no gradient: compiled at ")
    assert forgotten.severity == "warning"
    assert forgotten.advice.endswith("record the model uncompiled to learn where.")


def test_a_plain_leaf_that_was_cut_off_is_told_though_no_module_is_there() -> None:
    w, b = torch.randn(3, requires_grad=True), torch.zeros(3, requires_grad=True)
    with record() as recording:
        h = torch.randn(5, 3) * w
        (h.detach() + b).sum().backward()
    assert [(p.name, p.got_gradient) for p in recording.graph.parameters] == [("w", False)]
    found = only("cut-gradient", recording.graph)
    assert found.message.startswith("w got no gradient: h was cut by detach() at ")


def test_a_plain_leaf_that_another_backward_reached_is_not_lost() -> None:
    w, b = torch.randn(3, requires_grad=True), torch.zeros(3, requires_grad=True)
    with record() as recording:
        (w.detach() * b).sum().backward()
        (w * b.detach()).sum().backward()
    assert not [f for graph in recording.graphs for f in find(graph) if f.severity != "info"]


def test_a_loop_that_updates_plain_leaves_has_no_parameters_and_no_findings() -> None:
    w, x = torch.randn(3, requires_grad=True), torch.randn(5, 3)
    losses = []
    with record() as recording:
        for _ in range(3):
            loss = (x @ w).square().mean()
            loss.backward()
            losses.append(loss.item())
            with torch.no_grad():
                w -= 0.1 * w.grad
                w.grad = None
    for graph in recording.graphs:
        assert graph.parameters == ()
        assert not [f for f in find(graph) if f.severity != "info"]


def test_what_an_optimizer_holds_that_does_not_step_in_the_block_is_in_an_optimizer() -> None:
    actor, critic, spare = nn.Linear(3, 2), nn.Linear(2, 1), nn.Linear(1, 1)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (actor, critic)]
    with record() as recording:
        spare(critic(actor(torch.ones(4, 3)))).mean().backward()
        optimizers[0].step()
    found = only("not-in-optimizer", recording.graph)
    file, _, line = found.where.rpartition(":")
    used = f"{file}:{int(line) - 1}"  # the line before the step
    assert found.message == (
        f"spare.weight and spare.bias got a gradient at {used}, but no optimizer holds them: SGD, "
        f"which steps at {found.where}, does not."
    )


def test_an_accuracy_that_cuts_is_not_why_a_part_that_the_loss_leaves_out_got_no_gradient() -> None:
    trunk, head = nn.Linear(4, 4), nn.Linear(4, 3)
    model = nn.ModuleDict({"trunk": trunk, "head": head})
    with record(model) as recording:
        h = trunk(torch.randn(5, 4))
        hits = head(h).argmax(1).float().mean()
        h.square().mean().backward()
    assert 0 <= hits <= 2
    said = [found.message for found in find(recording.graph)]
    assert not [message for message in said if "argmax" in message]


def test_a_parameter_of_the_callers_own_goes_by_the_name_of_its_variable() -> None:
    model, other = nn.Linear(4, 4), nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        other(model(torch.randn(5, 4))).mean().backward()
        optimizer.step()
    (message,) = [f.message for f in find(recording.graph) if "no optimizer" in f.message]
    assert message.endswith("other is not in the model.")


@pytest.mark.filterwarnings("ignore:Detected call of")
def test_an_optimizer_that_a_scheduler_did_not_wait_for_goes_by_its_variables_name() -> None:
    layer = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    with record(layer) as recording:
        layer(torch.randn(8, 4)).square().mean().backward()
        schedule.step()
        optimizer.step()
    found = only("scheduler-stepped-first", recording.graph)
    assert "ran before optimizer had stepped once" in found.message
