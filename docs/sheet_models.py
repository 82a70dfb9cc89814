"""The fifteen models that `docs.side_by_side` draws with several tools, and their inputs.

All tools get the same module. If a training step does more than call a model (MAML, a GAN, a
diffusion step), the module's forward is the whole step and returns the loss.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.support.models import MLP, gpt2, tokens
from tests.support.zoo import CharRNN, ResNet18, UNet, bert

Make = Callable[[], tuple[nn.Module, tuple[Any, ...]]]


class Mean(nn.Module):
    """The mean of the results of a few operations on one parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.arange(1.0, 4.0))

    def forward(self, shift: Tensor) -> Tensor:
        return ((self.x + shift) ** 2 + 3).mean()


class VAE(nn.Module):
    """A variational autoencoder; the loss has both terms."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(16, 32), nn.ReLU())
        self.mean, self.log_variance = nn.Linear(32, 4), nn.Linear(32, 4)
        self.decoder = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 16))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.encoder(x)
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        z = mean + torch.randn_like(mean) * (log_variance / 2).exp()
        divergence = (mean**2 + log_variance.exp() - 1 - log_variance).mean() / 2
        return F.mse_loss(self.decoder(z), x) + divergence


class GAN(nn.Module):
    """The losses of both players."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(4, 16), nn.LeakyReLU(0.2), nn.Linear(16, 8))
        self.critic = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))

    def forward(self, noise: Tensor, real: Tensor) -> Tensor:
        fake = self.generator(noise)
        critic_loss = F.softplus(-self.critic(real)) + F.softplus(self.critic(fake.detach()))
        return (critic_loss + F.softplus(-self.critic(fake))).mean()


class GraphConvolution(nn.Module):
    """A layer that adds up the features of neighbors."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        messages = self.linear(x)[source]
        return torch.zeros(len(x), messages.shape[1]).index_add(0, target, messages)


class GNN(nn.Module):
    """A network of two graph convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = GraphConvolution(6, 16), GraphConvolution(16, 3)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        return self.conv2(self.conv1(x, edges).relu(), edges)


class Cut(nn.Module):
    """A model whose encoder learns nothing, because the encoder's result is detached."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16))
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x).detach().relu())


class MAML(nn.Module):
    """MAML: three steps of an inner loop, then the loss on the query samples."""

    def __init__(self) -> None:
        super().__init__()
        self.net = MLP(1, 32, 1)

    def forward(
        self, support_x: Tensor, support_y: Tensor, query_x: Tensor, query_y: Tensor
    ) -> Tensor:
        fast: dict[str, Tensor] = dict(self.net.named_parameters())
        for _ in range(3):
            inner = F.mse_loss(torch.func.functional_call(self.net, fast, (support_x,)), support_y)
            gradients = torch.autograd.grad(inner, list(fast.values()), create_graph=True)
            fast = {n: w - 0.1 * g for (n, w), g in zip(fast.items(), gradients, strict=True)}
        return F.mse_loss(torch.func.functional_call(self.net, fast, (query_x,)), query_y)


class Expert(nn.Module):
    """One of the experts."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class MoE(nn.Module):
    """A mixture of experts: each row goes to two of four experts."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embed, self.router = nn.Linear(8, width), nn.Linear(width, 4)
        self.experts = nn.ModuleList(Expert(width) for _ in range(4))
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        weights, chosen = torch.topk(self.router(x).softmax(-1), 2)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            rows, slot = torch.where(chosen == i)
            out = out.index_add(0, rows, expert(x[rows]) * weights[rows, slot, None])
        return self.head(x + out)


class Siamese(nn.Module):
    """One encoder for three inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 8))

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        codes = self.encoder(anchor), self.encoder(positive), self.encoder(negative)
        return F.triplet_margin_loss(*codes)


class Denoiser(nn.Module):
    """A network that predicts the noise in a sample."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Embedding(100, 32)
        self.inp, self.mid, self.out = nn.Linear(8, 32), nn.Linear(32, 32), nn.Linear(32, 8)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.out(F.silu(self.mid(F.silu(self.inp(x) + self.time(t)))))


class DDPM(nn.Module):
    """A training step of a diffusion model."""

    def __init__(self) -> None:
        super().__init__()
        self.denoiser = Denoiser()

    def forward(self, sample: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        kept = (1 - torch.linspace(1e-4, 0.02, 100)).cumprod(0)[t][:, None]
        noisy = kept.sqrt() * sample + (1 - kept).sqrt() * noise
        return F.mse_loss(self.denoiser(noisy, t), noise)


def _rows(*shape: int) -> Tensor:
    return torch.randn(*shape)


MODELS: dict[str, Make] = {
    "mean": lambda: (Mean(), (torch.tensor(2.0),)),
    "MLP": lambda: (MLP(), (_rows(4, 4),)),
    "ResNet-18": lambda: (ResNet18(), (_rows(2, 3, 32, 32),)),
    "BERT": lambda: (bert(), (tokens(),)),
    "VAE": lambda: (VAE(), (_rows(4, 16),)),
    "GAN": lambda: (GAN(), (_rows(8, 4), _rows(8, 8))),
    "GNN": lambda: (GNN(), (_rows(5, 6), torch.randint(0, 5, (2, 12)))),
    "a cut": lambda: (Cut(), (_rows(4, 8),)),
    "MAML": lambda: (MAML(), tuple(_rows(8, 1) for _ in range(4))),
    "MoE": lambda: (MoE(), (_rows(32, 8),)),
    "U-Net": lambda: (UNet(), (_rows(2, 3, 32, 32),)),
    "LSTM cell, 60 steps": lambda: (CharRNN(60), (_rows(2, 4),)),
    "siamese": lambda: (Siamese(), tuple(_rows(16, 10) for _ in range(3))),
    "DDPM": lambda: (DDPM(), (_rows(16, 8), _rows(16, 8), torch.randint(0, 100, (16,)))),
    "GPT-2": lambda: (gpt2(12), (tokens(),)),
}
