"""Two networks that should work against each other, and penalties of their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.findings.corpus.cases import Record, step
from tests.findings.mistakes.formulas import learn
from tests.findings.mistakes.rows import says, silent


def oppose(
    record: Record,
    judge: Callable[[Tensor, bool], Tensor],
    fool: Callable[[Tensor], Any],
) -> None:
    """Steps of a GAN with these losses of the discriminator's results."""
    generator, discriminator = nn.Linear(4, 8), nn.Linear(8, 1)
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.01) for net in (generator, discriminator)]
    with record(nn.ModuleDict({"g": generator, "d": discriminator})):
        for _ in range(2):
            fake = generator(torch.randn(16, 4))
            real = judge(discriminator(torch.rand(16, 8)), True)
            step(optimizers[1], real + judge(discriminator(fake.detach()), False))
            step(optimizers[0], fool(discriminator(fake)))


def binary(scores: Tensor, real: bool) -> Tensor:
    return F.binary_cross_entropy_with_logits(scores, torch.full((16, 1), float(real)))


def critic(scores: Tensor, real: bool) -> Tensor:
    return -scores.mean() if real else scores.mean()


@says("same-direction", "smaller", "do not work against each other", severity="warning")
def generator_with_the_label_of_the_discriminator(record: Record) -> None:
    oppose(record, binary, lambda scores: binary(scores, False))


@says("same-direction", "smaller", severity="warning")
def generator_with_the_sign_of_its_critic(record: Record) -> None:
    oppose(record, critic, torch.mean)


@silent("same-direction")
def generator_against_its_discriminator(record: Record) -> None:
    oppose(record, binary, lambda scores: binary(scores, True))


@silent("same-direction")
def generator_that_maximizes_the_loss(record: Record) -> None:
    """As in the first GAN."""
    oppose(record, binary, lambda scores: -binary(scores, False))


@silent("same-direction")
def generator_against_its_critic(record: Record) -> None:
    oppose(record, critic, lambda scores: -scores.mean())


@silent("same-direction")
def generator_against_a_critic_of_energies(record: Record) -> None:
    """The data have small energies, and generated samples large ones."""
    oppose(record, lambda scores, real: critic(scores, not real), torch.mean)


@silent("same-direction")
def generator_with_least_squares(record: Record) -> None:
    oppose(
        record,
        lambda scores, real: (scores - float(real)).square().mean(),
        lambda scores: (scores - 1).square().mean(),
    )


def act(record: Record, sign: float) -> None:
    """Steps of an actor and its critic, as in DDPG."""
    actor, values = nn.Linear(4, 2), nn.Linear(6, 1)
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.01) for net in (actor, values)]
    with record(nn.ModuleDict({"actor": actor, "critic": values})):
        for _ in range(2):
            states, taken, returns = torch.randn(16, 4), torch.randn(16, 2), torch.randn(16, 1)
            fit = F.mse_loss(values(torch.cat([states, taken], 1)), returns)
            step(optimizers[1], fit)
            step(optimizers[0], sign * values(torch.cat([states, actor(states)], 1)).mean())


@says("same-direction", "value of its critic", "smaller", severity="info")
def actor_that_minimizes_its_critic(record: Record) -> None:
    act(record, 1)


@silent("same-direction")
def actor_that_maximizes_its_critic(record: Record) -> None:
    act(record, -1)


def penalize(record: Record, norm: Callable[[Tensor], Tensor]) -> None:
    """A step of a critic with a gradient penalty."""
    values = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))

    def loss() -> Any:
        x = torch.randn(16, 8, requires_grad=True)
        (slope,) = torch.autograd.grad(values(x).sum(), x, create_graph=True)
        return values(torch.randn(16, 8)).mean() + 10 * ((norm(slope) - 1) ** 2).mean()

    learn(record, values, loss)


@says("norm-over-batch", "one norm for the derivatives of all 16 samples", severity="warning")
def penalty_of_one_norm(record: Record) -> None:
    penalize(record, torch.norm)


@says("norm-over-batch", "one norm for the derivatives of all 16 samples", severity="warning")
def penalty_of_one_norm_of_rows(record: Record) -> None:
    penalize(record, lambda slope: slope.view(16, -1).norm(2))


@silent("norm-over-batch")
def penalty_of_a_norm_for_each_sample(record: Record) -> None:
    penalize(record, lambda slope: slope.norm(2, dim=1))


@silent("norm-over-batch")
def penalty_of_the_norm_of_weights(record: Record) -> None:
    model = nn.Linear(8, 3)
    learn(
        record,
        model,
        lambda: (model.weight.norm() - 1) ** 2 + model(torch.randn(16, 8)).square().mean(),
    )


@silent("norm-over-batch")
def norm_of_the_derivative_by_a_weight(record: Record) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))

    def loss() -> Any:
        error = model(torch.randn(16, 8)).square().mean()
        (slope,) = torch.autograd.grad(error, model[0].weight, create_graph=True)
        return error + (slope.norm() - 1) ** 2

    learn(record, model, loss)


@silent("norm-over-batch")
def norm_of_one_derivative(record: Record) -> None:
    """Of an energy: all points are one sample, whose forces are compared with the data."""
    values = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))

    def loss() -> Any:
        x = torch.randn(16, 8, requires_grad=True)
        (slope,) = torch.autograd.grad(values(x).sum(), x, create_graph=True)
        return (slope - torch.linspace(-1, 1, 128).view(16, 8)).norm()

    learn(record, values, loss)
