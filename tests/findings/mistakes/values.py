"""Gradients that are too small, too large, missing, not finite, or of an earlier step."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from tests.findings.corpus.cases import Record
from tests.findings.mistakes.rows import Program, says, silent
from tests.support.models import MLP
from tests.support.recorded import classified, tower


@says("vanishing-gradient", "0.weight", severity="warning")
def deep_stack_of_sigmoids(record: Record) -> None:
    model = tower(12, nn.Sigmoid)
    with record(model):
        classified(model(torch.randn(32, 64))).backward()


@says("exploding-gradient", severity="warning")
def weights_that_are_too_large(record: Record) -> None:
    model = tower(20, nn.ReLU, gain=2.0)
    with record(model):
        classified(model(torch.randn(32, 64))).backward()


@says("dead-relu", "96.9% of its units")  # 62 of 64
def bias_far_below_zero(record: Record) -> None:
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 2))
    with torch.no_grad():
        model[0].bias[:62] = -50
    with record(model):
        model(torch.randn(64, 8)).sum().backward()


def spoilt(loss: Callable[[Tensor], Tensor], name: str) -> Program:
    def program(record: Record) -> None:
        model = MLP()
        with record(model):
            loss(model(torch.randn(64, 4))).backward()

    program.__name__ = f"loss_spoilt_by_{name}"
    return program


SPOILT: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "log": (lambda h: (h * 0).log().sum(), "made Inf: it was given 128 zeros"),
    "div": (lambda h: h.sum() * 0 / (h.sum() * 0), "its divisor has 1 zero;"),
    "sqrt": (lambda h: (-h.abs() - 1).sqrt().sum(), "128 negative numbers"),
    "exp": (lambda h: (h.abs() * 1e4 + 999).exp().sum(), "overflowed"),
    "pow": (lambda h: (-h.abs() - 1).pow(0.5).sum(), "128 negative"),
    "acos": (lambda h: (h.abs() + 2).acos().sum(), "outside -1 and 1"),
    "softmax": (
        lambda h: (h - float("inf")).softmax(1).sum(),
        "64 rows of its input held only -inf",
    ),
    "mean": (lambda h: h[:0].mean(), "no elements"),
    "std": (lambda h: h[0, :1].std(), "a single element"),
}
for name, (loss, words) in SPOILT.items():
    enter = says("nonfinite-value", f"{name} at values.py:", words, severity="error")
    enter(spoilt(loss, name))
says("nonfinite-gradient", "sqrt at values.py:", severity="error")(
    spoilt(lambda h: (h - h).sqrt().sum(), "a_slope_of_sqrt")
)


@says("missing-zero-grad")
def gradients_that_are_never_cleared(record: Record) -> None:
    model = MLP()
    optimizer = AdamW(model.parameters(), lr=0.1)
    with record(model):
        for _ in range(2):
            model(torch.randn(8, 4)).sum().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()  # cause


@says(
    "nonfinite-value",
    "weight is NaN or Inf already",
    advice="Look for the cause: an earlier step with NaN or Inf gradients, an initialization "
    "that divides by zero, or the checkpoint that was loaded.",
)
def parameter_that_is_nan_before_the_step(record: Record) -> None:
    model = nn.Linear(3, 2)
    with torch.no_grad():
        model.weight[0, 0] = float("nan")
    with record(model):
        model(torch.ones(4, 3)).sum().backward()


def second_derivative(activation: nn.Module) -> Program:
    """A network that is to solve u'' = -sin(x), u(0) = 0."""

    def program(record: Record) -> None:
        model = nn.Sequential(nn.Linear(1, 16), activation, nn.Linear(16, 1))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        x = torch.linspace(0, 1, 20)[:, None].requires_grad_()
        with record(model):
            u = model(x)
            (du,) = torch.autograd.grad(u.sum(), x, create_graph=True)
            (ddu,) = torch.autograd.grad(du.sum(), x, create_graph=True)  # cause
            (u[0].square().sum() + (ddu + torch.sin(x)).square().mean()).backward()
            optimizer.step()

    program.__name__ = f"second_derivative_of_{type(activation).__name__}"
    return program


for straight in (nn.ReLU(), nn.LeakyReLU(), nn.Hardtanh()):
    says("zero-second-derivative", "at {cause} is zero", f"{type(straight).__name__} is piecewise")(
        second_derivative(straight)
    )
for bent in (nn.Tanh(), nn.SiLU(), nn.Softplus()):
    silent()(second_derivative(bent))


def attack(*, of_data: bool) -> Program:
    """Train on inputs that are made worse in eval mode first."""

    def program(record: Record) -> None:
        model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x, y = torch.rand(16, 8), torch.randint(0, 4, (16,))
        with record(model):
            model.eval()
            x.requires_grad_()
            loss = nn.functional.cross_entropy(model(x), y)
            if of_data:  # the parameters get a gradient, too
                loss.backward()
                slope = x.grad
            else:
                (slope,) = torch.autograd.grad(loss, x)
            worse = (x + 0.01 * slope.sign()).detach()
            model.train()
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(worse), y).backward()
            optimizer.step()

    program.__name__ = "attack_by_backward" if of_data else "attack_by_grad"
    return program


silent()(attack(of_data=True))
silent()(attack(of_data=False))


@silent("vanishing-gradient")
def samples_that_are_known_by_heart(record: Record) -> None:
    head = nn.Linear(16, 3)
    nn.init.constant_(head.bias[:1].data, 18.0)
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), head)
    with record(model):
        known = torch.zeros(32, dtype=torch.long)
        nn.functional.cross_entropy(model(torch.randn(32, 4)), known).backward()


@says("exploding-gradient", "over 28 nodes")  # of 30: the last two are scaled down
def gradient_that_explodes_before_it_is_scaled_down(record: Record) -> None:
    first, layers = nn.Linear(8, 32), [nn.Linear(32, 32) for _ in range(14)]
    for layer in layers:
        nn.init.normal_(layer.weight, std=0.5)
    with record(nn.ModuleList([first, *layers])):
        h = first(torch.randn(16, 8)) * 1e-3
        for layer in layers:
            h = layer(h).relu()
        h.square().mean().sqrt().backward()


@silent("exploding-gradient")
def head_whose_loss_is_constant_beside_one_that_learns(record: Record) -> None:
    body = nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(4)])
    embed, classify = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)), nn.Linear(8, 3)
    with record(nn.ModuleList([body, embed, classify])):
        h = body(torch.randn(16, 8))
        length = nn.functional.normalize(embed(h), dim=1).square().sum(1)  # it is 1
        (length.mean() + nn.functional.cross_entropy(classify(h), torch.arange(16) % 3)).backward()


def orthogonal(count: int) -> nn.Sequential:
    layers = [nn.Linear(16, 16) for _ in range(count)]
    for layer in layers:
        nn.init.orthogonal_(layer.weight)
    return nn.Sequential(*layers)


@silent("exploding-gradient")
def path_through_a_branch_of_a_branch(record: Record) -> None:
    """As in SegFormer: the deepest path leads through the keys of an attention over few tokens."""
    stem, reduce, key, head = map(orthogonal, (4, 2, 2, 1))
    with record(nn.ModuleList([stem, reduce, key, head])):
        h = 10 * stem(torch.randn(8, 16))
        reduced = reduce(h)
        head(h + reduced / 500 + key(reduced) * 1e-9).square().mean().backward()


@silent("vanishing-gradient")
def gradient_that_is_large_between_two_layers(record: Record) -> None:
    """A factor of 1e10 that a factor of 1e-10 undoes, as a norm of almost zero does in D-FINE."""
    stem, body, side, head = map(orthogonal, (8, 4, 2, 1))
    with record(nn.ModuleList([stem, body, side, head])):
        small = body(stem(torch.randn(8, 16)) * 1e-10)
        head(small * 1e10 + side(small)).square().mean().backward()


@says("vanishing-gradient", "hardly learn", severity="warning")
def gradient_that_vanishes_before_large_inputs(record: Record) -> None:
    """The gradient of the first weight is large by its inputs alone."""
    layers = [nn.Linear(16, 16) for _ in range(14)]
    nn.init.normal_(layers[0].weight, std=1e-6)
    with record(nn.ModuleList(layers)):
        h = 1e6 * torch.rand(64, 16)
        for layer in layers:
            h = layer(h).sigmoid()
        nn.functional.cross_entropy(h, torch.arange(64) % 16).backward()


class ScaledBranch(nn.Module):
    """A residual block whose branch a small factor scales, as LayerScale does at first."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(6)))
        self.scale = nn.Parameter(torch.full((16,), 1e-6))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.scale * self.body(x)
        return out


@silent()
def branch_that_a_small_factor_scales(record: Record) -> None:
    stem = nn.Sequential(*(nn.Linear(16, 16) for _ in range(8)))
    for layer in stem:
        nn.init.orthogonal_(layer.weight)
    model = nn.Sequential(stem, ScaledBranch())
    with record(model):
        model(torch.randn(64, 16)).square().mean().backward()
