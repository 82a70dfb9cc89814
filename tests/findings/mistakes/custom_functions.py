"""Custom Functions whose backward is wrong, and Functions that change a gradient on purpose."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.optim import SGD
from torch.utils.checkpoint import checkpoint

from tests.findings.corpus.cases import Record, step
from tests.findings.corpus.models import mlp
from tests.findings.mistakes.rows import says, silent

TIMES = torch.linspace(0, 1, 5)


def train_through(record: Record, function: Any, *more: Any, steps: int = 1) -> None:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.01)
    with record(model):
        for _ in range(steps):
            found = function(model(torch.randn(8, 6)), *more)
            step(optimizer, found.square().mean())


class HalfGradient(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.square()

    @staticmethod
    def backward(ctx: Any, given: Tensor) -> Tensor:
        return given * ctx.saved_tensors[0]


@says("wrong-backward", "wrong gradient of x", "relative error", "is 0.5")
def forgotten_factor(record: Record) -> None:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.01)
    with record(model):
        found = HalfGradient.apply(model(torch.randn(8, 6)))  # cause
        step(optimizer, found.mean())


class Scale(Function):
    """Multiplies by a weight; in its backward the gradient of the weight lacks a sum."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return given * weight, (given * x)[0]


@says("wrong-backward", "wrong gradient of weight:", "Scale")
def gradient_of_one_row(record: Record) -> None:
    model, weight = mlp(), nn.Parameter(torch.full((3,), 2.0))
    with record(model):
        Scale.apply(model(torch.randn(8, 6)), weight).square().mean().backward()  # cause


class Flow(Function):
    """Integrates x' = -x * weight in steps; reads a global tensor, and writes into a new one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        states = torch.empty(len(TIMES), *x.shape)
        states[0] = x
        for i in range(len(TIMES) - 1):
            states[i + 1] = states[i] - (TIMES[i + 1] - TIMES[i]) * states[i] * weight
        ctx.save_for_backward(states, weight)
        return states[-1].clone()

    @staticmethod
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor, Tensor]:
        states, weight = ctx.saved_tensors
        total = torch.zeros_like(weight)
        for i in reversed(range(len(TIMES) - 1)):
            width = TIMES[i + 1] - TIMES[i]
            total = total - (given * width * states[i]).sum(0)
            given = given * (1 - width * weight)
        return given, total


class FlowBackwards(Flow):
    """Its adjoint takes the states in the wrong order."""

    @staticmethod
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor, Tensor]:
        states, weight = ctx.saved_tensors
        total = torch.zeros_like(weight)
        for i in range(len(TIMES) - 1):
            width = TIMES[i + 1] - TIMES[i]
            total = total + (given * width * states[i]).sum(0)
            given = given * (1 + width * weight)
        return given, total


@says("wrong-backward", "wrong gradients of x and weight:", "FlowBackwards")
def adjoint_with_the_wrong_sign(record: Record) -> None:
    model, weight = mlp(), nn.Parameter(torch.ones(3))
    with record(model):
        FlowBackwards.apply(model(torch.randn(8, 6)), weight).square().mean().backward()  # cause


@silent("wrong-backward", "overwritten-saved-tensor")
def a_right_adjoint(record: Record) -> None:
    train_through(record, Flow.apply, nn.Parameter(torch.ones(3)), steps=3)


class Keep(Function):
    """Saves its result, which the program then overwrites."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        result = x.exp()
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx: Any, given: Tensor) -> Tensor:
        return given * ctx.saved_tensors[0]


@says("overwritten-saved-tensor", "Keep saved", "through .data")
def result_overwritten_through_data(record: Record) -> None:
    model = mlp()
    with record(model):
        found = Keep.apply(model(torch.randn(8, 6)))
        loss = found.square().mean()
        found.data.zero_()
        loss.backward()


@silent("wrong-backward", "overwritten-saved-tensor")
def a_result_overwritten_after_backward(record: Record) -> None:
    model = mlp()
    with record(model):
        found = Keep.apply(model(torch.randn(8, 6)))
        found.square().mean().backward()
        found.data.zero_()


class Reversal(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, given: Tensor) -> Tensor:
        return -0.5 * given


@silent("wrong-backward")
def a_gradient_reversal(record: Record) -> None:
    train_through(record, Reversal.apply)


class Quantize(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward(x, scale)
        return (x / scale).round().clamp(-8, 7) * scale

    @staticmethod
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor, Tensor]:
        x, scale = ctx.saved_tensors
        return given, (given * ((x / scale).round() - x / scale)).sum()


@silent("wrong-backward")
def a_straight_through_quantizer(record: Record) -> None:
    train_through(record, Quantize.apply, nn.Parameter(torch.tensor(0.1)))


class Bound(Function):
    """A lower bound that lets a gradient pass which moves the value back to the bound."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clamp(min=0.1)

    @staticmethod
    def backward(ctx: Any, given: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return given * ((x >= 0.1) | (given < 0))


@silent("wrong-backward")
def a_bound_with_a_surrogate_gradient(record: Record) -> None:
    train_through(record, Bound.apply)


class Noisy(Function):
    """Draws its own mask: the calls of its forward cannot be repeated."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mask = (torch.rand_like(x) < 0.5).to(x.dtype)
        return x * ctx.mask

    @staticmethod
    def backward(ctx: Any, given: Tensor) -> Tensor:
        return given * ctx.mask


@silent("wrong-backward")
def a_function_with_random_numbers(record: Record) -> None:
    train_through(record, Noisy.apply)


class Simulator(Function):
    """Computes with NumPy, where autograd sees only a constant."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        values = x.detach().double().numpy()
        ctx.save_for_backward(x)
        return torch.from_numpy(values**2).float() + x

    @staticmethod
    def backward(ctx: Any, given: Tensor) -> Tensor:
        return given * (2 * ctx.saved_tensors[0] + 1)


@silent("wrong-backward")
def a_simulator_in_numpy(record: Record) -> None:
    train_through(record, Simulator.apply)


class Best(Function):
    """Returns the best value and its index, in place of the caller's tensor for the others."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        values, index = x.max(1)
        ctx.mark_non_differentiable(index)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(index)
        ctx.shape = x.shape
        return values, index

    @staticmethod
    def backward(ctx: Any, given: Tensor, _: Tensor | None) -> Tensor:
        (index,) = ctx.saved_tensors
        found = given.new_zeros(ctx.shape)
        return found.scatter(1, index[:, None], given[:, None])


@silent("wrong-backward")
def a_function_with_an_index(record: Record) -> None:
    train_through(record, lambda y: Best.apply(y)[0])


class Doubled(Function):
    """Changes its input in place."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, given: Tensor) -> Tensor:
        return 2 * given


@silent("wrong-backward")
def a_function_in_place(record: Record) -> None:
    train_through(record, lambda y: Doubled.apply(y + 0))


class Ahead(Function):
    """Has its own context method."""

    @staticmethod
    def forward(x: Tensor, power: int) -> Tensor:
        return x**power

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.power = inputs[1]

    @staticmethod
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor, None]:
        return given * ctx.power * ctx.saved_tensors[0], None


@says("wrong-backward", "wrong gradient of x", "Ahead")
def power_without_its_exponent(record: Record) -> None:
    model = mlp()
    with record(model):
        Ahead.apply(model(torch.randn(8, 6)), 3).mean().backward()  # cause


@silent("exception", "wrong-backward", "overwritten-saved-tensor")
def a_function_in_a_checkpoint(record: Record) -> None:
    model = mlp()
    with record(model):
        x = torch.randn(8, 6, requires_grad=True)
        # A checkpoint permits only one read of the tensors that a Function saved.
        y = checkpoint(lambda x: Keep.apply(model(x)), x, use_reentrant=False)
        y.square().mean().backward()


class Scan(Function):
    """A recurrence h[t] = a[t] * h[t - 1] + x[t], computed by changes of copies in place."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, x: Tensor) -> Tensor:
        factors, states = a.clone(), x.clone()
        for shift in (1, 2):
            states[shift:].add_(factors[shift:].mul(states[:-shift].clone()))
            factors[shift:].mul_(factors[:-shift].clone())
        ctx.save_for_backward(a, states)
        return states.clone()

    @staticmethod
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor, Tensor]:
        a, states = ctx.saved_tensors
        total = given.clone()
        for t in range(len(a) - 2, -1, -1):
            total[t] += a[t + 1] * total[t + 1]
        before = torch.cat([torch.zeros_like(states[:1]), states[:-1]])
        return total * before, total


@silent("wrong-backward", "overwritten-saved-tensor")
def a_scan_in_place(record: Record) -> None:
    model, factors = mlp(), nn.Parameter(torch.rand(4, 3))
    with record(model):
        Scan.apply(factors, model(torch.randn(4, 6))).square().sum().backward()


class MatrixLog(Function):
    """Logarithm of a symmetric matrix, with the gradient of its eigenvalues and eigenvectors."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        u, s, _ = torch.svd(x)
        ctx.save_for_backward(u, s)
        return u @ torch.diag(s.log()) @ u.T

    @staticmethod
    def backward(ctx: Any, given: Tensor) -> Tensor:
        u, s = ctx.saved_tensors
        ratios = s.log()[:, None] - s.log()[None, :]
        distances = s[:, None] - s[None, :]
        divided = torch.where(distances == 0, 1 / s[:, None], ratios / distances)
        return u @ (divided * (u.T @ ((given + given.T) / 2) @ u)) @ u.T


@silent("wrong-backward")
def a_logarithm_of_a_symmetric_matrix(record: Record) -> None:
    model = mlp()
    with record(model):
        found = model(torch.randn(8, 6))
        covariance = found.T @ found + torch.diag(torch.tensor([1.0, 2.0, 3.0]))
        (MatrixLog.apply(covariance) * torch.randn(3, 3)).sum().backward()


class ScaledLevels(Function):
    """The nearest of four levels, times a scale, whose gradients are surrogates."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor) -> Tensor:
        levels = torch.linspace(0, 1, 4)
        nearest = (x.div(scale).unsqueeze(-1) - levels).abs().argmin(-1)
        ctx.save_for_backward(x, scale)
        return levels[nearest] * scale

    @staticmethod
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor, Tensor]:
        x, scale = ctx.saved_tensors
        outside = (x > scale).to(x.dtype)
        return given * (1 - outside), (given * outside).sum().reshape(1)


@silent("wrong-backward")
def a_quantizer_with_a_learned_scale(record: Record) -> None:
    model, scale = mlp(), nn.Parameter(torch.tensor([0.1]))
    with record(model):
        ScaledLevels.apply(model(torch.randn(8, 6)), scale).square().mean().backward()


class Length(torch.autograd.Function):
    """The mean of squares, with a backward that may return None."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, passes: bool) -> Tensor:
        ctx.save_for_backward(x)
        ctx.passes = passes
        return x.square().mean()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return gradient * 2 * x / x.numel() if ctx.passes else None, None


def two_terms(record: Record, *, passes: bool) -> None:
    model = mlp()
    with record(model):
        y = model(torch.randn(8, 6))
        penalty = Length.apply(y.sin(), passes)
        (y.mean() + penalty).backward()


@says("backward-returned-none", "penalty", "trains none of", severity="warning")
def term_whose_backward_returns_none(record: Record) -> None:
    two_terms(record, passes=False)


@silent("backward-returned-none")
def term_whose_backward_returns_a_gradient(record: Record) -> None:
    two_terms(record, passes=True)


class Match(torch.autograd.Function):
    """The mean of squared differences, whose second input is a constant target."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, target: Tensor) -> Tensor:
        ctx.save_for_backward(x - target)
        return (x - target).square().mean()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (difference,) = ctx.saved_tensors
        return gradient * 2 * difference / difference.numel(), None


@silent("backward-returned-none")
def target_without_a_gradient(record: Record) -> None:
    model = mlp()
    with record(model):
        y = model(torch.randn(8, 6))
        (y.mean() + Match.apply(y.sin(), y.cos())).backward()


def run_again(record: Record, restore: bool) -> None:
    """A checkpoint by hand whose forward calls two modules, the second with a dropout."""
    first, second = nn.Linear(6, 6), nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 6))

    class Again(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, *weights: Tensor) -> Tensor:
            ctx.save_for_backward(x, *weights)
            ctx.state = torch.get_rng_state()
            with torch.no_grad():
                result: Tensor = second(first(x))
            return result

        @staticmethod
        def backward(ctx: Any, *given: Tensor) -> Any:
            x, *weights = ctx.saved_tensors
            x = x.detach().requires_grad_()
            with torch.enable_grad(), torch.random.fork_rng(devices=[]):
                if restore:
                    torch.set_rng_state(ctx.state)
                result = second(first(x))
            return torch.autograd.grad(result, [x, *weights], given)

    model = nn.ModuleList([first, second])
    with record(model):
        x = torch.randn(4, 6, requires_grad=True)
        Again.apply(x, *model.parameters()).square().mean().backward()


@says("redrawn-dropout", "random state")
def random_state_that_is_not_restored(record: Record) -> None:
    run_again(record, restore=False)


@silent("redrawn-dropout")
def random_state_that_is_restored_before_two_modules(record: Record) -> None:
    run_again(record, restore=True)


def rotate(record: Record, conjugate: bool) -> None:
    """A product of complex numbers, whose backward multiplies by the conjugate of the other one."""

    class Rotate(Function):
        @staticmethod
        def forward(ctx: Any, z: Tensor, w: Tensor) -> Tensor:
            ctx.save_for_backward(z, w)
            return z * w

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
            z, w = ctx.saved_tensors
            return grad * w.conj(), (grad * (z.conj() if conjugate else z)).sum(0)

    weight = nn.Parameter(torch.randn(4, dtype=torch.complex64))
    with record(nn.ParameterList([weight])):
        z = torch.randn(16, 4, dtype=torch.complex64)
        (Rotate.apply(z, weight) - 2j * z).abs().square().mean().backward()


@says("wrong-backward", "wrong gradient")
def complex_factor_without_its_conjugate(record: Record) -> None:
    rotate(record, conjugate=False)


@silent("wrong-backward")
def complex_factor_with_its_conjugate(record: Record) -> None:
    rotate(record, conjugate=True)
