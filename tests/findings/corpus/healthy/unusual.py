"""Healthy trainings of unusual kinds.

They were written before their authors saw the findings of `find`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_, parameters_to_vector, vector_to_parameters
from torch.optim import LBFGS, SGD, Adam, AdamW

from tests.findings.corpus.cases import Record, step


def mlp(*sizes: int) -> nn.Sequential:
    layers = [nn.Linear(a, b) for a, b in pairwise(sizes)]
    return nn.Sequential(*[p for layer in layers for p in (layer, nn.Tanh())][:-1])


def task_weights_learned_from_gradient_norms(record: Record) -> None:
    body, heads = mlp(6, 8), nn.ModuleList([nn.Linear(8, 1), nn.Linear(8, 1)])
    weights = nn.Parameter(torch.ones(2))
    model_step = Adam([*body.parameters(), *heads.parameters()])
    weight_step, shared = Adam([weights], lr=1e-2), next(body.parameters())
    with record():
        for _ in range(3):
            h = body(torch.randn(16, 6))
            losses = torch.stack([head(h).square().mean() for head in heads])
            norms = [
                torch.autograd.grad(w * loss, shared, retain_graph=True, create_graph=True)[
                    0
                ].norm()
                for w, loss in zip(weights, losses, strict=True)
            ]
            norm = torch.stack(norms)
            weight_step.zero_grad()
            (weights.grad,) = torch.autograd.grad(
                (norm - norm.mean().detach()).abs().sum(), weights, retain_graph=True
            )
            step(model_step, (weights.detach() * losses).sum())
            weight_step.step()
            weights.data *= 2 / weights.data.sum()


def weights_moved_towards_those_of_a_task(record: Record) -> None:
    model = mlp(1, 16, 1)
    with record(model):
        for _ in range(3):
            before = parameters_to_vector(model.parameters()).detach().clone()
            inner = SGD(model.parameters(), lr=0.02)
            for _ in range(3):
                x = torch.rand(10, 1)
                step(inner, (model(x) - x.sin()).square().mean())
            after = parameters_to_vector(model.parameters()).detach()
            vector_to_parameters(before + 0.1 * (after - before), model.parameters())


def evolution_that_sets_gradients_itself(record: Record) -> None:
    model = mlp(4, 8, 1)
    optimizer = Adam(model.parameters())
    with record(model):
        for _ in range(3):
            optimizer.zero_grad()
            with torch.no_grad():
                start = parameters_to_vector(model.parameters())
                noise = torch.randn(6, len(start))
                scores = []
                for each in noise:
                    vector_to_parameters(start + 0.1 * each, model.parameters())
                    scores.append(model(torch.randn(8, 4)).square().mean())
                vector_to_parameters(start, model.parameters())
                gradient, first = (torch.stack(scores)[:, None] * noise).mean(0), 0
                for p in model.parameters():
                    p.grad = gradient[first : first + p.numel()].view_as(p)
                    first += p.numel()
            optimizer.step()
        model(torch.randn(8, 4)).mean()


def equilibrium_found_without_gradient(record: Record) -> None:
    cell, inject, head = nn.Linear(8, 8), nn.Linear(4, 8), nn.Linear(8, 1)
    model = nn.ModuleDict({"cell": cell, "inject": inject, "head": head})
    optimizer = Adam(model.parameters())
    with record(model):
        for _ in range(2):
            x = inject(torch.randn(16, 4))
            with torch.no_grad():
                z = torch.zeros_like(x)
                for _ in range(10):
                    z = torch.tanh(0.5 * cell(z) + x)
            z = torch.tanh(0.5 * cell(z) + x)  # one step with gradient
            step(optimizer, head(z).square().mean())


def style_transferred_to_an_image(record: Record) -> None:
    features = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)).eval()
    features.requires_grad_(False)

    def gram(image: Tensor) -> Tensor:
        f = features(image).flatten(2)
        return f @ f.mT / f.shape[-1]

    with torch.no_grad():
        style = gram(torch.rand(1, 3, 16, 16))
    image = torch.rand(1, 3, 16, 16, requires_grad=True)
    optimizer = LBFGS([image], max_iter=4)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(gram(image), style)
        loss.backward()
        return loss

    with record(features):
        for _ in range(2):
            optimizer.step(closure)
            with torch.no_grad():
                image.clamp_(0, 1)


def contrast_with_a_queue_of_keys(record: Record) -> None:
    query = mlp(6, 16, 8)
    key, queue = copy.deepcopy(query).requires_grad_(False), F.normalize(torch.randn(32, 8))
    optimizer = SGD(query.parameters(), lr=0.03)
    with record(nn.ModuleDict({"query": query, "key": key})):
        for _ in range(3):
            x = torch.randn(8, 6)
            q = F.normalize(query(x + 0.1 * torch.randn_like(x)))
            with torch.no_grad():
                for p, k in zip(query.parameters(), key.parameters(), strict=True):
                    k.lerp_(p, 0.01)
                keys = F.normalize(key(x))
            logits = torch.cat([(q * keys).sum(1, keepdim=True), q @ queue.T], 1) / 0.07
            step(optimizer, F.cross_entropy(logits, torch.zeros(8, dtype=torch.long)))
            queue = torch.cat([keys, queue])[:32]


def preferences_against_a_reference(record: Record) -> None:
    policy = mlp(6, 16, 4)
    reference = copy.deepcopy(policy)
    optimizer = AdamW(policy.parameters())

    def chance(model: nn.Module, x: Tensor, action: Tensor) -> Tensor:
        return model(x).log_softmax(-1).gather(1, action[:, None]).squeeze(1)

    with record(policy):
        for _ in range(3):
            x, good, bad = torch.randn(8, 6), torch.randint(4, (8,)), torch.randint(4, (8,))
            with torch.no_grad():
                base = chance(reference, x, good) - chance(reference, x, bad)
            margin = chance(policy, x, good) - chance(policy, x, bad) - base
            step(optimizer, -F.logsigmoid(0.1 * margin).mean())
            (margin > 0).float().mean().item()


def scores_matched_along_random_directions(record: Record) -> None:
    energy = mlp(2, 16, 1)
    optimizer = Adam(energy.parameters())
    with record(energy):
        for _ in range(2):
            x = torch.randn(32, 2, requires_grad=True)
            v = torch.randn_like(x)
            (score,) = torch.autograd.grad(-energy(x).sum(), x, create_graph=True)
            (slope,) = torch.autograd.grad((score * v).sum(), x, create_graph=True)
            loss = (v * slope).sum(1) + 0.5 * (score * v).sum(1).square()
            step(optimizer, loss.mean())


def accumulation_in_bfloat16_with_clipping(record: Record) -> None:
    model = mlp(6, 16, 3)
    optimizer = AdamW(model.parameters())
    with record(model):
        for i in range(8):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(torch.randn(8, 6)), torch.randint(3, (8,))) / 4
            loss.backward()
            if i % 4 == 3:
                clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)


def layers_unfrozen_one_after_the_other(record: Record) -> None:
    model = mlp(6, 8, 8, 3)
    layers = [layer for layer in model if isinstance(layer, nn.Linear)]
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for last in range(3):
            for i, layer in enumerate(layers):
                layer.requires_grad_(i >= 2 - last)
            x, y = torch.randn(8, 6), torch.randint(3, (8,))
            step(optimizer, F.cross_entropy(model(x), y))


def an_optimizer_for_each_layer(record: Record) -> None:
    model = mlp(6, 8, 3)
    parts = [layer for layer in model if isinstance(layer, nn.Linear)]
    optimizers = [SGD(layer.parameters(), lr=0.1 / (i + 1)) for i, layer in enumerate(parts)]
    with record(model):
        for _ in range(3):
            for optimizer in optimizers:
                optimizer.zero_grad()
            F.cross_entropy(model(torch.randn(8, 6)), torch.randint(3, (8,))).backward()
            for optimizer in optimizers:
                optimizer.step()


def two_losses_that_run_backward_in_turn(record: Record) -> None:
    model, head = mlp(6, 8), nn.Linear(8, 1)
    optimizer = Adam([*model.parameters(), *head.parameters()])
    with record(nn.ModuleList([model, head])):
        for _ in range(3):
            optimizer.zero_grad()
            F.mse_loss(head(model(torch.randn(8, 6))), torch.ones(8, 1)).backward()
            (0.1 * model(torch.randn(8, 6)).abs().mean()).backward()
            optimizer.step()


def descend(parameters: Iterable[Any]) -> None:
    """A step written by hand, over all parameters at once."""
    known = list(parameters)
    with torch.no_grad():
        torch._foreach_add_(known, [p.grad for p in known], alpha=-0.1)
    for p in known:
        p.grad = None


def steps_written_by_hand(record: Record) -> None:
    model, total = mlp(6, 8, 3), 0.0
    with record(model):
        for _ in range(4):
            loss = F.cross_entropy(model(torch.randn(8, 6)), torch.randint(3, (8,)))
            loss.backward()
            descend(model.parameters())
            total += loss.item()


def replicas_averaged_between_rounds(record: Record) -> None:
    first = mlp(6, 8, 3)
    models = [first, copy.deepcopy(first)]
    optimizers = [SGD(model.parameters(), lr=0.1) for model in models]
    with record(nn.ModuleList(models)):
        for _ in range(2):
            for model, optimizer in zip(models, optimizers, strict=True):
                for _ in range(2):
                    x, y = torch.randn(8, 6), torch.randint(3, (8,))
                    step(optimizer, F.cross_entropy(model(x), y))
            with torch.no_grad():
                for group in zip(*(m.parameters() for m in models), strict=True):
                    mean = torch.stack(group).mean(0)
                    for p in group:
                        p.copy_(mean)
