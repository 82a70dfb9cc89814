"""Trainings in which no parameter changes: zero gradients, undone steps, unused forwards."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.optim import SGD

from tests.findings.corpus.cases import Record, step
from tests.findings.mistakes.rows import says, silent
from tests.support.models import MLP


@says("all-gradients-zero", "mul at {cause} received a gradient", "its other factor is zero")
def outputs_scaled_by_zero(record: Record) -> None:
    model, scale = MLP(), torch.zeros(64, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for _ in range(2):
            out = model(torch.randn(64, 4)) * scale  # cause
            step(optimizer, (out - 1).square().mean())


@says("all-gradients-zero", "its input is empty (f32[0, 2] cpu)")
def loss_of_no_row(record: Record) -> None:
    model = MLP()
    with record(model):
        out = model(torch.randn(64, 4))
        out[64:].sum().backward()  # cause


@says("all-gradients-zero", "the gradients of the 2 uses of its input add up to zero")
def difference_of_a_value_and_itself(record: Record) -> None:
    model = MLP()
    with record(model):
        out = model(torch.randn(64, 4))
        (out - out).sum().backward()  # cause


@says("all-gradients-zero", "the gradients of the 2 uses of its input add up to zero")
def two_uses_that_pass_zeros(record: Record) -> None:
    model = MLP()
    with record(model):
        out = model(torch.randn(64, 4))
        masked, clamped = (out * 0).sum(), out.clamp(100, 200).sum()  # cause
        (masked + clamped).backward()


@says(
    "all-gradients-zero",
    "at {first} and at {cause}",
    "gradients cancel",
    cause="two gradients cancel",
)
def reference_that_is_the_policy(record: Record) -> None:
    policy = reference = MLP()
    optimizer = SGD(policy.parameters(), lr=0.1)
    chosen, rejected = torch.randn(64, 4), torch.randn(64, 4)
    with record(policy):
        for _ in range(2):
            margin = policy(chosen) - policy(rejected)  # first
            other = reference(chosen) - reference(rejected)  # cause
            step(optimizer, -F.logsigmoid((margin - other).exp()).mean())


@silent()
def reference_that_is_frozen(record: Record) -> None:
    policy, reference = MLP(), MLP()
    chosen, rejected = torch.randn(64, 4), torch.randn(64, 4)
    with record(policy):
        with torch.no_grad():
            other = reference(chosen) - reference(rejected)
        margin = policy(chosen) - policy(rejected)
        step(SGD(policy.parameters(), lr=0.1), -F.logsigmoid(margin - other).mean())


@silent("all-gradients-zero", "stalled-training", "constant-loss")
def margin_that_every_sample_of_some_steps_keeps(record: Record) -> None:
    model = nn.Linear(4, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for i in range(6):
            margin = 1.0 if i == 3 else -100.0
            step(optimizer, (margin + model(torch.randn(64, 4))).clamp(min=0).mean())


@silent("all-gradients-zero", "discarded-forward")
def one_batch_twice_with_dropout(record: Record) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5))
    x = torch.randn(64, 4)
    with record(model):
        first, second = model(x), model(x)
        (first - second).square().mean().backward()


@says(
    "stalled-training",
    "3 optimizer steps were undone: after each step, copy_ at {cause}",
    cause="a step is undone",
)
def weights_rounded_back(record: Record) -> None:
    model, x = nn.Linear(4, 1), torch.randn(64, 4)
    optimizer = SGD(model.parameters(), lr=1e-3)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_((p * 4).round() / 4)
    with record(model):
        for _ in range(4):
            step(optimizer, model(x).square().mean())
            with torch.no_grad():
                for p in model.parameters():
                    p.copy_((p * 4).round() / 4)  # cause


@says("stalled-training", "3 optimizer steps changed no parameter", severity="warning")
def optimizer_that_does_not_write(record: Record) -> None:
    class Planned(SGD):
        def step(self, closure: object = None) -> None:  # type: ignore[override]
            """Step, some day."""

    model, x = nn.Linear(4, 1), torch.randn(64, 4)
    optimizer = Planned(model.parameters(), lr=0.1)
    with record(model):
        for _ in range(4):
            optimizer.zero_grad()
            model(x).square().mean().backward()  # cause
            optimizer.step()


@silent("stalled-training")
def weights_clipped_after_each_step(record: Record) -> None:
    model, x = nn.Linear(4, 1), torch.randn(64, 4)
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for _ in range(4):
            step(optimizer, model(x).square().mean())
            with torch.no_grad():
                for p in model.parameters():
                    p.clamp_(-1, 1)


@silent("stalled-training")
def one_head_of_several_learns(record: Record) -> None:
    model = nn.ModuleList([nn.Linear(4, 1) for _ in range(40)])
    optimizer = SGD(model[7].parameters(), lr=0.1)
    x = torch.randn(64, 4)
    with record(model):
        for _ in range(4):
            step(optimizer, torch.stack([head(x) for head in model]).square().mean())


@says("constant-loss", "The loss was 1 at each of 4 backwards", severity="info")
def surrogate_with_one_value(record: Record) -> None:
    model = nn.Linear(4, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for _ in range(4):
            out = model(torch.randn(64, 4)).mean()
            loss = out - out.detach() + 1
            optimizer.zero_grad()
            loss.backward()  # cause
            optimizer.step()


@says("no-backward", "No backward ran", "optimizer steps at", severity="warning")
def steps_without_a_backward(record: Record) -> None:
    model = nn.Linear(4, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for _ in range(4):
            loss = model(torch.randn(64, 4)).square().mean()  # cause
            optimizer.step()
        assert loss.requires_grad


@says("no-backward", "No backward ran", severity="info")
def forwards_alone(record: Record) -> None:
    model = nn.Linear(4, 1)
    with record(model):
        outs = [model(torch.randn(64, 4)) for _ in range(4)]
        assert len(outs) == 4


@says("discarded-forward", "ran at {cause} with gradients ", "its result was dropped")
def loss_that_is_assigned_again(record: Record) -> None:
    model = MLP()
    optimizer = SGD(model.parameters(), lr=0.1)

    def loss_of(x: Tensor) -> Tensor:
        return model(x).square().mean()

    with record(model):
        for _ in range(3):
            loss = -loss_of(torch.randn(64, 4))  # cause
            loss = loss_of(torch.randn(64, 4))
            step(optimizer, loss)


@says("discarded-forward", "ran at {cause} with gradients ", severity="info")
def validation_with_a_graph(record: Record) -> None:
    model = MLP()
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for _ in range(3):
            step(optimizer, model(torch.randn(64, 4)).square().mean())
            model(torch.randn(64, 4)).square().mean().item()  # cause


@says("discarded-forward", "ran at {cause} with gradients ", severity="info")
def pseudo_labels_that_are_detached_after_another_forward(record: Record) -> None:
    model = MLP()
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for _ in range(3):
            x = torch.randn(64, 4)
            weak = model(x)  # cause
            strong = model(x + 0.1 * torch.randn(64, 4))
            step(optimizer, (strong - weak.detach()).square().mean())
            del weak


@silent("discarded-forward")
def batches_skipped_by_chance(record: Record) -> None:
    model = MLP()
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for i in range(8):
            loss = model(torch.randn(64, 4)).square().mean()
            if i % 4 == 0:
                step(optimizer, loss)


@silent("discarded-forward")
def rollout_that_a_later_backward_runs_through(record: Record) -> None:
    model = MLP()
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for _ in range(3):
            losses = [model(torch.randn(64, 4)).square().mean() for _ in range(5)]
            step(optimizer, torch.stack(losses).mean())


@silent("discarded-forward")
def one_of_two_heads_is_dropped(record: Record) -> None:
    body, first, second = MLP(4, 8, 8), nn.Linear(8, 1), nn.Linear(8, 1)
    optimizer = SGD([*body.parameters(), *first.parameters(), *second.parameters()], lr=0.1)

    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        features = body(x)
        return first(features), second(features)

    with record():
        for _ in range(3):
            out, _ = both(torch.randn(64, 4))
            step(optimizer, out.square().mean())
            _, out = both(torch.randn(64, 4))
            step(optimizer, out.square().mean())


def adapted(record: Record, *, loaded: bool) -> None:
    """Two steps that learn from what a gradient step of the model gives."""
    model = nn.Linear(4, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    kept = {name: p.detach().clone() for name, p in model.named_parameters()}
    with record(model):
        for _ in range(2):
            loss = model(torch.randn(8, 4)).square().mean()
            grads = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
            pairs = zip(model.named_parameters(), grads, strict=True)
            fast = {name: p - 0.1 * grad for (name, p), grad in pairs}
            if loaded:
                model.load_state_dict(fast)  # cause
                out = model(torch.randn(8, 4))
            else:
                out = functional_call(model, fast, (torch.randn(8, 4),))
            step(optimizer, out.square().mean())
            model.load_state_dict(kept)


@silent("unneeded-retain-graph")
def weights_adapted_with_their_history(record: Record) -> None:
    adapted(record, loaded=False)


@says(
    "unneeded-retain-graph",
    "load_state_dict at ",
    "copies values without their history",
    severity="warning",
    advice="torch.func.functional_call",
)
def weights_adapted_and_loaded_as_values(record: Record) -> None:
    adapted(record, loaded=True)


@says(
    "all-gradients-zero",
    "All gradients are below 1e-12: mul at ",
    "passed at most ",
    "because its other factor is almost zero",
)
def loss_with_a_tiny_factor(record: Record) -> None:
    model = nn.Linear(4, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for _ in range(3):
            step(optimizer, 1e-30 * model(torch.randn(64, 4)).mean())


@silent("stalled-training")
def gradients_of_four_backwards_for_a_step(record: Record) -> None:
    model = nn.Linear(4, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for _ in range(4):
            (model(torch.randn(64, 4)).square().mean() / 4).backward()
        optimizer.step()


def losses_in_a_loop(record: Record, use: Callable[[list[Tensor]], Tensor]) -> None:
    model = nn.Linear(6, 3)
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for _ in range(3):
            losses = []
            for _ in range(4):
                losses.append(model(torch.randn(8, 6)).square().mean())
                losses = [use(losses)]
            step(optimizer, losses[0])


@says("discarded-forward", "In each of 3 steps, the model ran repeatedly at {cause}", "9 in all")
def loss_that_is_overwritten_in_a_loop(record: Record) -> None:
    model = nn.Linear(6, 3)
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for _ in range(3):
            for _ in range(4):
                loss = model(torch.randn(8, 6)).square().mean()  # cause
            step(optimizer, loss)


@silent("discarded-forward")
def losses_that_are_added_up_in_a_loop(record: Record) -> None:
    losses_in_a_loop(record, sum)


@silent("discarded-forward")
def the_largest_loss_of_a_loop(record: Record) -> None:
    losses_in_a_loop(record, lambda losses: max(losses, key=float))


@silent("discarded-forward")
def the_last_output_of_a_loop_with_a_state(record: Record) -> None:
    model, cell = nn.Linear(6, 6), nn.Linear(6, 6)
    optimizer = SGD([*model.parameters(), *cell.parameters()], lr=0.1)
    with record(nn.ModuleList([model, cell])):
        for _ in range(3):
            state = torch.zeros(8, 6)
            for _ in range(4):
                state = cell(state) + model(torch.randn(8, 6))
            step(optimizer, state.square().mean())
