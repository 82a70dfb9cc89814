"""Parameters that no gradient reaches, and optimizers that hold other parameters."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR

from tests.findings.corpus.cases import Record
from tests.findings.mistakes.rows import NO_GRAD, says, silent
from tests.support.models import MLP


@says(
    "cut-gradient",
    "got no gradient: encoder ran under torch.no_grad() at",
    severity="warning",
    cause="cut by torch.no_grad()",
)
def encoder_that_should_learn_under_no_grad(record: Record) -> None:
    model = nn.ModuleDict({"encoder": nn.Linear(4, 4), "head": nn.Linear(4, 2)})
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        with torch.no_grad():
            features = model["encoder"](torch.randn(64, 4))  # cause
        model["head"](features).sum().backward()
        optimizer.step()


@says("cut-gradient", "the model ran under torch.no_grad() at ", raises=NO_GRAD, severity="error")
def model_under_no_grad(record: Record) -> None:
    model = nn.Linear(4, 2)
    with record(model):
        with torch.no_grad():
            out = model(torch.randn(64, 4))  # cause
        out.sum().backward()


@says(
    "cut-gradient",
    "the model ran under torch.set_grad_enabled(False) at ",
    raises=NO_GRAD,
    severity="error",
    advice="with torch.no_grad(): at {cause}",
)
def gradients_switched_off_for_good(record: Record) -> None:
    model = nn.Linear(4, 2)

    def preview(x: Tensor) -> float:
        torch.set_grad_enabled(False)  # cause
        return model(x).mean().item()

    try:
        with record(model):
            preview(torch.randn(64, 4))
            model(torch.randn(64, 4)).sum().backward()
    finally:
        torch.set_grad_enabled(True)


@says("cut-gradient", "target.fc1.weight, ", cause="cut by detach()")
def target_behind_a_detach_beside_an_argmax(record: Record) -> None:
    model = nn.ModuleDict({"online": MLP(4, 64, 2), "target": MLP(4, 64, 2)})
    online, target = model["online"], model["target"]
    with record(model):
        states = torch.randn(64, 4)
        actions = online(states).argmax(1)
        best = target(torch.randn(64, 4)).max(1)[0]
        best = best.detach()  # cause
        values = online(states).gather(1, actions[:, None]).squeeze(1)
        (values - best).pow(2).mean().backward()


@silent()
def metric_beside_the_loss(record: Record) -> None:
    model, target = MLP(), torch.zeros(64, dtype=torch.long)
    with record(model):
        logits = model(torch.randn(64, 4))
        (logits.argmax(1) == target).float().mean().item()
        logits.detach().numpy()
        F.cross_entropy(logits, target).backward()


@says("output-not-in-loss", "unused.weight and unused.bias got no gradient: unused ran")
def result_that_the_loss_does_not_use(record: Record) -> None:
    model = nn.ModuleDict({"used": nn.Linear(4, 2), "unused": nn.Linear(4, 2)})
    with record(model):
        x = torch.randn(64, 4)
        model["unused"](x)
        model["used"](x).sum().backward()


@says("frozen", severity="info")
@silent()
def frozen_parameters(record: Record) -> None:
    model = MLP()
    model.fc1.requires_grad_(False)
    with record(model):
        model(torch.randn(64, 4)).sum().backward()


class Doubled(torch.autograd.Function):
    """y = 2 x, with a backward that forgets to return."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> None:
        return None


@says(
    "backward-returned-none", "0.weight and 0.bias got no gradient: Doubled at ", severity="error"
)
def function_whose_backward_returns_none(record: Record) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    with record(model):
        model[1](Doubled.apply(model[0](torch.randn(64, 4)))).sum().backward()  # cause


@says("cut-gradient", "actor.weight and actor.bias got no gradient: chosen was cut by detach() at ")
def detach_behind_a_draw_and_its_checks(record: Record) -> None:
    actor, critic = nn.Linear(4, 3), nn.Linear(4, 1)
    with record(nn.ModuleDict({"actor": actor, "critic": critic})):
        x = torch.randn(8, 4)
        policy = torch.distributions.Categorical(logits=actor(x))
        chosen = policy.log_prob(policy.sample())
        (critic(x).squeeze() - chosen.detach()).mean().backward()  # cause


@says("cut-gradient", "logits was cut by detach()", "cell.weight_ih")
def two_cuts_the_second_next_to_the_loss(record: Record) -> None:
    cell, head = nn.RNNCell(4, 4), nn.Linear(4, 4)
    state, extra = torch.zeros(2, 4), nn.Parameter(torch.ones(4))
    with record(nn.ModuleDict({"cell": cell, "head": head})):
        for _ in range(2):
            state = state.detach()
            state = cell(torch.randn(2, 4), state)
            logits = head(state)
            (logits.detach() * extra).sum().backward()  # cause


@says("cut-gradient", cause="cut by numpy()")
def way_through_numpy_beside_a_logged_number(record: Record) -> None:
    encoder, head = nn.Linear(4, 4), nn.Linear(4, 4)
    with record(nn.ModuleDict({"encoder": encoder, "head": head})):
        z = encoder(torch.randn(8, 4))
        z.detach().abs().mean().item()
        head(torch.from_numpy(z.detach().numpy().copy())).sum().backward()


@says("cut-gradient", severity="warning", advice="Use the values of topk() at {cause}, too")
def indices_without_their_values(record: Record) -> None:
    gate, expert = nn.Linear(4, 2), nn.Linear(4, 4)
    with record(nn.ModuleDict({"gate": gate, "expert": expert})):
        x = torch.randn(8, 4)
        _, index = gate(x).topk(1)  # cause
        (expert(x) * index).sum().backward()


@says("cut-gradient", severity="info")
def teacher_inside_the_model(record: Record) -> None:
    teacher, student = nn.Linear(4, 4), nn.Linear(4, 4)
    with record(nn.ModuleDict({"teacher": teacher, "student": student})):
        x = torch.randn(8, 4)
        with torch.no_grad():
            target = teacher(x)
        (student(x) - target).square().mean().backward()


@says("cut-gradient", "w got no gradient: h was cut by detach() at ")
def plain_leaf_that_was_cut_off(record: Record) -> None:
    w, b = torch.randn(3, requires_grad=True), torch.zeros(3, requires_grad=True)
    with record():
        h = torch.randn(5, 3) * w
        (h.detach() + b).sum().backward()  # cause


@silent()
def plain_leaf_that_another_backward_reached(record: Record) -> None:
    w, b = torch.randn(3, requires_grad=True), torch.zeros(3, requires_grad=True)
    with record():
        (w.detach() * b).sum().backward()
        (w * b.detach()).sum().backward()


@says(
    "not-in-optimizer",
    "No optimizer updates spare.weight and spare.bias, which got a gradient at ",
)
def layer_that_no_optimizer_holds_beside_one_that_does_not_step(record: Record) -> None:
    actor, critic, spare = nn.Linear(3, 2), nn.Linear(2, 1), nn.Linear(1, 1)
    optimizers = [SGD(m.parameters(), lr=0.1) for m in (actor, critic)]
    with record():
        spare(critic(actor(torch.ones(4, 3)))).mean().backward()
        optimizers[0].step()  # cause


@says(
    "not-in-optimizer",
    "No optimizer updates old.0.weight, ",
    "was not given them.",
    advice="If they are part of a copy, such as a target network or a teacher, run the copy "
    "under torch.no_grad(). Otherwise pass them to an optimizer.",
)
def copy_that_is_computed_with_gradients(record: Record) -> None:
    now, old = (nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3)) for _ in range(2))
    optimizer = SGD(now.parameters(), lr=0.1)
    with record(nn.ModuleDict({"now": now, "old": old})):
        x = torch.randn(8, 4)
        F.cross_entropy(now(x) - 0.1 * old(x), torch.arange(8) % 3).backward()
        optimizer.step()  # cause


@says("not-registered", "other is not in the model.")
def parameter_of_the_callers_own(record: Record) -> None:
    model, other = nn.Linear(4, 4), nn.Linear(4, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        other(model(torch.randn(5, 4))).mean().backward()
        optimizer.step()


@says(
    "not-registered",
    "No optimizer holds scale, which got a gradient at {cause}.",
    advice="Pass scale to an optimizer if it should learn.",
)
def parameter_that_is_a_variable(record: Record) -> None:
    model, scale = nn.Linear(4, 4), nn.Parameter(torch.ones(()))
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        (scale * model(torch.randn(5, 4))).mean().backward()  # cause
        optimizer.step()


@silent("not-registered")
def parameter_that_gets_no_gradient(record: Record) -> None:
    """Of two backwards neither adds to its gradient."""
    model, scale = nn.Linear(4, 4), nn.Parameter(torch.ones(()))
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        (scale * model(torch.randn(5, 4))).mean().backward(inputs=[*model.parameters()])
        torch.autograd.grad((scale * model(torch.randn(5, 4))).mean(), [*model.parameters()])
        optimizer.step()


@silent()
def term_of_the_loss_that_is_a_parameter(record: Record) -> None:
    model = nn.Linear(4, 1)
    model.log_variance = nn.Parameter(torch.zeros(()))
    with record(model):
        error = model(torch.randn(8, 4)).square().mean()
        (error * torch.exp(-model.log_variance)).backward()
        model.log_variance.backward()


@says(
    "output-not-in-loss", "out.weight and out.bias got no gradient: out ran, but the loss does not"
)
def straight_through_beside_the_loss(record: Record) -> None:
    """What is cut for the result that nobody uses cut nothing of the loss."""
    into, out = nn.Linear(4, 4), nn.Linear(4, 4)
    with record(nn.ModuleDict({"into": into, "out": out})):
        x = into(torch.randn(3, 4))
        signs = torch.where(x > 0, 1.0, -1.0)
        out(x + (signs - x).detach())
        (x.softmax(-1) * x).sum().backward()


@silent()
def codes_of_data_that_does_not_learn(record: Record) -> None:
    codes, x = nn.Parameter(torch.randn(8, 4)), torch.randn(5, 4)
    with record():
        chosen = codes[torch.cdist(x, codes).argmin(1)]
        loss = F.mse_loss(x.detach(), chosen) + 0.25 * F.mse_loss(x, chosen.detach())
        loss.backward()


@says(
    "output-not-in-loss",
    "head.weight and head.bias got no gradient: head ran, but the loss does not",
)
@silent("cut-gradient")
def accuracy_of_a_part_that_the_loss_leaves_out(record: Record) -> None:
    trunk, head = nn.Linear(4, 4), nn.Linear(4, 3)
    with record(nn.ModuleDict({"trunk": trunk, "head": head})):
        h = trunk(torch.randn(5, 4))
        head(h).argmax(1).float().mean()
        h.square().mean().backward()


class Embeddings(nn.Module):
    """An embedding with a token for masked positions, as in DINOv2; nothing is masked here."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.mask_token = nn.Parameter(torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


@says("output-not-in-loss", "mask_token got no gradient: the loss depends on the rest of embed")
@silent("cut-gradient")
def token_that_is_not_used_beside_a_choice(record: Record) -> None:
    embed, score, head = Embeddings(), nn.Linear(4, 1), nn.Linear(4, 1)
    with record(nn.ModuleDict({"embed": embed, "score": score, "head": head})):
        h = embed(torch.randn(6, 4))
        best = score(h).squeeze(-1).topk(2).indices
        (head(h[best]).square().mean() + score(h[best]).square().mean()).backward()


@says("output-not-in-loss", "modules in heads ran, but the loss does not depend on their results")
def list_of_modules_that_the_loss_leaves_out(record: Record) -> None:
    trunk, heads = nn.Linear(4, 4), nn.ModuleList([nn.Linear(4, 3), nn.Linear(4, 3)])
    with record(nn.ModuleDict({"trunk": trunk, "heads": heads})):
        h = trunk(torch.randn(5, 4))
        assert all(head(h).shape == (5, 3) for head in heads)
        h.square().mean().backward()


@says("scheduler-out-of-step", "was called before the first step of optimizer")
def scheduler_that_does_not_wait_for_an_optimizer_with_a_name(record: Record) -> None:
    layer = nn.Linear(4, 1)
    optimizer = SGD(layer.parameters(), lr=0.1)
    schedule = StepLR(optimizer, 1)
    with record(layer):
        layer(torch.randn(8, 4)).square().mean().backward()
        schedule.step()  # cause
        optimizer.step()


@silent("data-assignment")
def input_that_is_moved_by_hand(record: Record) -> None:
    """As an attack does: what it is moved to was computed from itself."""
    model, delta = nn.Linear(4, 3), torch.zeros(5, 4, requires_grad=True)
    with record(model):
        x, y = torch.randn(5, 4), torch.arange(5) % 3
        for _ in range(2):
            F.cross_entropy(model(x + delta), y).backward()
            assert delta.grad is not None
            delta.data = (delta + 0.1 * delta.grad.sign()).clamp(-0.3, 0.3)


class IndexedBlock(nn.Module):
    """A layer beside a scorer that chooses its inputs and runs without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.scorer, self.layer = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():  # cause
            chosen = self.scorer(x).argmax(1)
        return self.layer(x[chosen])


@says("cut-gradient", "0.scorer and 1.scorer ran under torch.no_grad()")
def parts_of_blocks_that_learn(record: Record) -> None:
    model = nn.Sequential(IndexedBlock(), IndexedBlock())
    with record(model):
        model(torch.randn(8, 4)).square().mean().backward()


@says("never-called", "got no gradient: block.inner was never called")
def forward_that_replaces_a_layer(record: Record) -> None:
    class Doubled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return 2 * x

    model = nn.Sequential()
    model.add_module("first", nn.Linear(4, 4))
    model.add_module("block", Doubled())
    with record(model):
        model(torch.randn(64, 4)).square().mean().backward()


@says("cut-gradient", "blocks_of_the_t…f_the_generator.0.weight and ")
def names_of_more_than_forty_characters(record: Record) -> None:
    model = nn.ModuleDict(
        {
            "blocks_of_the_transformer_of_the_generator": nn.Sequential(nn.Linear(4, 4)),
            "head": nn.Linear(4, 1),
        }
    )
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        h = model["blocks_of_the_transformer_of_the_generator"](torch.randn(64, 4))
        model["head"](h.detach()).square().mean().backward()
        optimizer.step()
