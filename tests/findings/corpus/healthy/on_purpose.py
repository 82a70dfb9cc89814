"""Healthy trainings that do on purpose what is a mistake in other programs.

Each has a counterpart among the reported bugs: the same operation, used by mistake. None of them
may have errors or warnings.
"""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.distributions import Bernoulli, Normal
from torch.nn import functional as F
from torch.optim import SGD, Adam

from tests.findings.corpus.cases import Record, step
from tests.findings.corpus.models import mlp

# --- cuts and leaves -----------------------------------------------------------------------------


def split_learning_with_a_leaf_between(record: Record) -> None:
    client, server = mlp(6, 8), mlp(8, 3)
    opt_client, opt_server = SGD(client.parameters(), lr=0.1), SGD(server.parameters(), lr=0.1)
    with record(nn.ModuleDict({"client": client, "server": server})):
        for _ in range(2):
            features = client(torch.randn(8, 6))
            received = features.detach().requires_grad_()
            opt_client.zero_grad()
            opt_server.zero_grad()
            F.cross_entropy(server(received), torch.randint(3, (8,))).backward()
            features.backward(received.grad)
            opt_client.step()
            opt_server.step()


def saliency_of_the_inputs(record: Record) -> None:
    model = mlp(6, 3).eval()
    with record(model):
        x = torch.randn(4, 6, requires_grad=True)
        score = model(x).max(1).values.sum()
        (gradient,) = torch.autograd.grad(score, x)
        gradient.abs().amax(1)


def target_network_behind_detach(record: Record) -> None:
    online = mlp(4, 3)
    target = copy.deepcopy(online)
    optimizer = Adam(online.parameters())
    with record(online):
        for _ in range(2):
            q = online(torch.randn(8, 4)).gather(1, torch.randint(3, (8, 1))).squeeze(1)
            best = target(torch.randn(8, 4)).max(1)[0].detach()
            step(optimizer, F.smooth_l1_loss(q, torch.randn(8) + 0.99 * best))


def perceptual_loss_with_frozen_features(record: Record) -> None:
    model = nn.Conv2d(3, 3, 3, padding=1)
    features = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)).eval()
    features.requires_grad_(False)
    optimizer = Adam(model.parameters())
    with record(model):
        for _ in range(2):
            x, y = torch.randn(2, 3, 10, 10), torch.randn(2, 3, 10, 10)
            out = model(x)
            step(
                optimizer, F.l1_loss(out, y) + 0.1 * F.mse_loss(features(out), features(y).detach())
            )


def attention_weights_kept_for_a_picture(record: Record) -> None:
    query, value, head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 2)
    model, pictures = nn.ModuleDict({"query": query, "value": value, "head": head}), []
    optimizer = Adam(model.parameters())
    with record(model):
        for _ in range(2):
            x = torch.randn(4, 5, 6)
            weights = (query(x) @ x.transpose(1, 2)).softmax(-1)
            pictures.append(weights.detach().cpu().numpy().mean(0))
            logits = head((weights @ value(x)).mean(1))
            F.cross_entropy(logits, torch.tensor([0, 1, 0, 1])).backward()
            optimizer.step()
            optimizer.zero_grad()


def noise_sampled_for_the_inputs(record: Record) -> None:
    model = mlp(6, 6)
    optimizer = Adam(model.parameters())
    with record(model):
        for _ in range(2):
            x = torch.rand(8, 6) * 4
            noisy = torch.poisson(x) + torch.normal(0.0, 0.1, (8, 6))
            keep = Bernoulli(0.8).sample((8, 6))
            step(optimizer, F.mse_loss(model(noisy * keep), x))


def learned_noise_with_rsample(record: Record) -> None:
    mean, log_std = nn.Parameter(torch.zeros(4)), nn.Parameter(torch.zeros(4))
    optimizer = Adam([mean, log_std])
    with record():
        for _ in range(3):
            sample = Normal(mean, log_std.exp()).rsample((16,))
            step(optimizer, (sample - 1).square().sum(1).mean() - log_std.sum())


# --- gradients -----------------------------------------------------------------------------------


def gradient_norm_logged_by_clipping_to_infinity(record: Record) -> None:
    model, norms = mlp(6, 3), []
    optimizer = Adam(model.parameters())
    with record(model):
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(model(torch.randn(8, 6)), torch.randint(3, (8,))).backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), float("inf"))
            norms.append(norm.item())
            optimizer.step()


def gradients_projected_by_hand(record: Record) -> None:
    model = nn.Linear(6, 4)
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for _ in range(2):
            out = model(torch.randn(8, 6))
            parameters = list(model.parameters())
            first = torch.autograd.grad(out[:, :2].square().mean(), parameters, retain_graph=True)
            second = torch.autograd.grad((out[:, 2:] - 1).square().mean(), parameters)
            for p, a, b in zip(parameters, first, second, strict=True):
                along = (a * b).sum().clamp(max=0) / b.square().sum()
                p.grad = a - along * b + b
            optimizer.step()


def two_losses_over_a_retained_graph(record: Record) -> None:
    body, first, second = mlp(6, 8), nn.Linear(8, 1), nn.Linear(8, 3)
    model = nn.ModuleDict({"body": body, "first": first, "second": second})
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for _ in range(2):
            features = body(torch.randn(8, 6))
            optimizer.zero_grad()
            first(features).square().mean().backward(retain_graph=True)
            F.cross_entropy(second(features), torch.randint(3, (8,))).backward()
            optimizer.step()


def cleared_before_and_after(record: Record) -> None:
    model = mlp(6, 3)
    optimizer = Adam(model.parameters())
    with record(model):
        optimizer.zero_grad()
        for _ in range(2):
            model.zero_grad()
            step(optimizer, F.cross_entropy(model(torch.randn(8, 6)), torch.randint(3, (8,))))
            optimizer.zero_grad()


def critic_cleared_of_the_generators_gradients(record: Record) -> None:
    g, d = mlp(4, 6), mlp(6, 1)
    opt_g, opt_d = Adam(g.parameters()), Adam(d.parameters())
    with record(nn.ModuleDict({"G": g, "D": d})):
        fake = g(torch.randn(8, 4))
        (-d(fake).mean()).backward()
        opt_g.step()
        opt_g.zero_grad()
        opt_d.zero_grad()


def generators_step_alone(record: Record) -> None:
    g, d = mlp(4, 6), mlp(6, 1)
    opt_g, opt_d = Adam(g.parameters()), Adam(d.parameters())

    def step_of_the_generator() -> None:
        step(opt_g, F.softplus(-d(g(torch.randn(8, 4)))).mean())

    with record(nn.ModuleDict({"G": g, "D": d})):
        step_of_the_generator()
    opt_d.zero_grad()


def steps_skipped_where_a_gradient_overflows(record: Record) -> None:
    model = mlp(6, 3)
    optimizer = SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126)
    with record(model):
        for _ in range(3):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(10 * torch.randn(8, 6)), torch.randint(3, (8,)))
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()


def learning_rate_lowered_on_a_plateau(record: Record) -> None:
    model = mlp(6, 3)
    optimizer = Adam(model.parameters())
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
    with record(model):
        for _ in range(2):
            total = 0.0
            for _ in range(2):
                loss = F.cross_entropy(model(torch.randn(8, 6)), torch.randint(3, (8,)))
                step(optimizer, loss)
                total += loss.item()
            scheduler.step(total)
