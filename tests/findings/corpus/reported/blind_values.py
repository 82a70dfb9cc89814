"""Bugs from public threads, written before the rules: values, losses, shapes, devices."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam

from graphviz_torch import simulate_accelerator
from tests.findings.corpus.cases import Record, reported

GITHUB = "https://github.com/"


@reported(
    GITHUB + "adambielski/siamese-triplet/issues/18",
    cause="Two equal samples have the distance 0, where sqrt has no slope.",
    words=r"sqrt|pow",
)
def contrastive_distance_of_two_equal_samples(record: Record) -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.PReLU(), nn.Linear(8, 2))
    optimizer = Adam(net.parameters(), lr=1e-3)
    with record(net, gradients=True):
        one, two = torch.randn(8, 4), torch.randn(8, 4)
        two[3] = one[3]
        same = torch.randint(2, (8,)).float()
        distances = (net(two) - net(one)).pow(2).sum(1)
        losses = 0.5 * (
            same * distances + (1 - same) * F.relu(1.0 - distances.sqrt()).pow(2)  # cause
        )
        optimizer.zero_grad()
        losses.mean().backward()
        optimizer.step()


@reported(
    GITHUB + "ronghuaiyang/arcface-pytorch/issues/91",
    cause="The square root of 1 - cosine**2 has an infinite slope where the cosine is 1.",
    words=r"sqrt",
)
def sine_of_an_angle_of_zero(record: Record) -> None:
    body, weight = nn.Linear(4, 3), nn.Parameter(torch.eye(3))
    optimizer = SGD([*body.parameters(), weight], lr=0.1)
    nn.init.zeros_(body.weight)
    with torch.no_grad():
        body.bias.copy_(torch.tensor([2.0, 0.0, 0.0]))
    with record(body, gradients=True):
        feature, label = body(torch.randn(8, 4)), torch.randint(3, (8,))
        cosine = F.linear(F.normalize(feature), F.normalize(weight))
        sine = torch.sqrt((1.0 - torch.pow(cosine, 2)).clamp(0, 1))  # cause
        phi = cosine * 0.87 - sine * 0.47
        hot = F.one_hot(label, 3)
        loss = F.cross_entropy(30 * (hot * phi + (1 - hot) * cosine), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@reported(
    GITHUB + "sunwuzhou03/reinforcement-learning-lab/issues/1",
    cause="log_prob has one column for each action: the target is (64, 4), and the value (64, 1).",
    words=r"broadcast|\[64, 4\]",
)
def target_with_a_column_for_each_action(record: Record) -> None:
    actor, critic = nn.Linear(6, 8), nn.Linear(10, 1)
    optimizer = Adam(critic.parameters(), lr=1e-3)
    with record(nn.ModuleDict({"actor": actor, "critic": critic})):
        states, actions, rewards = torch.randn(64, 6), torch.randn(64, 4), torch.randn(64, 1)
        with torch.no_grad():
            mu, std = actor(states).chunk(2, 1)
            dist = torch.distributions.Normal(mu, F.softplus(std))
            sample = dist.rsample()
            log_prob = dist.log_prob(sample)  # cause
            value = critic(torch.cat([states, sample.tanh()], 1)) - 0.1 * log_prob  # cause
            td_target = rewards + 0.99 * value
        q = critic(torch.cat([states, actions], 1))
        loss = F.mse_loss(q, td_target.detach())  # cause
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@reported(
    GITHUB + "pai4451/ML2021/issues/2",
    cause="The losses are summed up with their graphs.",
    words=r"history|graphs? of earlier",
)
def train_loss_summed_with_its_graph(record: Record) -> None:
    class Output:
        def __init__(self, loss: Tensor) -> None:
            self.loss = loss

    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    optimizer = Adam(model.parameters(), lr=1e-3)
    with record(model):
        train_loss: Any = 0
        for _ in range(4):
            x, y = torch.randn(16, 6), torch.randint(3, (16,))
            output = Output(F.cross_entropy(model(x), y))  # cause
            train_loss += output.loss  # cause
            output.loss.backward()
            optimizer.step()
            optimizer.zero_grad()


@reported(
    GITHUB + "YXNTU/GeneralDyG/issues/6",
    cause="The model ends in a sigmoid, and the loss applies another.",
    words=r"probabilities|sigmoid",
)
def sigmoid_in_the_model_and_in_the_loss(record: Record) -> None:
    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
            self.classifier, self.sigmoid = nn.Linear(8, 1), nn.Sigmoid()

        def forward(self, x: Tensor) -> Tensor:
            logits = self.classifier(self.encoder(x).mean(1))
            logits = self.sigmoid(logits).squeeze()  # cause
            return logits  # type: ignore[no-any-return]

    def criterion(logits: Tensor, labels: Tensor) -> Tensor:
        losses = F.binary_cross_entropy_with_logits(logits, labels, reduction="none")  # cause
        return torch.mean(losses)

    model = Classifier()
    optimizer = Adam(model.parameters(), lr=1e-3)
    with record(model):
        loss = criterion(model(torch.randn(8, 5, 8)), torch.randint(2, (8,)).float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@reported(
    GITHUB + "mks0601/ExAvatar_RELEASE/issues/76",
    cause="The .grad of a tensor that is not a leaf is read.",
    words=r"not a leaf",
    raises="NoneType",
)
def gradient_of_projected_points(record: Record) -> None:
    points = nn.Parameter(torch.randn(20, 3))
    optimizer = Adam([points], lr=1e-2)
    with record():
        stats: dict[str, Any] = {"mean_2d": []}
        for _ in range(2):
            mean_2d = points @ torch.randn(3, 2)  # cause
            stats["mean_2d"].append(mean_2d)
        loss = sum(x.square().mean() for x in stats["mean_2d"])
        optimizer.zero_grad()
        loss.backward()
        stats["grad"] = torch.stack([x.grad.detach() for x in stats["mean_2d"]])  # cause
        optimizer.step()


@reported(
    GITHUB + "tatp22/multidim-positional-encoding/issues/33",
    cause="The encoding is made on the CPU and added to an embedding on the device.",
    words=r"on cpu|device",
    raises="device",
)
def encoding_made_on_the_cpu(record: Record) -> None:
    class Summer(nn.Module):
        def __init__(self, channels: int) -> None:
            super().__init__()
            frequencies = 1.0 / (10000 ** (torch.arange(0, channels, 2) / channels))
            self.register_buffer("inv_freq", frequencies)

        def penc(self, tensor: Tensor) -> Tensor:
            angles = torch.arange(tensor.shape[1])[:, None] * torch.ones(tensor.shape[2] // 2)
            return torch.cat([angles.sin(), angles.cos()], -1)[None]  # cause

        def forward(self, tensor: Tensor) -> Tensor:
            penc = self.penc(tensor)
            return tensor + penc  # cause

    with simulate_accelerator() as (device,):
        model = nn.Sequential(nn.Linear(6, 8), Summer(8), nn.Linear(8, 2)).to(device)
        optimizer = SGD(model.parameters(), lr=0.1)
        with record(model):
            loss = model(torch.randn(1, 5, 6).to(device)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@reported(
    GITHUB + "facebookresearch/encodec/issues/25",
    cause="The residual is taken of the straight-through result: its gradient cancels to zero.",
    words=r"residual|zero|cancel",
)
def residual_of_a_straight_through_result(record: Record) -> None:
    class Quantizer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("embed", torch.randn(16, 4))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            embed: Any = self.embed
            quantize = embed[torch.cdist(x, embed).argmin(1)]
            commit = F.mse_loss(quantize.detach(), x)
            return x + (quantize - x).detach(), commit

    encoder, decoder = nn.Linear(6, 4), nn.Linear(4, 6)
    layers = nn.ModuleList([Quantizer(), Quantizer()])
    model = nn.ModuleDict({"encoder": encoder, "decoder": decoder, "layers": layers})
    optimizer = Adam(model.parameters(), lr=1e-3)
    with record(model, gradients=True):
        x = torch.randn(32, 6)
        residual = encoder(x)
        quantized_out, losses = torch.zeros(()), []
        for layer in layers:
            quantized, loss = layer(residual)
            residual = residual - quantized  # cause
            quantized_out = quantized_out + quantized
            losses.append(loss)
        total = F.mse_loss(decoder(quantized_out), x) + torch.stack(losses).mean()
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
