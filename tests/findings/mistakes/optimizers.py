"""Right and wrong steps of optimizers, schedulers and scalers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import ExponentialLR, LambdaLR

from tests.findings.corpus.cases import Record, step
from tests.findings.corpus.models import mlp
from tests.findings.mistakes.rows import says, silent

CLASSES = torch.arange(8) % 3


class Lookahead(torch.optim.Optimizer):
    """Steps by an optimizer that it is wrapped around, whose groups are its own."""

    def __init__(self, inside: torch.optim.Optimizer) -> None:
        super().__init__(inside.param_groups[0]["params"], {})
        self.inside, self.param_groups = inside, inside.param_groups

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        self.inside.step()


@silent("scheduler-out-of-step", "parameter-in-two-optimizers")
def scheduler_of_a_wrapper(record: Record) -> None:
    model = mlp()
    inside = SGD(model.parameters(), lr=0.1)
    scheduler = ExponentialLR(Lookahead(inside), 0.9)
    with record(model):
        for _ in range(4):
            step(inside, F.cross_entropy(model(torch.randn(8, 6)), CLASSES))
            scheduler.step()


@says("scheduler-out-of-step", "was called before the first step", cause="scheduler stepped first")
def scheduler_of_what_steps_at_last(record: Record) -> None:
    body, head = nn.Linear(6, 8), nn.Linear(8, 3)
    first, second = SGD(head.parameters(), lr=0.1), SGD(body.parameters(), lr=0.1)
    scheduler = ExponentialLR(second, 0.9)
    with record(nn.Sequential(body, head)):
        for i in range(4):
            step(first, F.cross_entropy(head(body(torch.randn(8, 6))), CLASSES))
            if i == 3:
                second.step()
            scheduler.step()


@silent("zero-learning-rate")
def rate_that_rises_from_zero(record: Record) -> None:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    scheduler = LambdaLR(optimizer, lambda i: i / 10)
    with record(model):
        for _ in range(4):
            step(optimizer, F.cross_entropy(model(torch.randn(8, 6)), CLASSES))
            scheduler.step()


@silent("weight-decay-on-norms", "empty-parameter-group")
def groups_by_rate(record: Record) -> None:
    body, norm, table = nn.Linear(6, 8), nn.LayerNorm(8), nn.Embedding(4, 6)
    own = [*body.parameters(), *norm.parameters()]
    rest = {"params": own, "weight_decay": 0.1}
    optimizer = AdamW([rest, {"params": table.parameters(), "weight_decay": 0.0}])
    with record(nn.ModuleList([body, norm, table])):
        step(optimizer, norm(body(table(CLASSES))).square().mean())


@silent("epsilon-underflow")
def epsilon_in_bfloat16(record: Record) -> None:
    model = mlp().bfloat16()
    with record(model):
        x = torch.randn(8, 6, dtype=torch.bfloat16)
        step(Adam(model.parameters()), F.cross_entropy(model(x).float(), CLASSES))


@silent("ineffective-clipping")
def gradients_that_are_cleared_before_they_are_clipped(record: Record) -> None:
    """That they were cleared is told by itself: backward does not run later."""
    model = mlp()
    optimizer = AdamW(model.parameters())
    with record(model):
        for _ in range(3):
            F.cross_entropy(model(torch.randn(8, 6)), CLASSES).backward()
            optimizer.zero_grad()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()


@silent("ineffective-clipping")
def backward_that_reaches_nothing_before_it_is_clipped(record: Record) -> None:
    model = mlp()
    optimizer = AdamW(model.parameters())
    with record(model):
        loss = F.cross_entropy(model(torch.randn(8, 6)), CLASSES)
        torch.tensor(loss.item(), requires_grad=True).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


@says(
    "ineffective-clipping",
    "found no gradient to clip, because backward runs later",
    severity="warning",
)
def gradients_that_are_clipped_before_they_are_there(record: Record) -> None:
    model = mlp()
    optimizer = AdamW(model.parameters())
    with record(model):
        for _ in range(3):
            loss = F.cross_entropy(model(torch.randn(8, 6)), CLASSES)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


@silent("extreme-clip-norm")
def bound_that_is_reached_at_times(record: Record) -> None:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.01)
    with record(model):
        for i in range(6):
            loss = F.cross_entropy(model(torch.randn(8, 6)), CLASSES)
            optimizer.zero_grad()
            (loss * (1 if i % 2 else 100)).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()


@says("extreme-clip-norm", "clipped none of 6 gradients", severity="info")
def bound_that_is_never_reached(record: Record) -> None:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.01)
    with record(model):
        for _ in range(6):
            optimizer.zero_grad()
            F.cross_entropy(model(torch.randn(8, 6)), CLASSES).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1e4)  # cause
            optimizer.step()


@says("extreme-clip-norm", "clip_grads_with_norm_() at {cause} scaled each of 6 gradients")
def bound_of_another_function(record: Record) -> None:
    model = mlp()
    optimizer = Adam(model.parameters(), lr=0.01)
    with record(model):
        for _ in range(6):
            optimizer.zero_grad()
            F.cross_entropy(model(torch.randn(8, 6)), CLASSES).backward()
            norm = torch.ones(())
            nn.utils.clip_grads_with_norm_(model.parameters(), 0.01, norm)  # cause
            optimizer.step()


@says("recreated-optimizer", "The scheduler scheduler of the step at {cause}", "each of 4 steps")
def scheduler_made_in_each_step(record: Record) -> None:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for _ in range(6):
            scheduler = ExponentialLR(optimizer, 0.9)
            optimizer.zero_grad()
            F.cross_entropy(model(torch.randn(8, 6)), CLASSES).backward()
            optimizer.step()  # cause
            scheduler.step()


@silent("recreated-optimizer")
def scheduler_made_in_each_epoch(record: Record) -> None:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for _ in range(3):
            scheduler = ExponentialLR(optimizer, 0.9)
            for _ in range(2):
                step(optimizer, F.cross_entropy(model(torch.randn(8, 6)), CLASSES))
                scheduler.step()


def scaled_steps(record: Record, anew: bool, enabled: bool = True) -> None:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    with record(model):
        for _ in range(4):
            if anew:
                scaler = torch.amp.GradScaler("cpu", enabled=enabled)
            optimizer.zero_grad()
            scaler.scale(F.cross_entropy(model(torch.randn(8, 6)), CLASSES)).backward()
            scaler.step(optimizer)
            scaler.update()


@says(
    "recreated-optimizer",
    "The scaler scaler of the step at ",
    "4 steps: it starts with its first scale",
)
def scaler_made_in_each_step(record: Record) -> None:
    scaled_steps(record, anew=True)


@silent("recreated-optimizer")
def scaler_of_the_whole_run(record: Record) -> None:
    scaled_steps(record, anew=False)


@silent("recreated-optimizer")
def scaler_that_is_off(record: Record) -> None:
    scaled_steps(record, anew=True, enabled=False)


@says("unneeded-retain-graph", "(create_graph=True) 3 times", advice="remove create_graph=True")
def slope_whose_graph_is_not_used(record: Record) -> None:
    model = mlp()
    with record(model):
        for _ in range(3):
            loss = F.cross_entropy(model(torch.randn(8, 6)), CLASSES)
            torch.autograd.grad(loss, list(model.parameters()), create_graph=True)  # cause


def decayed(record: Record, *, steps: int, many: int, floor: float = 0.0) -> None:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    scheduler = LambdaLR(optimizer, lambda i: max(floor, 1 - i / steps))
    with record(model):
        for _ in range(many):
            optimizer.zero_grad()
            F.cross_entropy(model(torch.randn(8, 6)), CLASSES).backward()
            optimizer.step()
            scheduler.step()


@says("zero-learning-rate", "a learning rate of 0 in the last 4 of 8 steps", severity="warning")
def schedule_that_ends_too_early(record: Record) -> None:
    decayed(record, steps=4, many=8)


@says("zero-learning-rate", "below 0, in 3 of 8 steps", cause="a learning rate below 0")
def schedule_that_goes_below_zero(record: Record) -> None:
    decayed(record, steps=4, many=8, floor=-9.0)


@silent("zero-learning-rate")
def schedule_that_ends_with_the_training(record: Record) -> None:
    decayed(record, steps=8, many=9)


@says("zero-learning-rate", "Group 0 of 2 in optimizer", severity="info")
def rate_of_zero_for_a_part(record: Record) -> None:
    body, head = nn.Linear(6, 8), nn.Linear(8, 3)
    groups = [{"params": body.parameters(), "lr": 0.0}, {"params": head.parameters()}]
    optimizer = SGD(groups, lr=0.1)
    with record(nn.Sequential(body, head)):
        for _ in range(4):
            optimizer.zero_grad()
            F.cross_entropy(head(body(torch.randn(8, 6))), CLASSES).backward()
            optimizer.step()  # cause


@says("zero-learning-rate", "in each of 4 steps, which change nothing")
def rate_of_zero_as_a_tensor(record: Record) -> None:
    model = mlp()
    optimizer = Adam(model.parameters(), lr=torch.tensor(0.0))
    with record(model):
        for _ in range(4):
            optimizer.zero_grad()
            F.cross_entropy(model(torch.randn(8, 6)), CLASSES).backward()
            optimizer.step()  # cause


def adversaries(record: Record, cut: bool) -> None:
    maker, judge = nn.Linear(6, 6), nn.Linear(6, 1)
    first, second = Adam(maker.parameters()), Adam(judge.parameters())
    with record(judge):  # of both, cut-gradient tells why
        for _ in range(3):
            fake = maker(torch.randn(8, 6))
            second.zero_grad()
            (judge(fake.detach()).mean() - judge(torch.randn(8, 6)).mean()).backward()
            second.step()
            first.zero_grad()
            (-judge(fake.detach() if cut else fake).mean()).backward()
            first.step()


@says("step-without-gradients", "first stepped 3 times", severity="warning")
def generator_behind_a_cut(record: Record) -> None:
    adversaries(record, cut=True)


@silent("step-without-gradients")
def generator_that_learns(record: Record) -> None:
    adversaries(record, cut=False)


@silent("step-without-gradients")
def closure_that_runs_backward(record: Record) -> None:
    model = mlp()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(torch.ones(8, 6)), CLASSES)
        loss.backward()
        return loss

    with record(model):
        for _ in range(3):
            optimizer.step(closure)


@silent()
def codes_that_are_found_before_the_decoder_learns(record: Record) -> None:
    """A backward for the codes alone gives the decoder no gradient."""
    decoder = mlp()
    held = Adam(decoder.parameters())
    codes = torch.zeros(8, 6, requires_grad=True)
    inner = Adam([codes], lr=0.1)
    with record(decoder):
        for _ in range(3):
            inner.zero_grad()
            F.cross_entropy(decoder(codes), CLASSES).backward(inputs=[codes])
            inner.step()
    assert held.state == {}


def players(record: Record, *words: str) -> None:
    """Two networks that learn in turn; the words clear, detach, or read what the judge left."""
    maker, judge = nn.Linear(6, 6), nn.Linear(6, 1)
    first, second = Adam(maker.parameters()), Adam(judge.parameters())
    with record(nn.ModuleDict({"maker": maker, "judge": judge})):
        for _ in range(2):
            first.zero_grad()
            second.zero_grad()
            fake = maker(torch.randn(8, 6))
            fake = fake.detach() if "detach" in words else fake
            (judge(fake).mean() - judge(torch.randn(8, 6)).mean()).backward()
            second.step()
            if "clear" in words:
                maker.zero_grad(set_to_none="keep" not in words)
            if "read" in words:  # the program makes one gradient of both
                for parameter in maker.parameters():
                    assert parameter.grad is not None
                    parameter.grad = parameter.grad.clone()
            if "only" not in words:
                (-judge(maker(torch.randn(8, 6))).mean()).backward()
            first.step()


@says(
    "mixed-losses",
    "first steps at optimizers.py:",
    "with the gradients of two losses: those of backward at optimizers.py:",
    "after which another optimizer stepped, and those of backward at optimizers.py:",
    severity="warning",
    advice="Call first.zero_grad() before the second backward",
)
def maker_that_gets_the_loss_of_its_judge(record: Record) -> None:
    players(record)


@silent("mixed-losses")
def makers_that_are_trained_by_one_loss(record: Record) -> None:
    for words in ("detach",), ("clear",), ("clear", "keep"), ("only",), ("read",):
        players(record, *words)


@silent("mixed-losses")
def two_losses_of_one_step_and_one_loss_of_two(record: Record) -> None:
    """Several backwards before any step, and steps of several optimizers after one."""
    body, head = nn.Linear(6, 6), nn.Linear(6, 3)
    first, second = SGD(body.parameters(), lr=0.1), SGD(head.parameters(), lr=0.1)
    with record(nn.ModuleDict({"body": body, "head": head})):
        for i in range(4):
            scores = head(body(torch.randn(8, 6)))
            scores.square().mean().backward(retain_graph=True)
            F.cross_entropy(scores, CLASSES).backward()
            first.step()
            first.zero_grad()
            if i % 2:  # with what two steps of the other gave
                second.step()
                second.zero_grad()


@silent("mixed-losses")
def parts_that_are_fitted_in_turn_by_closures(record: Record) -> None:
    """Each closure clears its own gradients, and its step uses what its backward gives."""
    one, two = nn.Linear(6, 8), nn.Linear(8, 3)
    first, second = (torch.optim.LBFGS(part.parameters(), 0.1, max_iter=1) for part in (one, two))
    x = torch.randn(8, 6)

    def closure_of_one() -> Tensor:
        first.zero_grad()
        loss = F.cross_entropy(two(one(x).tanh()), CLASSES)
        loss.backward()
        return loss

    def closure_of_two() -> Tensor:
        second.zero_grad()
        loss = two(one(x).tanh()).square().mean()
        loss.backward()
        return loss

    with record(nn.ModuleList([one, two])):
        for _ in range(3):
            first.step(closure_of_one)
            second.step(closure_of_two)


@silent("mixed-losses", "missing-zero-grad")
def heads_that_are_made_anew(record: Record) -> None:
    """A new one may have the id() of one that is gone, whose gradient nobody cleared."""
    body = nn.Linear(6, 8)
    outer = SGD(body.parameters(), lr=0.1)
    with record(body):
        for _ in range(30):
            head = nn.Linear(8, 3)
            inner = SGD(head.parameters(), lr=0.1)
            F.cross_entropy(head(body(torch.randn(8, 6)).detach()), CLASSES).backward()
            inner.step()
            outer.zero_grad()
            F.cross_entropy(head(body(torch.randn(8, 6))), CLASSES).backward()
            outer.step()
            del head, inner


class OwnDescent(SGD):
    """Gradient descent that decays parameters after the loop over them.

    Args:
        model: the model.
        spared: the number of dimensions of parameters that a second loop leaves out.
    """

    def __init__(self, model: nn.Module, spared: int | None = None) -> None:
        super().__init__(model.parameters(), lr=0.1)
        self.spared = spared

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for p in self.param_groups[0]["params"]:
            p.sub_(0.1 * p.grad)
        if self.spared is None:
            p.mul_(0.99)
            return
        for p in self.param_groups[0]["params"]:
            if p.dim() != self.spared:
                p.mul_(0.99)


def by_own_descent(record: Record, model: nn.Module, spared: int | None = None) -> None:
    optimizer = OwnDescent(model, spared)
    with record(model):
        for _ in range(3):
            step(optimizer, model(torch.randn(8, 6)).square().mean())


@says("update-outside-loop", "Each step of optimizer changes only 2.bias", "but all 4 parameters")
def decay_after_the_loop(record: Record) -> None:
    by_own_descent(record, nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)))


@silent("update-outside-loop")
def decay_of_all_weights(record: Record) -> None:
    by_own_descent(record, nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), spared=1)


@silent("update-outside-loop")
def decay_of_the_only_weight(record: Record) -> None:
    by_own_descent(
        record, nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.LayerNorm(8)), spared=1
    )


def with_rates(record: Record, set_rate: Callable[[Any, float], object], groups: int = 1) -> None:
    model = mlp()
    layers = [model[0], model[2]] if groups > 1 else [model]
    optimizer = SGD([{"params": [*layer.parameters()]} for layer in layers], lr=0.1)
    with record(model):
        for number in range(4):
            set_rate(optimizer, 0.1 / (1 + number))
            optimizer.zero_grad()
            F.cross_entropy(model(torch.randn(8, 6)), CLASSES).backward()
            optimizer.step()


@says("rate-set-by-hand", "optimizer.lr is set to 0.025", "no step reads it")
def rate_as_an_attribute(record: Record) -> None:
    with_rates(record, lambda optimizer, rate: setattr(optimizer, "lr", rate))


@says("rate-set-by-hand", 'optimizer.defaults["lr"] is set to 0.025 at ', "no step reads it")
def rate_in_the_defaults(record: Record) -> None:
    def set_rate(optimizer: Any, rate: float) -> None:
        optimizer.defaults["lr"] = rate

    with_rates(record, set_rate)


@says("rate-set-by-hand", "group 0 of 2 in optimizer is set")
def rate_of_the_first_group_only(record: Record) -> None:
    def set_rate(optimizer: Any, rate: float) -> None:
        optimizer.param_groups[0]["lr"] = rate

    with_rates(record, set_rate, 2)


@silent("rate-set-by-hand")
def rate_of_all_groups(record: Record) -> None:
    def set_rate(optimizer: Any, rate: float) -> None:
        for group in optimizer.param_groups:
            group["lr"] = rate

    with_rates(record, set_rate, 2)


def with_option(record: Record, **options: float) -> None:
    model = mlp()
    groups = [{"params": [*model[0].parameters()]}, {"params": [*model[2].parameters()], **options}]
    optimizer = SGD(groups, lr=0.1, momentum=0.9)
    with record(model):
        optimizer.zero_grad()
        F.cross_entropy(model(torch.randn(8, 6)), CLASSES).backward()
        optimizer.step()


@says("unknown-group-option", "Group 1 of 2 in optimizer", "learning_rate=0.5", "its lr is 0.1")
def learning_rate_by_its_long_name(record: Record) -> None:
    with_option(record, learning_rate=0.5)


@says("unknown-group-option", "momentun=0.5, which SGD does not know: its momentum is 0.9")
def misspelled_momentum(record: Record) -> None:
    with_option(record, momentun=0.5)


@silent("unknown-group-option")
def options_that_are_known(record: Record) -> None:
    with_option(record, lr=0.5, momentum=0.5, weight_decay=0.1)


@silent("unknown-group-option")
def factor_of_the_rate(record: Record) -> None:
    with_option(record, lr_scale=0.5, initial_lr=0.3, layer=3)


def with_halved_weight(record: Record, way: str) -> None:
    model = nn.Linear(6, 3)
    optimizer, weight = SGD(model.parameters(), lr=0.1), model.weight
    with record(model):
        for _ in range(3):
            optimizer.zero_grad()
            if way != "computed":
                model.weight = nn.Parameter(weight.detach() / 2)
            values = {"weight": weight / 2} if way == "computed" else {}
            y = torch.func.functional_call(model, values, torch.randn(8, 6))
            F.cross_entropy(y, CLASSES).backward()
            if way == "gradients":
                weight.grad = model.weight.grad
            model.weight = weight
            optimizer.step()


@says("replaced-parameters", "gives the gradient of weight to temporary parameters", "in 2 steps")
def temporary_parameter(record: Record) -> None:
    with_halved_weight(record, "temporary")


@silent("replaced-parameters")
def computed_values_of_a_parameter(record: Record) -> None:
    with_halved_weight(record, "computed")


@silent("replaced-parameters")
def gradients_that_are_copied_from_a_temporary_parameter(record: Record) -> None:
    with_halved_weight(record, "gradients")
