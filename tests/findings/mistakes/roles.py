"""Targets, weights and terms that take a gradient although they should not learn."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD

from tests.findings.corpus.cases import Record
from tests.findings.mistakes.rows import says, silent

CLASSES = torch.arange(8) % 3


def q_values(model: nn.Module, hold: bool) -> tuple[Tensor, Tensor]:
    """What a network says of the actions taken, and the target that it is to learn."""
    q = model(torch.randn(8, 4)).gather(1, torch.arange(8)[:, None] % 3).squeeze(1)
    with torch.set_grad_enabled(not hold):
        target: Tensor = torch.randn(8) + 0.9 * model(torch.randn(8, 4)).max(1)[0]
    return q, target


@says(
    "target-not-detached",
    "a squared difference at {cause}",
    "target changes",
    advice="Detach target",
)
def temporal_difference_by_hand(record: Record) -> None:
    model = nn.Linear(4, 3)
    with record(model):
        q, target = q_values(model, hold=False)
        (q - target).pow(2).mean().backward()  # cause


@silent("target-not-detached")
def temporal_difference_by_hand_with_a_target_that_is_held(record: Record) -> None:
    model = nn.Linear(4, 3)
    with record(model):
        q, target = q_values(model, hold=True)
        (q - target).pow(2).mean().backward()


@says("target-not-detached", "p and z are pulled towards each other", severity="info", advice="")
def views_that_are_both_pulled(record: Record) -> None:
    encoder, predictor = nn.Linear(4, 3), nn.Linear(3, 3)
    with record(nn.ModuleList([encoder, predictor])):
        x = torch.randn(8, 4)
        p, z = predictor(encoder(x)), encoder(x + 0.1)
        (-F.cosine_similarity(p, z).mean()).backward()


@silent("target-not-detached")
def views_of_which_one_is_held(record: Record) -> None:
    encoder, predictor = nn.Linear(4, 3), nn.Linear(3, 3)
    with record(nn.ModuleList([encoder, predictor])):
        x = torch.randn(8, 4)
        p, z = predictor(encoder(x)), encoder(x + 0.1).detach()
        (-F.cosine_similarity(p, z).mean()).backward()


def towards(record: Record, *, held: bool) -> None:
    """Values are pulled towards those of another network, in a step of the first one alone."""
    now, old = nn.Linear(4, 1), nn.Linear(4, 1)
    optimizer, another = SGD(now.parameters(), lr=0.1), SGD((old if held else now).parameters())
    with record(nn.ModuleDict({"now": now, "old": old})):
        x = torch.randn(8, 4)
        target = torch.randn(8, 1) + 0.9 * old(x)
        F.mse_loss(now(x), target).backward()
        optimizer.step()
    del another


@says(
    "target-not-detached",
    "The target target of mse_loss",
    "takes gradients through old.weight and old.bias, which no optimizer updates.",
    severity="warning",
    advice="Detach target, or compute it under torch.no_grad(); if they should learn, give them to "
    "an optimizer.",
)
def target_of_a_network_that_nothing_updates(record: Record) -> None:
    towards(record, held=False)


@says("target-not-detached", "which the optimizer of this step does not hold", severity="info")
def target_of_a_network_that_another_optimizer_holds(record: Record) -> None:
    towards(record, held=True)


def apart(record: Record, loss: Any) -> None:
    """An optimizer holds one of two networks."""
    now, old = nn.Linear(4, 1), nn.Linear(4, 1)
    optimizer = SGD(now.parameters(), lr=0.1)
    with record(nn.ModuleDict({"now": now, "old": old})):
        x = torch.randn(8, 4)
        loss(now(x), old(x)).backward()
        optimizer.step()


@says("not-in-optimizer", "No optimizer updates old.weight and old.bias", severity="warning")
def factor_that_no_optimizer_updates(record: Record) -> None:
    apart(record, lambda now, old: (now * old.sigmoid()).mean())


@says("not-in-optimizer", "No optimizer updates old.weight and old.bias", severity="warning")
def prediction_that_no_optimizer_updates(record: Record) -> None:
    apart(record, lambda now, old: F.mse_loss(old, now))


@says("target-not-detached", "in a squared difference", severity="warning", advice="give them to")
def difference_to_what_no_optimizer_updates(record: Record) -> None:
    apart(record, lambda now, old: (old - now).pow(2).mean())


@silent()
def inputs_that_get_a_gradient_through_a_teacher(record: Record) -> None:
    """As for a map of what matters; the teacher is frozen."""
    teacher, student = nn.Linear(4, 3).requires_grad_(False), nn.Linear(4, 3)
    optimizer = SGD(student.parameters(), lr=0.1)
    with record(nn.ModuleDict({"teacher": teacher, "student": student})):
        x = torch.randn(8, 4, requires_grad=True)
        F.mse_loss(student(x), teacher(x)).backward()
        optimizer.step()


@silent("target-not-detached")
def centers_that_no_network_computes(record: Record) -> None:
    """They are there to learn: that no optimizer has them is told as that."""
    body, centers = nn.Linear(4, 2), nn.ParameterList([torch.zeros(3, 2)])
    optimizer = SGD(body.parameters(), lr=0.1)
    with record(nn.ModuleDict({"body": body, "centers": centers})):
        nearest = centers[0][torch.arange(8) % 3]
        F.mse_loss(body(torch.randn(8, 4)), nearest).backward()
        optimizer.step()


@silent("target-not-detached", "undetached-advantage")
def an_entropy_and_a_gate(record: Record) -> None:
    """Both factors of a product come from one result: nothing is compared."""
    policy, gate = nn.Linear(4, 3), nn.Linear(4, 3)
    with record(nn.ModuleList([policy, gate])):
        x = torch.randn(8, 4)
        scores = policy(x)
        entropy = -(scores.softmax(-1) * scores.log_softmax(-1)).sum(-1).mean()
        h = scores.tanh() * gate(x).sigmoid()
        (entropy + h.square().mean()).backward()


@silent("target-not-detached")
def critic_of_two_batches(record: Record) -> None:
    """As of a Wasserstein distance: a difference, which is scaled and not squared."""
    critic = nn.Linear(4, 1)
    with record(critic):
        real, fake = critic(torch.randn(8, 4)), critic(torch.randn(8, 4))
        ((fake - real) * 10).mean().backward()


@says("target-not-detached", "a squared difference at {cause}", severity="info", advice="")
def difference_multiplied_by_itself(record: Record) -> None:
    layer = nn.Linear(4, 3)
    with record(layer):
        apart = layer(torch.randn(8, 4)) - layer(torch.randn(8, 4))
        (apart * apart).mean().backward()  # cause


@says("target-not-detached", "p and z are pulled", severity="info", advice="")
def views_that_one_call_encodes(record: Record) -> None:
    encoder = nn.Linear(4, 3)
    with record(encoder):
        x = torch.randn(8, 4)
        p, z = F.normalize(encoder(torch.cat([x, x + 0.1])), dim=1).split(8)
        (2 - 2 * (p * z).sum(1)).mean().backward()  # cause


@silent("target-not-detached")
def parts_of_one_result_that_are_no_views(record: Record) -> None:
    """Neighbours in time, whose rows overlap; a gate; queries and keys."""
    layer = nn.Linear(4, 6)
    with record(layer):
        h = layer(torch.randn(8, 4))
        smooth = (h[1:] - h[:-1]).pow(2).mean()
        a, b = layer(torch.randn(8, 4)).chunk(2, dim=1)
        q, k = layer(torch.randn(8, 4)).view(8, 2, 3).unbind(1)
        (smooth + (a * b).mean() + (q * k).mean()).backward()


@says("undetached-advantage", "is weighted by advantage", "also trains value.bias and value.weight")
def normal_policy_whose_advantage_has_a_history(record: Record) -> None:
    policy, value = nn.Linear(4, 2), nn.Linear(4, 1)
    with record(nn.ModuleDict({"policy": policy, "value": value})):
        x = torch.randn(8, 4)
        drawn = torch.distributions.Normal(policy(x), torch.ones(2))
        advantage = torch.randn(8) - value(x).squeeze(1)
        log_prob = drawn.log_prob(drawn.sample()).sum(1)
        (-(log_prob * advantage).mean()).backward()


def policy_of_many_dimensions(record: Record, held: bool) -> None:
    policy, value = nn.Linear(4, 2), nn.Linear(4, 1)
    with record(nn.ModuleDict({"policy": policy, "value": value})):
        x = torch.randn(8, 4)
        drawn = torch.distributions.MultivariateNormal(policy(x), torch.eye(2))
        with torch.set_grad_enabled(not held):
            advantage = torch.randn(8) - value(x).squeeze(1)
        (-(drawn.log_prob(drawn.sample()) * advantage).mean()).backward()


@says("undetached-advantage", "is weighted by advantage", "also trains value.bias and value.weight")
def policy_of_many_dimensions_whose_advantage_has_a_history(record: Record) -> None:
    policy_of_many_dimensions(record, held=False)


@silent("undetached-advantage")
def policy_of_many_dimensions_whose_advantage_is_held(record: Record) -> None:
    policy_of_many_dimensions(record, held=True)


@silent("undetached-advantage")
def likelihood_of_the_data_weighted_by_what_learns(record: Record) -> None:
    mean, share = nn.Linear(4, 2), nn.Linear(4, 1)
    with record(nn.ModuleList([mean, share])):
        x, y = torch.randn(8, 4), torch.randn(8, 2)
        density = torch.distributions.MultivariateNormal(mean(x), torch.eye(2))
        (-(density.log_prob(y) * share(x).squeeze(1).sigmoid()).mean()).backward()


@says("undetached-advantage", "is weighted by advantage", "also trains value.bias and value.weight")
def coin_whose_advantage_has_a_history(record: Record) -> None:
    policy, value = nn.Linear(4, 1), nn.Linear(4, 1)
    with record(nn.ModuleDict({"policy": policy, "value": value})):
        x = torch.randn(8, 4)
        drawn = torch.distributions.Bernoulli(logits=policy(x))
        advantage = torch.randn(8, 1) - value(x)
        (-(drawn.log_prob(drawn.sample()) * advantage).mean()).backward()


@silent("undetached-advantage")
def likelihood_weighted_by_what_learns_the_share(record: Record) -> None:
    """Of a mixture: the data are no draws, and each share has to learn by the likelihood."""
    means, share = nn.Parameter(torch.randn(3)), nn.Linear(1, 3)
    with record(share):
        x = torch.randn(8, 1)
        likelihood = torch.distributions.Normal(means, torch.ones(3)).log_prob(x)
        (-(share(x).softmax(1) * likelihood).sum(1).mean()).backward()


class Convolution(nn.Linear):
    """A layer that keeps whether it learns in an attribute of its own, as libraries do."""

    def __init__(self, requires_grad: bool) -> None:
        super().__init__(4, 4)
        self.requires_grad = requires_grad  # type: ignore[assignment]
        for parameter in self.parameters():
            parameter.requires_grad_(requires_grad)


@silent()
def attribute_of_a_library_that_says_what_is(record: Record) -> None:
    model = nn.Sequential(Convolution(True), Convolution(False), nn.Linear(4, 1))
    with record(model):
        model(torch.randn(8, 4)).square().mean().backward()
