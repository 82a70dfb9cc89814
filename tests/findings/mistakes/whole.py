"""Tensors that are compared with themselves, first losses, micro-batches, and unused items."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD

from tests.findings.corpus.cases import Record, step
from tests.findings.corpus.models import mlp
from tests.findings.mistakes.rows import says, silent


def clip_and_step(record: Record, *, inside: bool, count: int = 3) -> None:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for number in range(2 * count):
            (F.mse_loss(model(torch.randn(8, 6)), torch.randn(8, 3)) / count).backward()
            last = number % count == count - 1
            if inside or last:
                nn.utils.clip_grad_norm_(model.parameters(), 0.01)  # cause
            if last:
                optimizer.step()
                optimizer.zero_grad()


@says("ineffective-clipping", "after each of several backwards before one step")
def clipping_in_each_micro_batch(record: Record) -> None:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for number in range(4):
            (F.mse_loss(model(torch.randn(8, 6)), torch.randn(8, 3)) / 2).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)  # cause
            if number % 2:
                optimizer.step()
                optimizer.zero_grad()


@silent("ineffective-clipping")
def clipping_after_the_last_micro_batch(record: Record) -> None:
    clip_and_step(record, inside=False)


@silent("ineffective-clipping")
def two_optimizers_that_each_clip(record: Record) -> None:
    one, other = mlp(), mlp()
    optimizers = SGD(one.parameters(), lr=0.1), SGD(other.parameters(), lr=0.1)
    with record():
        for _ in range(2):
            for model, optimizer in zip((one, other), optimizers, strict=True):
                optimizer.zero_grad()
                F.mse_loss(model(torch.randn(8, 6)), torch.randn(8, 3)).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.01)
                optimizer.step()


def contrast(first: Tensor, second: Tensor) -> Tensor:
    first, second = F.normalize(first, dim=-1), F.normalize(second, dim=-1)
    return F.cross_entropy(first @ second.T / 0.5, torch.arange(8))


@says("compared-with-itself", "compares each sample with itself", "{first}", "{second}")
def one_half_taken_twice(record: Record) -> None:
    model = mlp()
    with record(model):
        z = model(torch.randn(16, 6))
        first = z[:8]  # first
        second = z[:8]  # second
        first, second = F.normalize(first, dim=-1), F.normalize(second, dim=-1)
        F.cross_entropy(first @ second.T, torch.arange(8)).backward()  # cause


@says("compared-with-itself", "sub", "is 0")
def a_difference_of_one_column(record: Record) -> None:
    model = mlp()
    with record(model):
        z = model(torch.randn(16, 6))
        left = z[:, 0]
        right = z[:, 0]
        gap = left - right  # cause
        (gap.square().mean() + z.square().mean()).backward()


@silent("compared-with-itself")
def two_halves(record: Record) -> None:
    model = mlp()
    with record(model):
        z = model(torch.randn(16, 6))
        first = z[:8]
        second = z[8:]
        contrast(first, second).backward()


@silent("compared-with-itself")
def similarities_within_a_half(record: Record) -> None:
    model = mlp()
    with record(model):
        z = model(torch.randn(16, 6))[:8]
        mask = torch.eye(8) * 1e9
        F.cross_entropy(z @ z.T - mask, torch.arange(8).flip(0)).backward()


@silent("compared-with-itself")
def two_dropouts_of_one_half(record: Record) -> None:
    model = mlp()
    with record(model):
        z = model(torch.randn(16, 6))
        first = F.dropout(z[:8], 0.5)
        second = F.dropout(z[:8], 0.5)
        contrast(first, second).backward()


class Indexed(nn.Module):
    """Layers that read their weights from one list, two per layer."""

    def __init__(self, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(6, 6) / 3) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for layer in range(2):
            for i in range(2):
                x = (x @ self.weights[self.stride * layer + i]).tanh()
        return x


@says("never-called", "weights.3 got no gradient: no operation used it", "weights.1 was used")
def items_of_a_list_by_a_wrong_index(record: Record) -> None:
    model = Indexed(1)
    with record(model):
        model(torch.randn(8, 6)).square().mean().backward()


@silent("never-called")
def items_of_a_list_by_the_right_index(record: Record) -> None:
    model = Indexed(2)
    with record(model):
        model(torch.randn(8, 6)).square().mean().backward()


@says("never-called", "head.bias got no gradient", advice="Remove it if only head.weight is needed")
def only_the_weight_of_a_linear(record: Record) -> None:
    model = nn.ModuleDict({"embed": nn.Embedding(9, 6), "head": nn.Linear(6, 9)})
    with record(model):
        features = model["embed"](torch.arange(9))
        F.linear(features, model["head"].weight).square().mean().backward()


@says("loss-above-guess", "a guess among 5 classes", "2.weight has a standard deviation")
def a_head_of_a_unit_normal(record: Record) -> None:
    model = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 5))
    nn.init.normal_(model[2].weight, std=20.0)
    optimizer = SGD(model.parameters(), lr=1e-4)
    with record(model):
        for _ in range(2):
            loss = F.cross_entropy(model(torch.randn(32, 6)), torch.arange(32) % 5)  # cause
            step(optimizer, loss)


@says("loss-above-guess", "the first scores are too large")
def images_of_bytes(record: Record) -> None:
    model = nn.Linear(48, 5)
    optimizer = SGD(model.parameters(), lr=1e-4)
    with record(model):
        images = torch.randint(256, (32, 48)).float()
        loss = F.cross_entropy(model(images), torch.arange(32) % 5)  # cause
        step(optimizer, loss)


@silent("loss-above-guess")
def a_usual_first_loss(record: Record) -> None:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        step(optimizer, F.cross_entropy(model(torch.randn(32, 6)), torch.arange(32) % 3))


def derivative(record: Record, *, create: bool, scale: bool = False) -> None:
    net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = SGD(net.parameters(), lr=0.1)
    with record(net):
        t = torch.rand(16, 1, requires_grad=True)
        u = net(t)
        (du,) = torch.autograd.grad(u.sum(), t, retain_graph=True, create_graph=create)
        residual = u * du.norm() if scale else u + du
        step(optimizer, residual.square().mean())


@says("derivative-without-graph", "a constant in backward", advice="create_graph=True")
def residual_of_a_constant_derivative(record: Record) -> None:
    derivative(record, create=False)


@silent("derivative-without-graph")
def residual_of_a_derivative(record: Record) -> None:
    derivative(record, create=True)


@silent("derivative-without-graph")
def loss_weighted_by_a_gradient_norm(record: Record) -> None:
    derivative(record, create=False, scale=True)


@silent("derivative-without-graph")
def adversarial_input(record: Record) -> None:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        x = torch.randn(8, 6, requires_grad=True)
        (g,) = torch.autograd.grad(model(x).square().mean(), x)
        step(optimizer, model(x + 0.1 * g.sign()).square().mean())


def prefer(record: Record, policy: nn.Module, reference: nn.Module, epochs: int = 1) -> None:
    optimizer = SGD(policy.parameters(), lr=0.1)
    with record(policy):
        for _ in range(4):
            x, chosen = torch.randn(8, 6), torch.arange(8)[:, None] % 3
            with torch.no_grad():
                before = reference(x).log_softmax(-1).gather(1, chosen)
            for _ in range(epochs):
                after = policy(x).log_softmax(-1).gather(1, chosen)
                step(optimizer, -F.logsigmoid(after - before).mean())


@says("reference-is-the-model", "in 4 steps", "both are the same model")
def preferences_without_a_reference(record: Record) -> None:
    model = mlp()
    prefer(record, model, model)


@says("reference-is-the-model", "in 4 steps", "both are the same model")
def preferences_without_a_reference_behind_a_hook(record: Record) -> None:
    model = mlp()
    model.register_forward_pre_hook(lambda module, args: (2 * args[0],))
    prefer(record, model, model)


@silent("reference-is-the-model")
def preferences_with_a_copy(record: Record) -> None:
    model = mlp()
    prefer(record, model, copy.deepcopy(model).requires_grad_(False))


@silent("reference-is-the-model")
def several_epochs_on_old_probabilities(record: Record) -> None:
    model = mlp()
    prefer(record, model, model, epochs=2)


class Adapted(nn.Module):
    """A model with an adapter, which the reference switches off."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.adapter = mlp(), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        # Without gradients, the model is its own reference.
        return self.base(x) + self.adapter(x) if torch.is_grad_enabled() else self.base(x)


@silent("reference-is-the-model")
def a_reference_without_the_adapter(record: Record) -> None:
    model = Adapted()
    prefer(record, model, model)


def sums_in_half_precision(record: Record, scale: float) -> None:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=1e-6)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    with record(model):
        for _ in range(2):
            optimizer.zero_grad()
            y = model(torch.ones(8, 6)).half() + 300
            energy = y * (scale * y)
            loss = (energy / (1 + energy)).float().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()


@says("nonfinite-value", "an overflow in float16", "the loss is therefore not finite")
def overflow_under_a_scaler(record: Record) -> None:
    model = mlp()
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    with record(model):
        y = model(torch.ones(8, 6)).half() + 300
        energy = y * y  # cause
        loss = (energy / (1 + energy)).float().mean()
        scaler.scale(loss).backward()


@silent("nonfinite-value")
def sums_that_fit_half_precision(record: Record) -> None:
    sums_in_half_precision(record, 0.01)
