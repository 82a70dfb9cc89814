"""Programs for advice on values, axes, and the roles of tensors."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD

from tests.findings.advice.rows import follows, two
from tests.findings.corpus.cases import Record, step
from tests.findings.corpus.models import mlp
from tests.findings.mistakes.axes import OwnAttention
from tests.support.recorded import tower

CLASSES = torch.arange(8) % 3


def normed() -> nn.Module:
    return nn.Sequential(nn.BatchNorm1d(64), nn.ReLU())


@follows(
    "vanishing-gradient",
    "normalization, ReLU or GELU instead of sigmoid",
    "0.weight",
    same_loss=False,
)
def deep_stack_of_sigmoids(record: Record, followed: bool) -> Tensor:
    model = tower(12, normed if followed else nn.Sigmoid)
    with record(model):
        loss = F.cross_entropy(model(torch.randn(32, 64)), torch.arange(32) % 4)
        loss.backward()
    return loss


@follows("exploding-gradient", "add normalization", "0.weight", same_loss=False)
def weights_that_are_too_large(record: Record, followed: bool) -> Tensor:
    model = tower(20, normed if followed else nn.ReLU, gain=2.0)
    with record(model):
        loss = F.cross_entropy(model(torch.randn(32, 64)), torch.arange(32) % 4)
        loss.backward()
    return loss


@follows("dead-relu", "check the bias", "0.weight", same_loss=False)
def bias_far_below_zero(record: Record, followed: bool) -> Tensor:
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 2))
    nn.init.constant_(model[0].bias[: 0 if followed else 62].detach(), -50)
    with record(model):
        loss = F.cross_entropy(model(torch.randn(64, 8)), torch.arange(64) % 2)
        loss.backward()
    return loss


@follows("dead-relu", "remove it", "0.weight", "2.weight", same_loss=False)
def relu_on_the_output(record: Record, followed: bool) -> Tensor:
    model = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 1))
    nn.init.constant_(model[2].bias, -5)
    with record(model):
        out = model(torch.randn(256, 3))
        out = out if followed else out.relu()
        loss = F.mse_loss(out.squeeze(1), -torch.rand(256))
        loss.backward()
    return loss


@follows("nonfinite-value", "Clamp its input to a minimum above 0", "weight", same_loss=False)
def logarithm_of_zero(record: Record, followed: bool) -> Tensor:
    model = nn.Linear(6, 3)
    with record(model):
        p = model(torch.randn(8, 6)).relu()
        loss = -(p.clamp(min=1e-6) if followed else p).log().mean()
        loss.backward()
    return loss


@follows("unintended-float64", "torch.as_tensor(array, dtype=torch.float32)", "weight")
def array_of_doubles(record: Record, followed: bool) -> Tensor:
    model = nn.Linear(6, 3)
    with record(model):
        scale = torch.linspace(1, 2, 3, dtype=torch.float64).numpy()
        given = torch.as_tensor(scale, dtype=torch.float32 if followed else None)
        loss = (model(torch.randn(8, 6)) * given).square().mean()
        loss.backward()
    return loss


@follows("view-retains-storage", "Call clone() on the slice", "body.weight")
def slice_of_a_large_tensor(record: Record, followed: bool) -> Tensor:
    model = two(nn.Linear(2, 8), nn.Linear(8, 3))
    with record(model):
        h = model["body"](torch.randn(100_000, 2))[:8]
        loss = F.cross_entropy(model["head"](h.clone() if followed else h), CLASSES)
        loss.backward()
    return loss


@follows("zero-second-derivative", "Use a smooth activation", same_loss=False)
def second_derivative_of_a_relu(record: Record, followed: bool) -> Tensor:
    model = nn.Sequential(nn.Linear(1, 16), nn.Tanh() if followed else nn.ReLU(), nn.Linear(16, 1))
    with record(model):
        x = torch.linspace(0, 1, 20)[:, None].requires_grad_()
        (first,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
        loss = (second + torch.sin(x)).square().mean() + model(x).square().mean()
        loss.backward()
    return loss


class Attention(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(6, 8) for _ in range(3))
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.q(x), self.k(x), self.v(x)
        result: Tensor = (q @ k.transpose(1, 2)).softmax(self.dim) @ v
        return result


@follows("normalization-axis", "usually dim=-1", "body.q.weight", same_loss=False)
def weights_normalised_over_queries(record: Record, followed: bool) -> Tensor:
    model = two(Attention(-1 if followed else 1), nn.Linear(8, 3))
    with record(model):
        h = model["body"](torch.randn(8, 5, 6))
        loss = F.cross_entropy(model["head"](h.mean(1)), CLASSES)
        loss.backward()
    return loss


@follows("normalization-axis", "Pass dim=-1", "body.weight", same_loss=False)
def vectors_normalised_over_positions(record: Record, followed: bool) -> Tensor:
    model = two(nn.Linear(6, 7), nn.Linear(25, 3))
    with record(model):
        h = F.normalize(model["body"](torch.randn(8, 5, 6)), dim=-1 if followed else 1)
        loss = F.cross_entropy(model["head"]((h @ h.transpose(1, 2)).flatten(1)), CLASSES)
        loss.backward()
    return loss


@follows("view-across-axes", "Move the axes first", "body.weight", same_loss=False)
def view_in_place_of_a_permute(record: Record, followed: bool) -> Tensor:
    model = two(nn.Linear(6, 4), nn.Linear(4, 3))
    with record(model):
        h = model["body"](torch.randn(8, 5, 6))  # (batch, time, features)
        h = h.transpose(0, 1) if followed else h.view(5, 8, 4)
        loss = F.cross_entropy(model["head"](h.mean(0)), CLASSES)
        loss.backward()
    return loss


@follows("view-across-axes", "Move the axes first", "body.weight", same_loss=False)
def view_of_the_data_in_place_of_a_permute(record: Record, followed: bool) -> Tensor:
    model = two(nn.Conv2d(3, 4, 3), nn.Linear(4, 3))
    with record(model):
        images = torch.randn(8, 6, 6, 3)  # channels last
        images = images.permute(0, 3, 1, 2) if followed else images.reshape(8, 3, 6, 6)
        loss = F.cross_entropy(model["head"](model["body"](images).mean((2, 3))), CLASSES)
        loss.backward()
    return loss


@follows("normalization-axis", "usually dim=1", "body.weight", "gate.weight", same_loss=False)
def gate_over_the_samples(record: Record, followed: bool) -> Tensor:
    model = nn.ModuleDict({"body": nn.Linear(6, 8), "gate": nn.Linear(8, 8)})
    model["head"] = nn.Linear(8, 3)
    with record(model):
        h = model["body"](torch.randn(8, 6)).tanh()
        h = h * model["gate"](h).softmax(1 if followed else 0)
        loss = F.cross_entropy(model["head"](h), CLASSES)
        loss.backward()
    return loss


@follows("batch-taken-for-time", "batch_first=True", "body.weight_ih_l0", same_loss=False)
def recurrent_layer_along_the_batch(record: Record, followed: bool) -> Tensor:
    model = two(nn.LSTM(6, 8, batch_first=followed), nn.Linear(8, 3))
    with record(model):
        out, _ = model["body"](torch.randn(8, 5, 6))
        loss = F.cross_entropy(model["head"](out[:, -1]), CLASSES)
        loss.backward()
    return loss


@follows("batch-taken-for-time", "without batch_first", "body.weight_ih_l0", same_loss=False)
def recurrent_layer_made_for_the_batch_first(record: Record, followed: bool) -> Tensor:
    model = two(nn.LSTM(6, 8, batch_first=not followed), nn.Linear(8, 3))
    with record(model):
        out, _ = model["body"](torch.randn(5, 8, 6))
        loss = F.cross_entropy(model["head"](out[-1]), CLASSES)
        loss.backward()
    return loss


@follows("batch-taken-for-time", "Swap the first two axes", same_loss=False)
def attention_without_batch_first(record: Record, followed: bool) -> Tensor:
    model = two(OwnAttention(), nn.Linear(8, 3))
    with record(model):
        x = torch.randn(8, 5, 8)
        y = model["body"](x.transpose(0, 1)).transpose(0, 1) if followed else model["body"](x)
        loss = F.cross_entropy(model["head"](y.mean(1)), CLASSES)
        loss.backward()
    return loss


@follows("target-not-detached", "or compute it under torch.no_grad()", "0.weight")
def target_that_learns(record: Record, followed: bool) -> Tensor:
    model = mlp(4, 3)
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        q = model(torch.randn(8, 4)).gather(1, CLASSES[:, None]).squeeze(1)
        with torch.set_grad_enabled(not followed):
            target = torch.randn(8) + 0.9 * model(torch.randn(8, 4)).max(1)[0]
        loss = F.mse_loss(q, target)
        step(optimizer, loss)
    return loss


@follows("undetached-advantage", "as the weight of the log_prob", "policy.weight", "value.weight")
def advantage_with_history(record: Record, followed: bool) -> Tensor:
    policy, value = nn.Linear(4, 3), nn.Linear(4, 1)
    model = nn.ModuleDict({"policy": policy, "value": value})
    with record(model):
        x = torch.randn(8, 4)
        log_prob = policy(x).log_softmax(1).gather(1, CLASSES[:, None]).squeeze(1)
        advantage = torch.randn(8) - value(x).squeeze(1)
        weight = advantage.detach() if followed else advantage
        loss = -(log_prob * weight).mean() + advantage.square().mean()
        loss.backward()
    return loss
