"""Test that watch() reports nothing in healthy trainings, and changes nothing in them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from graphviz_torch import watch
from tests.tensorboard.trainings import Net, _time_enough, batch, loss_of  # noqa: F401


def adversaries(steps: int) -> Iterator[nn.Module]:
    g, d = nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(), nn.Linear(16, 1))
    optimizers = [torch.optim.Adam(part.parameters(), 1e-3, betas=(0.5, 0.9)) for part in (g, d)]
    bce = nn.functional.binary_cross_entropy_with_logits
    yield nn.ModuleDict({"g": g, "d": d})
    for _ in range(steps):
        real, fake = torch.randn(32, 8) * 0.5 + 1, g(torch.randn(32, 4))
        optimizers[1].zero_grad()
        out = d(torch.cat([real, fake.detach()]))
        bce(out, torch.cat([torch.ones(32, 1), torch.zeros(32, 1)])).backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        bce(d(fake), torch.ones(32, 1)).backward()
        optimizers[0].step()


def q_learning(steps: int) -> Iterator[nn.Module]:
    q = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    target = copy.deepcopy(q)
    optimizer, memory = torch.optim.AdamW(q.parameters(), lr=1e-3), []
    yield q
    for step in range(steps):
        memory.append((torch.randn(4), torch.randint(2, ()), torch.randn(4), torch.rand(())))
        s, a, s2, r = map(torch.stack, zip(*memory[-16:], strict=True))
        with torch.no_grad():
            wanted = r + 0.9 * target(s2).amax(1)
        loss = nn.functional.smooth_l1_loss(q(s).gather(1, a[:, None])[:, 0], wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 200 == 199:
            target.load_state_dict(q.state_dict())


def averaged(steps: int) -> Iterator[nn.Module]:
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))
    ema = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.99)
    )
    swa = torch.optim.swa_utils.AveragedModel(model)  # from three quarters on
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    yield model
    for step in range(steps):
        optimizer.zero_grad(set_to_none=False)
        loss_of(model).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        ema.update_parameters(model)
        if step > 3 * steps // 4:
            swa.update_parameters(model)


def with_closures(steps: int) -> Iterator[nn.Module]:
    model, (x, y) = nn.Linear(8, 1), batch()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.01, max_iter=2)
    yield model

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y) + 0.1 * model.weight.square().sum()
        loss.backward()
        return loss

    for _ in range(steps):
        optimizer.step(closure)


def scaled(steps: int) -> Iterator[nn.Module]:
    model, scaler = Net(), torch.amp.GradScaler("cpu", init_scale=2.0**40, growth_interval=50)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    yield model
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(model)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


def accumulated(steps: int) -> Iterator[nn.Module]:
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    yield model
    for _ in range(steps):
        for _ in range(4):
            loss = loss_of(model) / 4
            loss.backward()
            losses.append(loss.item())
        optimizer.step()
        model.zero_grad()


def warmed_up_and_cooled_down(steps: int) -> Iterator[nn.Module]:
    model = nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.2), nn.GELU(), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 1e-8, total_iters=20)
    cool = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps - 20)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, cool], [20])
    yield model
    for _ in range(steps):
        loss_of(model).backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()


def from_a_rate_of_zero(steps: int) -> Iterator[nn.Module]:
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    yield model
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: min(i / 40, 1, 2 - i / 300))
    for _ in range(min(steps, 599)):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
        schedule.step()


def frozen_then_free(steps: int) -> Iterator[nn.Module]:
    model = Net()
    model.body.requires_grad_(False)
    teacher = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.head.parameters(), lr=1e-2)
    yield model
    for step in range(steps):
        if step == 300:
            model.body.requires_grad_(True)
            optimizer.add_param_group({"params": model.body.parameters(), "lr": 1e-3})
        x, y = batch()
        optimizer.zero_grad()
        out = model(x)
        (nn.functional.mse_loss(out, y) + 0.1 * (out - teacher(x)).square().mean()).backward()
        optimizer.step()


def head_replaced_and_optimizer_too(steps: int) -> Iterator[nn.Module]:
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    yield model
    for step in range(steps):
        if step in (150, 350):
            model.head = nn.Linear(8, 1)
            optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()


def head_replaced_by_one_near_zero(steps: int) -> Iterator[nn.Module]:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    yield model
    for step in range(steps):
        if step == 150:
            model.head = nn.Linear(8, 1)
            nn.init.constant_(model.head.weight, 1e-5)
            groups = [
                {"params": model.body.parameters(), "lr": 1.0},
                {"params": [model.head.weight]},
            ]
            optimizer = torch.optim.SGD(groups, lr=1e-6)
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()


def rollouts(steps: int) -> Iterator[nn.Module]:
    policy = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    yield policy
    for _ in range(steps):
        logs = []
        for _ in range(5):  # an episode's log-probabilities, all in one loss
            choice = torch.distributions.Categorical(logits=policy(torch.randn(4)))
            logs.append(choice.log_prob(choice.sample()))
        loss = -(torch.stack(logs) * torch.randn(5)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def recurrent(steps: int) -> Iterator[nn.Module]:
    model = nn.ModuleDict({"cell": nn.GRUCell(8, 8), "out": nn.Linear(8, 1)})
    optimizer, h = torch.optim.RMSprop(model.parameters(), lr=1e-3), torch.zeros(4, 8)
    yield model
    for _ in range(steps):
        h, x = h.detach(), torch.randn(4, 8)
        for _ in range(3):
            h = model["cell"](x, h)
        optimizer.zero_grad()
        model["out"](h).square().mean().backward()
        optimizer.step()


HEALTHY = [
    adversaries,
    q_learning,
    averaged,
    with_closures,
    scaled,
    accumulated,
    warmed_up_and_cooled_down,
    from_a_rate_of_zero,
    frozen_then_free,
    head_replaced_and_optimizer_too,
    head_replaced_by_one_near_zero,
    rollouts,
    recurrent,
]


@pytest.mark.parametrize("training", HEALTHY)
def test_a_healthy_training_is_silent(training: Callable[[int], Iterator[nn.Module]]) -> None:
    steps = training(520)
    with watch(next(steps)) as watching:
        for _ in steps:
            pass
    assert watching.reports == []


@pytest.mark.parametrize("training", HEALTHY)
def test_a_watched_training_is_bit_equal(
    training: Callable[[int], Iterator[nn.Module]],
) -> None:
    def after(*, watched: bool) -> list[Tensor]:
        torch.manual_seed(1)
        steps = training(40)
        model = next(steps)
        if watched:
            with watch(model):
                list(steps)
        list(steps)
        return [tensor.detach().clone() for tensor in model.state_dict().values()]

    assert all(map(torch.equal, after(watched=True), after(watched=False)))
