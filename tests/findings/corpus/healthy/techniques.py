"""Healthy trainings: frozen, shared, checkpointed, quantized or weighted parts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize
from torch.optim import SGD, Adam, AdamW
from torch.utils.checkpoint import checkpoint

from graphviz_torch import simulate_accelerator
from tests.findings.corpus.cases import Record, step
from tests.findings.corpus.models import batch, mlp


def frozen_batch_norm_while_the_rest_trains(record: Record) -> None:
    backbone = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
    head = nn.Sequential(nn.Dropout(0.1), nn.Linear(8, 2))
    model = nn.ModuleDict({"backbone": backbone, "head": head}).train()
    backbone[1].eval().requires_grad_(False)
    optimizer = SGD([p for p in model.parameters() if p.requires_grad], lr=0.01)
    with record(model):
        for _ in range(2):
            features = backbone(torch.randn(4, 3, 8, 8)).mean((2, 3))
            step(optimizer, F.cross_entropy(head(features), torch.tensor([0, 1, 1, 0])))


def linear_probe_on_frozen_features(record: Record) -> None:
    backbone = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU()).eval()
    backbone.requires_grad_(False)
    head = nn.Linear(16, 3)
    optimizer = SGD(head.parameters(), lr=0.1)
    with record(nn.ModuleDict({"backbone": backbone, "head": head})):
        for _ in range(2):
            x, y = batch()
            with torch.no_grad():
                features = backbone(x)
            step(optimizer, F.cross_entropy(head(features), y))


def low_rank_adapters(record: Record) -> None:
    class Adapted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base = nn.Linear(6, 3).requires_grad_(False)
            self.A, self.B = nn.Parameter(torch.randn(2, 6)), nn.Parameter(torch.zeros(3, 2))

        def forward(self, x: Tensor) -> Tensor:
            return self.base(x) + x @ self.A.T @ self.B.T

    model = Adapted()
    optimizer = AdamW([model.A, model.B])
    with record(model):
        for _ in range(2):
            x, y = batch()
            step(optimizer, F.cross_entropy(model(x), y))


def gradient_checkpointing(record: Record) -> None:
    blocks = nn.ModuleList([nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(3)])
    head = nn.Linear(6, 3)
    optimizer = Adam([*blocks.parameters(), *head.parameters()])
    with record(nn.ModuleList([blocks, head])):
        x, y = batch()
        for block in blocks:
            x = checkpoint(block, x, use_reentrant=False)
        step(optimizer, F.cross_entropy(head(x), y))


def several_tasks_one_of_them_at_a_time(record: Record) -> None:
    trunk = nn.Linear(6, 8)
    heads = nn.ModuleDict({"age": nn.Linear(8, 1), "kind": nn.Linear(8, 3)})
    optimizer = Adam([*trunk.parameters(), *heads.parameters()])
    with record(nn.ModuleDict({"trunk": trunk, "heads": heads})):
        for _ in range(2):
            x, y = batch()
            h = trunk(x).relu()
            loss = F.cross_entropy(heads["kind"](h), y)
            loss = loss + 0.5 * F.mse_loss(heads["age"](h).squeeze(1), torch.rand(16))
            step(optimizer, loss)


def learned_weights_of_the_losses(record: Record) -> None:
    model, log_vars = mlp(6, 4), nn.Parameter(torch.zeros(2))
    optimizer = Adam([*model.parameters(), log_vars])
    with record(model):
        for _ in range(2):
            x, y = batch()
            out = model(x)
            losses = torch.stack([F.cross_entropy(out[:, :3], y), out[:, 3].square().mean()])
            step(optimizer, (losses * torch.exp(-log_vars) + log_vars).sum())


def weights_of_tasks_from_gradients_of_their_features(record: Record) -> None:
    body, heads = nn.Sequential(nn.Linear(6, 16), nn.ReLU()), nn.ModuleList([mlp(16, 1)] * 2)
    weights = nn.Parameter(torch.ones(2))
    optimizer = Adam([*body.parameters(), *heads.parameters()], lr=1e-3)
    balance = Adam([weights], lr=1e-2)
    first = None
    with record(nn.ModuleList([body, heads])):
        for _ in range(3):
            features = body(torch.randn(16, 6))
            losses = torch.stack(
                [
                    F.mse_loss(head(features), torch.randn(16, 1) * 10**i)
                    for i, head in enumerate(heads)
                ]
            )
            first = losses.detach() if first is None else first
            norms = torch.stack(
                [
                    weight * torch.autograd.grad(loss, features, retain_graph=True)[0].norm()
                    for weight, loss in zip(weights, losses, strict=True)
                ]
            )
            rate = losses.detach() / first
            target = (norms.mean() * (rate / rate.mean()) ** 1.5).detach()
            step(balance, (norms - target).abs().sum())
            step(optimizer, (weights.detach() * losses).sum())
            with torch.no_grad():
                weights *= 2 / weights.sum()


def weights_of_tasks_from_gradients_of_the_last_shared_layer(record: Record) -> None:
    model = nn.ModuleDict({"body": mlp(6, 16), "a": nn.Linear(16, 1), "b": nn.Linear(16, 1)})
    weights = torch.ones(2, requires_grad=True)
    optimizer, balance = Adam(model.parameters(), lr=1e-3), SGD([weights], lr=1e-2)
    first = None
    with record(model):
        for _ in range(3):
            hidden = model["body"](torch.randn(16, 6)).relu()
            results = model["a"](hidden), model["b"](hidden)
            losses = torch.stack([F.mse_loss(y, torch.full((16, 1), 5.0)) for y in results])
            first = losses.detach() if first is None else first
            optimizer.zero_grad()
            (weights * losses).sum().backward(retain_graph=True)
            shared = model["body"][2].weight
            norms = torch.stack(
                [
                    torch.autograd.grad(loss, shared, retain_graph=True, create_graph=True)[
                        0
                    ].norm()
                    for loss in weights * losses
                ]
            )
            rate = losses.detach() / first
            target = norms.mean().detach() * (rate / rate.mean()) ** 1.5
            weights.grad = torch.autograd.grad((norms - target).abs().sum(), weights)[0]
            optimizer.step()
            balance.step()
            weights.data *= 2 / weights.data.sum()


def spectral_norm_and_weight_norm(record: Record) -> None:
    norm = nn.utils.parametrizations
    model = nn.Sequential(norm.spectral_norm(nn.Linear(6, 8)), nn.ReLU())
    model.append(norm.weight_norm(nn.Linear(8, 3)))
    optimizer = Adam(model.parameters())
    with record(model):
        for _ in range(2):
            x, y = batch()
            step(optimizer, F.cross_entropy(model(x), y))


def symmetric_weight_by_parametrization(record: Record) -> None:
    class Symmetric(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.triu() + x.triu(1).transpose(-1, -2)

    layer = nn.Linear(6, 6)
    parametrize.register_parametrization(layer, "weight", Symmetric())
    optimizer = SGD(layer.parameters(), lr=0.1)
    with record(layer):
        layer(torch.randn(8, 6)).square().mean().backward()
        optimizer.step()


def hooks_that_watch_and_scale_gradients(record: Record) -> None:
    model, seen = mlp(), []
    model[0].register_forward_hook(lambda module, x, y: seen.append(y.detach().mean()))
    model[2].weight.register_hook(lambda gradient: gradient * 0.5)
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for _ in range(2):
            x, y = batch()
            step(optimizer, F.cross_entropy(model(x), y))


def quantization_with_a_straight_through_estimator(record: Record) -> None:
    class Quantized(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            scale = self.weight.detach().abs().max() / 7
            rounded = (self.weight / scale).round() * scale
            weight = self.weight + (rounded - self.weight).detach()
            return F.linear(x, weight, self.bias)

    model = nn.Sequential(Quantized(6, 16), nn.ReLU(), Quantized(16, 3))
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for _ in range(2):
            x, y = batch()
            step(optimizer, F.cross_entropy(model(x), y))


def penalties_on_weights_and_activations(record: Record) -> None:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for _ in range(2):
            x, y = batch()
            hidden = model[1](model[0](x))
            loss = F.cross_entropy(model[2](hidden), y) + 1e-3 * hidden.abs().mean()
            loss = loss + 1e-4 * sum(p.square().sum() for p in model.parameters())
            step(optimizer, loss)


def loss_over_few_masked_positions(record: Record) -> None:
    model = mlp(6, 6)
    optimizer = Adam(model.parameters())
    with record(model):
        for _ in range(2):
            x = torch.randn(16, 6)
            mask = torch.rand(16, 6) < 0.3
            filled = model(x.masked_fill(mask, 0.0))
            step(optimizer, ((filled - x).square() * mask).sum() / mask.sum().clamp(min=1))


def class_weights_and_label_smoothing(record: Record) -> None:
    model = mlp()
    criterion = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5]), label_smoothing=0.1)
    optimizer = Adam(model.parameters())
    with record(model):
        x, y = batch()
        mixed = 0.7 * x + 0.3 * x.flip(0)
        out = model(mixed)
        step(optimizer, 0.7 * criterion(out, y) + 0.3 * criterion(out, y.flip(0)))


def pairwise_distances_on_purpose(record: Record) -> None:
    embed = nn.Linear(6, 1)
    optimizer = Adam(embed.parameters())
    with record(embed):
        score = embed(torch.randn(12, 6)).squeeze(1)
        target = torch.randn(12)
        differences = score[:, None] - score[None, :]
        ranks = torch.sign(target.unsqueeze(1) - target.unsqueeze(0))
        step(optimizer, F.softplus(-differences * ranks).mean())


def model_moved_to_its_device_in_the_first_recorded_step(record: Record) -> None:
    with simulate_accelerator() as (device,), record():
        layers = [nn.Sequential(nn.Linear(512, 512), nn.LayerNorm(512)) for _ in range(10)]
        model = nn.Sequential(*layers, nn.Linear(512, 2)).to(device)
        optimizer = AdamW(model.parameters())
        for _ in range(3):
            x, y = torch.randn(8, 512).to(device), torch.randint(0, 2, (8,)).to(device)
            step(optimizer, F.cross_entropy(model(x), y))


def saved_activations_offloaded(record: Record) -> None:
    with simulate_accelerator() as (device,):
        model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 5)).to(device)
        model[2].requires_grad_(False)  # the same is put away in each step
        optimizer = Adam(model[0].parameters())
        with record(model):
            for _ in range(3):
                x, y = torch.randn(8, 64).to(device), torch.randint(0, 5, (8,)).to(device)
                with torch.autograd.graph.save_on_cpu():
                    out = model(x)
                step(optimizer, F.cross_entropy(out, y))


def gradients_that_lie_where_backward_writes_them(record: Record) -> None:
    """As those of `torch.cuda.make_graphed_callables` do: `grad` is the memory that is written."""
    model = nn.Linear(6, 3, bias=False)
    written = torch.zeros(3, 6)

    class Graphed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x @ weight.t()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Any:
            (x,) = ctx.saved_tensors
            written.copy_(gradient.t() @ x)
            return None, written.detach()

    def train() -> None:
        x, y = batch()
        optimizer.zero_grad(set_to_none=False)
        F.cross_entropy(Graphed.apply(x, model.weight), y).backward()
        optimizer.step()

    optimizer = SGD(model.parameters(), lr=0.1)
    train()  # the first gradient becomes `grad`
    with record(model):
        for _ in range(2):
            train()
