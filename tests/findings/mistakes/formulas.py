"""Known formulas, such as a clipped objective or a divergence, with a wrong sign, scale or term."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Normal, kl_divergence
from torch.nn import functional as F

from tests.findings.corpus.cases import Record, step
from tests.findings.mistakes.rows import says, silent


def learn(record: Record, model: nn.Module, loss: Callable[[], Any]) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with record(model):
        step(optimizer, loss())


def clipped(record: Record, bound: Callable[[Tensor, Tensor], Tensor], sign: float) -> None:
    """A step of PPO on samples of another policy."""
    policy, states, weights = nn.Linear(4, 3), torch.randn(16, 4), torch.randn(16)
    actions, before = torch.arange(16)[:, None] % 3, torch.full((16,), -1.1)

    def loss() -> Any:
        log_prob = policy(states).log_softmax(-1).gather(1, actions).squeeze(1)
        ratio = (log_prob - before).exp()
        return sign * bound(ratio * weights, ratio.clamp(0.8, 1.2) * weights).mean()

    learn(record, policy, loss)


@says("reversed-term", "takes the larger", "objective")
def larger_of_two_objectives(record: Record) -> None:
    clipped(record, torch.max, -1)


@says("reversed-term", "takes the smaller", "loss")
def smaller_of_two_losses(record: Record) -> None:
    clipped(record, torch.minimum, 1)


@silent("reversed-term")
def smaller_of_two_objectives(record: Record) -> None:
    clipped(record, torch.min, -1)


@silent("reversed-term")
def larger_of_two_losses(record: Record) -> None:
    """As in CleanRL, which negates the advantages."""
    clipped(record, torch.maximum, 1)


@silent("reversed-term")
def larger_of_two_values(record: Record) -> None:
    """As of a clipped value: both are not the same number times a constant."""
    critic, states, returns = nn.Linear(4, 1), torch.randn(16, 4), torch.randn(16, 1)
    before = torch.randn(16, 1)

    def loss() -> Any:
        value = critic(states)
        near = before + (value - before).clamp(-0.2, 0.2)
        return torch.max((value - returns) ** 2, (near - returns) ** 2).mean()

    learn(record, critic, loss)


def explore(record: Record, weight: float, continuous: bool = False) -> None:
    """A policy gradient with an entropy of this weight in the loss."""
    policy, states = nn.Linear(4, 3), torch.randn(16, 4)
    spread = nn.Parameter(torch.zeros(3))
    policy.register_parameter("spread", spread)

    def loss() -> Any:
        scores = policy(states)
        made: Any = Normal(scores, spread.exp()) if continuous else Categorical(logits=scores)
        log_prob, entropy = made.log_prob(made.sample()), made.entropy()
        if continuous:
            log_prob, entropy = log_prob.sum(-1), entropy.sum(-1)
        return -(log_prob * torch.randn(16)).mean() + weight * entropy.mean()

    learn(record, policy, loss)


@says("reversed-term", "entropy of the policy", "smaller")
def entropy_with_a_plus_sign(record: Record) -> None:
    explore(record, 0.01)


@says("reversed-term", "entropy of the policy", "smaller")
def entropy_of_a_normal_policy_with_a_plus_sign(record: Record) -> None:
    explore(record, 0.01, continuous=True)


@says("reversed-term", "entropy of the policy", "smaller")
def entropy_by_hand_with_a_plus_sign(record: Record) -> None:
    policy = nn.Linear(4, 3)

    def loss() -> Any:
        logs = policy(torch.randn(16, 4)).log_softmax(-1)
        actions = torch.multinomial(logs.detach().exp(), 1)
        entropy = -(logs.exp() * logs).sum(-1)
        return (0.05 * entropy - logs.gather(1, actions)[:, 0] * torch.randn(16)).mean()

    learn(record, policy, loss)


@silent("reversed-term")
def entropy_bonus(record: Record) -> None:
    explore(record, -0.01)


@silent("reversed-term")
def entropy_bonus_of_a_normal_policy(record: Record) -> None:
    explore(record, -0.01, continuous=True)


@silent("reversed-term")
def entropy_of_samples_without_a_label(record: Record) -> None:
    """It is minimized on purpose, beside a classification with weights of one sign."""
    model, weights = nn.Linear(4, 3), torch.rand(16)

    def loss() -> Any:
        logs = model(torch.randn(16, 4)).log_softmax(-1)
        known = -(logs.gather(1, torch.arange(16)[:, None] % 3).squeeze(1) * weights).mean()
        return known - 0.1 * (logs.exp() * logs).sum(-1).mean()

    learn(record, model, loss)


class Coder(nn.Module):
    """Encoder and decoder of a VAE."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(8, 4), nn.Linear(2, 8)

    def forward(self, x: Tensor, scale: Callable[[Tensor], Tensor]) -> tuple[Tensor, ...]:
        mean, spread = self.encoder(x).chunk(2, dim=1)
        z = mean + scale(spread) * torch.randn(len(x), 2)
        return self.decoder(z), mean, spread


def encode(
    record: Record,
    divergence: Callable[[Tensor, Tensor], Any],
    scale: Callable[[Tensor], Tensor] = lambda spread: (0.5 * spread).exp(),
    weight: float = 1.0,
    reduction: str = "sum",
) -> None:
    """A step of a VAE with this divergence of mean and log-variance."""
    model, x = Coder(), torch.rand(16, 8)

    def loss() -> Any:
        decoded, mean, spread = model(x, scale)
        error = F.mse_loss(decoded, x, reduction=reduction)
        return error + weight * divergence(mean, spread).sum()

    learn(record, model, loss)


def of_log_variance(mean: Tensor, spread: Tensor) -> Tensor:
    return -0.5 * (1 + spread - mean**2 - spread.exp())


def of_log_scale(mean: Tensor, spread: Tensor) -> Tensor:
    return 0.5 * ((2 * spread).exp() + mean * mean - 1) - spread


def of_scale(mean: Tensor, spread: Tensor) -> Tensor:
    return 0.5 * (spread**2 + mean**2 - 1 - torch.log(spread**2))


@says("gaussian-divergence", "larger", "wrong sign")
def divergence_with_a_minus_sign(record: Record) -> None:
    encode(record, of_log_variance, weight=-1)


@says("gaussian-divergence", "larger", "wrong sign")
def divergence_of_two_distributions_with_a_minus_sign(record: Record) -> None:
    def divergence(mean: Tensor, spread: Tensor) -> Any:
        return -kl_divergence(Normal(mean, F.softplus(spread)), Normal(0.0, 1.0))

    encode(record, divergence, F.softplus)


@says("gaussian-divergence", "standard deviation exp", "is not its square")
def variance_in_place_of_the_deviation(record: Record) -> None:
    encode(record, of_log_variance, torch.exp)


@says("gaussian-divergence", "exp(0.5 * split)", "split ** 2, which is not its square")
def log_variance_for_a_scale(record: Record) -> None:
    encode(record, of_scale)


@says("gaussian-divergence", "mean, where its square belongs")
def mean_without_a_square(record: Record) -> None:
    encode(record, lambda mean, spread: -0.5 * (1 + spread - mean - spread.exp()))


@says("gaussian-divergence", "adds", "where it is subtracted")
def logarithm_that_is_added(record: Record) -> None:
    encode(record, lambda mean, spread: 0.5 * (spread.exp() + mean**2 - 1 + spread))


@says("gaussian-divergence", "subtracts the square of the mean")
def mean_that_is_subtracted(record: Record) -> None:
    encode(record, lambda mean, spread: -0.5 * (1 + spread + mean**2 - spread.exp()))


@says("gaussian-divergence", "with a factor of 1 instead of a factor of 2")
def log_scale_for_a_log_variance(record: Record) -> None:
    encode(record, lambda mean, spread: -0.5 * (1 + spread - mean**2 - (2 * spread).exp()))


@says("gaussian-divergence", "counts 64 times as much", severity="info")
def sum_beside_a_mean(record: Record) -> None:
    encode(record, of_log_variance, reduction="mean")


@silent("gaussian-divergence")
def divergence_of_a_log_variance(record: Record) -> None:
    encode(record, of_log_variance)


@silent("gaussian-divergence")
def divergence_of_a_log_scale(record: Record) -> None:
    encode(record, of_log_scale, torch.exp)


@silent("gaussian-divergence")
def divergence_of_a_scale(record: Record) -> None:
    encode(record, lambda mean, spread: of_scale(mean, F.softplus(spread)), F.softplus)


@silent("gaussian-divergence")
def divergence_of_two_distributions(record: Record) -> None:
    def divergence(mean: Tensor, spread: Tensor) -> Any:
        return kl_divergence(Normal(mean, F.softplus(spread)), Normal(0.0, 1.0))

    encode(record, divergence, F.softplus)


@silent("gaussian-divergence")
def divergence_from_a_prior_with_another_variance(record: Record) -> None:
    """As of weights, whose prior is narrow."""

    def divergence(mean: Tensor, spread: Tensor) -> Tensor:
        scale = F.softplus(spread)
        return math.log(0.1) - scale.log() + (scale**2 + mean**2) / (2 * 0.1**2) - 0.5

    encode(record, divergence, F.softplus)


@silent("gaussian-divergence")
def divergence_that_is_maximized_up_to_a_bound(record: Record) -> None:
    """As of generated samples in an IntroVAE."""
    encode(record, lambda mean, spread: F.relu(10 - of_log_variance(mean, spread).sum(1)))


@silent("gaussian-divergence")
def small_divergence_beside_a_mean(record: Record) -> None:
    encode(record, of_log_variance, weight=0.001, reduction="mean")


@silent("gaussian-divergence")
def likelihood_of_counts(record: Record) -> None:
    """An exponential minus its logarithm times the data, as in a Poisson regression."""
    model, counts = nn.Linear(4, 1), torch.arange(16.0)[:, None]

    def loss() -> Any:
        log_rate = model(torch.randn(16, 4))
        return (log_rate.exp() - counts * log_rate).mean()

    learn(record, model, loss)


def regularize(record: Record, weight: float) -> None:
    """A policy gradient beside an estimate of the divergence from a reference."""
    policy, weights, reference = nn.Linear(4, 3), torch.randn(16), torch.full((16,), -1.1)

    def loss() -> Any:
        log_prob = policy(torch.randn(16, 4)).log_softmax(-1)[:, 0]
        difference = reference - log_prob
        divergence = difference.exp() - difference - 1
        return (weight * divergence - weights * log_prob).mean()

    learn(record, policy, loss)


@says("gaussian-divergence", "larger", "wrong sign")
def divergence_from_a_reference_with_a_minus_sign(record: Record) -> None:
    regularize(record, -0.1)


@silent("gaussian-divergence")
def divergence_from_a_reference(record: Record) -> None:
    regularize(record, 0.1)


def fit(record: Record, loss: Callable[[Any], Any]) -> None:
    """A step that fits a normal distribution to data."""
    model = nn.Linear(4, 2)

    def of_data() -> Any:
        mean, spread = model(torch.randn(16, 4)).chunk(2, dim=1)
        return loss(Normal(mean, F.softplus(spread)))

    learn(record, model, of_data)


@says("minimized-log-probability", "log-densities of a normal", severity="warning")
def density_without_a_minus_sign(record: Record) -> None:
    fit(record, lambda made: made.log_prob(torch.ones(16, 1)).mean())


@says("minimized-log-probability", "log-densities of a normal", severity="warning")
def density_that_is_subtracted_twice(record: Record) -> None:
    fit(record, lambda made: made.mean.square().mean() - (-made.log_prob(torch.ones(16, 1))).sum())


@silent("minimized-log-probability")
def density_with_a_minus_sign(record: Record) -> None:
    fit(record, lambda made: -made.log_prob(torch.ones(16, 1)).mean())


@silent("minimized-log-probability")
def density_of_its_own_sample(record: Record) -> None:
    """As in SAC: the sample has a gradient."""

    def loss(made: Any) -> Any:
        sample = made.rsample()
        return (0.2 * made.log_prob(sample) + sample.square()).mean()

    fit(record, loss)


@silent("minimized-log-probability")
def density_in_a_ratio(record: Record) -> None:
    fit(record, lambda made: -(made.log_prob(torch.ones(16, 1)) + 1.0).exp().mean())


def reinforce(record: Record, sign: float, weights: Tensor) -> None:
    policy = nn.Linear(4, 3)

    def loss() -> Any:
        made: Any = Categorical(logits=policy(torch.randn(16, 4)))
        return sign * (made.log_prob(made.sample()) * weights).mean()

    learn(record, policy, loss)


@says("minimized-log-probability", "weights that are all positive", severity="info")
def returns_without_a_minus_sign(record: Record) -> None:
    reinforce(record, 1, torch.rand(16))


@silent("minimized-log-probability")
def returns_with_a_minus_sign(record: Record) -> None:
    reinforce(record, -1, torch.rand(16))


@silent("minimized-log-probability")
def negative_returns_with_a_minus_sign(record: Record) -> None:
    reinforce(record, -1, -torch.rand(16))


@silent("minimized-log-probability")
def advantages_without_a_minus_sign(record: Record) -> None:
    """They may be costs."""
    reinforce(record, 1, torch.randn(16))
