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


def match(record: Record, scores: Callable[[Tensor, Tensor], Tensor], normal: bool = True) -> None:
    """A step of a contrastive loss between two views of each sample."""
    encoder = nn.Linear(8, 32)

    def loss() -> Any:
        views = encoder(torch.randn(16, 8)), encoder(torch.randn(16, 8))
        one, other = (F.normalize(view, dim=1) if normal else view for view in views)
        found = scores(one, other)
        return F.cross_entropy(found, torch.arange(len(found)))

    learn(record, encoder, loss)


@says("score-scale", "between -0.07 and 0.07", "fall below 2.64", severity="warning")
def similarity_times_its_temperature(record: Record) -> None:
    match(record, lambda one, other: one @ other.T * 0.07)


@says("score-scale", "between -1 and 1 from tanh", "fall below 1.11", severity="info")
def tanh_before_a_cross_entropy(record: Record) -> None:
    match(record, lambda one, other: torch.tanh(one @ other.T), normal=False)


@says("score-scale", "between -0.1 and 0.1", "binary_cross_entropy_with_logits")
def similarity_of_pairs_without_a_scale(record: Record) -> None:
    encoder = nn.Linear(8, 4)

    def loss() -> Any:
        views = encoder(torch.randn(16, 8)), encoder(torch.randn(16, 8))
        one, other = (F.normalize(view, dim=1) for view in views)
        scores = (one * other).sum(1) * 0.1
        return F.binary_cross_entropy_with_logits(scores, torch.ones(16))

    learn(record, encoder, loss)


@says("score-scale", "divided by 0.05", "not normalized", severity="info")
def products_with_a_temperature(record: Record) -> None:
    match(record, lambda one, other: one @ other.T / 0.05, normal=False)


@silent("score-scale", "compared-with-itself")
def similarity_divided_by_its_temperature(record: Record) -> None:
    match(record, lambda one, other: one @ other.T / 0.07)


@silent("score-scale")
def similarity_divided_by_a_large_temperature(record: Record) -> None:
    """As in SimCLR on small images: many samples keep the loss from falling below 2.34."""
    encoder = nn.Linear(8, 32)

    def loss() -> Any:
        views = F.normalize(encoder(torch.randn(512, 8)), dim=1)
        others = (views @ views.T / 0.5).masked_fill(torch.eye(512, dtype=torch.bool), -math.inf)
        return F.cross_entropy(others, torch.arange(512).roll(256))

    learn(record, encoder, loss)


@silent("score-scale")
def similarity_with_a_learned_scale(record: Record) -> None:
    """As in CLIP."""
    encoder, scale = nn.Linear(8, 4), nn.Parameter(torch.zeros(()))
    encoder.register_parameter("scale", scale)

    def loss() -> Any:
        one = F.normalize(encoder(torch.randn(16, 8)), dim=1)
        other = F.normalize(encoder(torch.randn(16, 8)), dim=1)
        return F.cross_entropy(one @ other.T * scale.exp(), torch.arange(16))

    learn(record, encoder, loss)


@silent("score-scale")
def products_without_a_temperature(record: Record) -> None:
    """As in contrastive predictive coding."""
    match(record, lambda one, other: one @ other.T, normal=False)


@silent("score-scale")
def tanh_that_bounds_large_scores(record: Record) -> None:
    """As of a pointer network."""
    match(record, lambda one, other: 10 * torch.tanh(one @ other.T), normal=False)


@silent("score-scale")
def tanh_before_two_classes(record: Record) -> None:
    model = nn.Sequential(nn.Linear(4, 2), nn.Tanh())
    learn(record, model, lambda: F.cross_entropy(model(torch.randn(16, 4)), torch.arange(16) % 2))


@silent("score-scale")
def classes_with_a_temperature(record: Record) -> None:
    """As of a sharp student: a layer computes the scores, not a product of two results."""
    model = nn.Linear(4, 3)
    learn(
        record,
        model,
        lambda: F.cross_entropy(model(torch.randn(16, 4)) / 0.1, torch.arange(16) % 3),
    )


@says("compared-with-itself", "itself included", advice="-inf")
def similarities_with_their_diagonal(record: Record) -> None:
    def scores(one: Tensor, other: Tensor) -> Tensor:
        both = torch.cat((one, other))
        return both @ both.T / 0.1

    match(record, scores)


@says("compared-with-itself", "itself included")
def similarities_of_one_view(record: Record) -> None:
    match(record, lambda one, other: one @ one.T / 0.1)  # cause


@silent("compared-with-itself")
def similarities_without_their_diagonal(record: Record) -> None:
    def scores(one: Tensor, other: Tensor) -> Tensor:
        both = torch.cat((one, other))
        return (both @ both.T / 0.1).masked_fill(torch.eye(len(both), dtype=torch.bool), -1e9)

    match(record, scores)


@silent("compared-with-itself")
def similarities_less_a_large_diagonal(record: Record) -> None:
    match(record, lambda one, other: one @ one.T / 0.1 - 1e9 * torch.eye(len(one)))


@silent("compared-with-itself")
def attention_to_every_position(record: Record) -> None:
    """Its scores are a softmax in the middle of a model."""
    model = nn.Linear(8, 4)

    def loss() -> Any:
        x = model(torch.randn(16, 8))
        return ((x @ x.T).softmax(-1) @ x).square().mean()

    learn(record, model, loss)


class Denoiser(nn.Module):
    """A network that gets a noisy sample and its time."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.times = nn.Linear(8, 8), nn.Embedding(100, 8)

    def forward(self, x: Tensor, t: Tensor) -> Any:
        return self.layer(x) + self.times(t)


DATA = torch.linspace(-1, 1, 128).view(16, 8).cos()
ALPHA_BAR = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 100), 0)


def denoise(
    record: Record,
    mix: Callable[[Tensor, Tensor, Tensor], Tensor],
    draw: Callable[[Tensor], Tensor] = torch.randn_like,
    target: Callable[[Tensor, Tensor, Tensor], Tensor] = lambda data, noise, noisy: noise,
    error: Callable[[Tensor, Tensor], Tensor] = F.mse_loss,
) -> None:
    """Steps of a diffusion model with this mixture of data and noise, and this target."""
    model = Denoiser()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with record(model):
        for _ in range(2):
            data, t = DATA.clone(), torch.randint(100, (16,))
            noise = draw(data)
            noisy = mix(data, noise, ALPHA_BAR[t][:, None])
            step(optimizer, error(model(noisy, t), target(data, noise, noisy)))


def keep_variance(data: Tensor, noise: Tensor, share: Tensor) -> Tensor:
    return share.sqrt() * data + (1 - share).sqrt() * noise


@says("mismatched-noise", "did not get this noise", severity="warning")
def noise_that_is_drawn_again(record: Record) -> None:
    def mix(data: Tensor, noise: Tensor, share: Tensor) -> Tensor:
        return keep_variance(data, torch.randn_like(data), share)

    denoise(record, mix)


@says("mismatched-noise", "did not get this noise", severity="warning")
def noise_that_is_drawn_again_beside_an_absolute_error(record: Record) -> None:
    def mix(data: Tensor, noise: Tensor, share: Tensor) -> Tensor:
        return keep_variance(data, torch.randn_like(data), share)

    denoise(record, mix, error=F.l1_loss)


@says("mismatched-noise", "did not get this noise", severity="warning")
def velocity_from_other_noise(record: Record) -> None:
    denoise(
        record,
        lambda data, noise, share: share * data + (1 - share) * noise,
        target=lambda data, noise, noisy: torch.randn_like(data) - data,
    )


@says("mismatched-noise", "the noisy input of the network itself", severity="warning")
def input_for_a_target(record: Record) -> None:
    denoise(record, keep_variance, target=lambda data, noise, noisy: noisy)


@says("mismatched-noise", "the same for all samples", severity="warning")
def noise_of_one_sample(record: Record) -> None:
    denoise(
        record,
        keep_variance,
        draw=lambda data: torch.randn(1, 8),
        target=lambda data, noise, noisy: noise.expand(16, 8),
    )


@says("mismatched-noise", "uniform between 0 and 1", severity="warning")
def uniform_noise(record: Record) -> None:
    denoise(record, keep_variance, draw=torch.rand_like)


@says("mismatched-noise", "neither a**2 + b**2 = 1", severity="info")
def factor_without_a_square_root(record: Record) -> None:
    denoise(record, lambda data, noise, share: share.sqrt() * data + (1 - share) * noise)


def match_flow(record: Record, again: bool) -> None:
    """A step of flow matching, squared by hand; the network gets the time, or one drawn again."""
    field = nn.Linear(9, 8)

    def loss() -> Any:
        data, t = torch.rand(16, 8), torch.rand(16, 1)
        noise = torch.randn_like(data)
        noisy = torch.lerp(noise, data, t) if not again else (1 - t) * noise + t * data
        time = torch.rand(16, 1) if again else t
        return (field(torch.cat([noisy, time], 1)) - (data - noise)).square().mean()

    learn(record, field, loss)


@says("mismatched-noise", "gets a time that was drawn", severity="warning")
def time_that_is_drawn_again(record: Record) -> None:
    match_flow(record, again=True)


@silent("mismatched-noise")
def velocity_of_a_linear_path(record: Record) -> None:
    match_flow(record, again=False)


@silent("mismatched-noise")
def time_in_an_embedding(record: Record) -> None:
    """The network gets the product of the time and frequencies, and data that is drawn, too."""
    field = nn.Linear(16, 8)

    def loss() -> Any:
        data = torch.rand(16)[:, None].expand(16, 8) + 0.1
        t = torch.rand(16)
        noise = torch.randn_like(data)
        noisy = (1 - t[:, None]) * data + t[:, None] * noise
        time = (t[:, None] * torch.arange(8.0)[None]).cos()
        return (field(torch.cat([noisy, time], 1)) - (noise - data)).square().mean()

    learn(record, field, loss)


@silent("mismatched-noise")
def noise_of_a_diffusion(record: Record) -> None:
    denoise(record, keep_variance)


@silent("mismatched-noise")
def data_of_a_diffusion(record: Record) -> None:
    denoise(record, keep_variance, target=lambda data, noise, noisy: data)


@silent("mismatched-noise")
def noise_with_an_offset(record: Record) -> None:
    """The noise has a part that all positions share."""
    denoise(record, keep_variance, lambda data: torch.randn_like(data) + 0.1 * torch.randn(16, 1))


@silent("mismatched-noise")
def noise_in_a_part_of_the_input(record: Record) -> None:
    """A masked part keeps the data, as for inpainting."""

    def mix(data: Tensor, noise: Tensor, share: Tensor) -> Tensor:
        return torch.where(torch.rand(16, 8) < 0.5, keep_variance(data, noise, share), data)

    denoise(record, mix)


@silent("mismatched-noise")
def noisy_target_with_other_noise(record: Record) -> None:
    """As in Noise2Noise."""
    denoise(
        record,
        lambda data, noise, share: data + 0.1 * noise,
        target=lambda data, noise, noisy: data + 0.1 * torch.randn_like(data),
    )


@silent("mismatched-noise")
def noise_scaled_for_its_network(record: Record) -> None:
    """As of EDM: the mixture is divided by its own deviation, for data with a deviation of 0.5."""

    def mix(data: Tensor, noise: Tensor, share: Tensor) -> Tensor:
        deviation = ((1 - share) / share).sqrt()
        return (data + deviation * noise) / (0.25 + deviation**2).sqrt()

    denoise(record, mix)


@silent("mismatched-noise")
def regression_of_random_numbers(record: Record) -> None:
    """As in a small example: neither inputs nor targets are mixtures."""
    model = nn.Linear(8, 8)
    learn(record, model, lambda: F.mse_loss(model(torch.randn(16, 8)), torch.randn(16, 8)))


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
        return (slope - DATA).norm()

    learn(record, values, loss)


def distill(record: Record, given: float, wanted: float, weight: float = 1.0) -> None:
    """A step of a student, whose scores and those of its teacher are divided by these numbers."""
    teacher, student = nn.Linear(4, 3).requires_grad_(False), nn.Linear(4, 3)

    def loss() -> Any:
        x = torch.randn(16, 4)
        with torch.no_grad():
            target = F.softmax(teacher(x) / wanted, dim=-1)
        scores = student(x) / given if given != 1 else student(x)
        return weight * F.kl_div(scores.log_softmax(-1), target, reduction="batchmean")

    learn(record, student, loss)


@says(
    "unequal-temperatures", "log-probabilities is 1, and that of the target is 4", severity="info"
)
def temperature_of_the_teacher_alone(record: Record) -> None:
    distill(record, 1, 4)


@says(
    "unequal-temperatures",
    "log-probabilities is 1, and that of the target is 4",
    severity="warning",
)
def temperature_of_the_teacher_and_its_square(record: Record) -> None:
    distill(record, 1, 4, 16)


@says(
    "unequal-temperatures", "log-probabilities is 4, and that of the target is 1", severity="info"
)
def temperature_of_the_student_alone(record: Record) -> None:
    distill(record, 4, 1)


@says(
    "unequal-temperatures",
    "log-probabilities is 0.5, and that of the target is 2",
    severity="warning",
)
def temperature_that_multiplies_the_target(record: Record) -> None:
    model = nn.Linear(4, 3)

    def loss() -> Any:
        scores = model(torch.randn(16, 4))
        return F.cross_entropy(scores / 0.5, (scores.detach() * 0.5).softmax(-1))

    learn(record, model, loss)


@says("unequal-temperatures", "mul at", "log-probabilities is 0.1, and that of the target is 10")
def temperature_that_multiplies_the_target_of_a_product(record: Record) -> None:
    model = nn.Linear(4, 3)

    def loss() -> Any:
        scores = model(torch.randn(16, 4))
        targets = (scores.detach() * 0.1).softmax(-1)
        return (-targets * (scores / 0.1).log_softmax(-1)).sum(1).mean()

    learn(record, model, loss)


@silent("unequal-temperatures")
def entropy_of_soft_probabilities(record: Record) -> None:
    model = nn.Linear(4, 3)

    def loss() -> Any:
        scores = model(torch.randn(16, 4)) / 4
        return -(scores.softmax(-1) * scores.log_softmax(-1)).sum(1).mean()

    learn(record, model, loss)


@silent("unequal-temperatures")
def temperature_of_both(record: Record) -> None:
    distill(record, 4, 4, 16)


@silent("unequal-temperatures")
def sharp_targets(record: Record) -> None:
    """As in UDA and in DINO."""
    distill(record, 1, 0.4)


@silent("unequal-temperatures")
def sharper_targets_than_scores(record: Record) -> None:
    distill(record, 0.1, 0.04)


@silent("unequal-temperatures")
def smooth_targets(record: Record) -> None:
    """The targets are no softmax of scores."""
    model = nn.Linear(4, 3)
    targets = F.one_hot(torch.arange(16) % 3, 3) * 0.9 + 0.1 / 3
    learn(record, model, lambda: F.cross_entropy(model(torch.randn(16, 4)) / 4, targets))


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
