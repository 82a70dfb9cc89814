"""Noise that a denoiser predicts, and that is not in its input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.findings.corpus.cases import Record, step
from tests.findings.mistakes.formulas import learn
from tests.findings.mistakes.rows import says, silent


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
