"""Healthy trainings: optimizers, schedules and loops."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_, parameters_to_vector, vector_to_parameters
from torch.optim import SGD, Adam, AdamW

from graphviz_torch import simulate_accelerator
from tests.findings.corpus.cases import Record, step
from tests.findings.corpus.models import batch, mlp

# --- optimizers and loops ------------------------------------------------------------------------


def lbfgs_with_a_closure(record: Record) -> None:
    model = nn.Linear(6, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    x, y = torch.randn(16, 6), torch.randn(16, 1)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        return loss

    with record(model):
        for _ in range(2):
            optimizer.step(closure)


def accumulation_and_clipping(record: Record) -> None:
    model = mlp()
    optimizer = AdamW(model.parameters())
    with record(model):
        for i in range(8):
            x, y = batch()
            (F.cross_entropy(model(x), y) / 4).backward()
            if (i + 1) % 4 == 0:
                clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()


def loss_scaling_with_unscale(record: Record) -> None:
    model = mlp()
    optimizer, scaler = SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu")
    with record(model):
        for _ in range(3):
            x, y = batch()
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()


def warmup_and_cosine_schedule(record: Record) -> None:
    model = mlp()
    optimizer = AdamW(model.parameters(), lr=1e-3)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=2)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
    scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [warmup, cosine], [2])
    with record(model):
        for _ in range(4):
            x, y = batch()
            step(optimizer, F.cross_entropy(model(x), y))
            scheduler.step()


def evaluation_after_every_epoch(record: Record) -> None:
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3))
    model.append(nn.Linear(16, 3))
    optimizer, accuracies = Adam(model.parameters()), []
    with record(model):
        for _ in range(3):
            model.train()
            x, y = batch()
            step(optimizer, F.cross_entropy(model(x), y))
            model.eval()
            with torch.no_grad():
                x, y = batch()
                accuracies.append((model(x).argmax(1) == y).float().mean().item())


def exponential_moving_average_of_weights(record: Record) -> None:
    model = mlp()
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = Adam(model.parameters())
    with record(model):
        for _ in range(3):
            x, y = batch()
            step(optimizer, F.cross_entropy(model(x), y))
            with torch.no_grad():
                for kept, p in zip(average.parameters(), model.parameters(), strict=True):
                    kept.lerp_(p, 0.01)


def stochastic_weight_averaging(record: Record) -> None:
    model = mlp()
    averaged = torch.optim.swa_utils.AveragedModel(model)
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for _ in range(3):
            x, y = batch()
            step(optimizer, F.cross_entropy(model(x), y))
            averaged.update_parameters(model)


def sharpness_aware_minimization(record: Record) -> None:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for _ in range(2):
            x, y = batch()
            F.cross_entropy(model(x), y).backward()
            moves = []
            with torch.no_grad():
                norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
                for p in model.parameters():
                    moves.append(0.05 * p.grad / (norm + 1e-12))
                    p.add_(moves[-1])
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            with torch.no_grad():
                for p, move in zip(model.parameters(), moves, strict=True):
                    p.sub_(move)
            optimizer.step()
            optimizer.zero_grad()


def optimizer_step_inside_backward(record: Record) -> None:
    model = mlp()
    optimizers = {p: SGD([p], lr=0.1) for p in model.parameters()}

    def step(p: Tensor) -> None:
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step)
    with record(model):
        for _ in range(2):
            x, y = batch()
            F.cross_entropy(model(x), y).backward()


def losses_logged_as_numbers(record: Record) -> None:
    model, running, history = mlp(), 0.0, []
    optimizer = Adam(model.parameters())
    with record(model):
        for _ in range(4):
            x, y = batch()
            loss = F.cross_entropy(model(x), y)
            step(optimizer, loss)
            running += loss.item()
            history.append(loss.detach())


def training_on_an_accelerator(record: Record) -> None:
    with simulate_accelerator() as (device,):
        model = mlp().to(device)
        optimizer, total = AdamW(model.parameters()), torch.zeros((), device=device)
        with record(model):
            for _ in range(4):
                x, y = (t.to(device) for t in batch())
                loss = F.cross_entropy(model(x), y)
                step(optimizer, loss)
                total += loss.detach()
            total.item()


def trained_on_samples_attacked_by_the_sign_of_their_gradient(record: Record) -> None:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for _ in range(3):
            x, y = batch()
            x.requires_grad_()
            F.cross_entropy(model(x), y).backward()
            attacked = (x + 0.1 * x.grad.sign()).detach() if x.grad is not None else x
            optimizer.zero_grad()  # of the model's gradients, which nothing was to use
            F.cross_entropy(model(attacked), y).backward()
            optimizer.step()


def a_flat_copy_of_the_parameters_that_learns_for_them(record: Record) -> None:
    model = mlp()
    flat = nn.Parameter(parameters_to_vector(model.parameters()).detach().double())
    optimizer = SGD([flat], lr=0.1)
    with record(model):
        for _ in range(3):
            x, y = batch()
            F.cross_entropy(model(x), y).backward()
            gradients = [p.grad for p in model.parameters() if p.grad is not None]
            flat.grad = parameters_to_vector(gradients).double()
            for parameter in model.parameters():
                parameter.grad = None
            optimizer.step()
            with torch.no_grad():
                vector_to_parameters(flat.float(), model.parameters())


def the_best_weights_loaded_into_a_new_model_to_test_it(record: Record) -> None:
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    x, y = torch.randn(16, 6), torch.arange(16) % 3
    best = model.state_dict()
    with record():
        for _ in range(3):
            model.zero_grad()
            F.cross_entropy(model(x), y).backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    assert parameter.grad is not None
                    parameter -= 0.1 * parameter.grad
            best = {name: weight.clone() for name, weight in model.state_dict().items()}
        model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
        model.load_state_dict(best)
        with torch.no_grad():
            print(f"test loss {F.cross_entropy(model(x), y):.2f}")
