"""Programs for advice on cuts and lost gradients."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.distributions import Normal
from torch.nn import functional as F
from torch.optim import Adam
from torch.utils.checkpoint import checkpoint

from tests.findings.advice.rows import follows, two
from tests.findings.corpus.cases import Record, step
from tests.findings.corpus.models import mlp

# --- cuts ----------------------------------------------------------------------------------------


def cut_by(how: Callable[[nn.Module, Tensor], Tensor], record: Record, followed: bool) -> Tensor:
    """The features of a body go into a head, cut."""
    model = two(nn.Linear(6, 8), nn.Linear(8, 3))
    with record(model):
        x = torch.randn(8, 6)
        h = model["body"](x) if followed else how(model["body"], x)
        loss = F.cross_entropy(model["head"](h.relu()), torch.arange(8) % 3)
        loss.backward()
    return loss


@follows("cut-gradient", "Remove the detach()", "body.weight", "body.bias")
def features_that_are_detached(record: Record, followed: bool) -> Tensor:
    return cut_by(lambda body, x: body(x).detach(), record, followed)


@follows("cut-gradient", "Use the tensor itself", "body.weight", "body.bias")
def features_by_their_data(record: Record, followed: bool) -> Tensor:
    return cut_by(lambda body, x: body(x).data, record, followed)


@follows("cut-gradient", "Use the tensor itself", "body.weight", "body.bias")
def features_made_a_list(record: Record, followed: bool) -> Tensor:
    return cut_by(lambda body, x: torch.tensor(body(x).tolist()), record, followed)


@follows("cut-gradient", "instead of NumPy", "body.weight", "body.bias")
def features_through_numpy(record: Record, followed: bool) -> Tensor:
    return cut_by(lambda body, x: torch.from_numpy(body(x).detach().numpy()), record, followed)


@follows("cut-gradient", "out of torch.set_grad_enabled(False)", "body.weight", "body.bias")
def features_scaled_without_gradients(record: Record, followed: bool) -> Tensor:
    model = two(nn.Linear(6, 8), nn.Linear(8, 3))
    with record(model):
        h = model["body"](torch.randn(8, 6))
        with torch.set_grad_enabled(followed):
            h = h * 2
        loss = F.cross_entropy(model["head"](h.relu()), torch.arange(8) % 3)
        loss.backward()
    return loss


def body_under_no_grad(record: Record, *, graded: bool, frozen: bool) -> Tensor:
    """A body that an optimizer holds, called whole under no_grad."""
    model = two(mlp(6, 8), nn.Linear(8, 3))
    model["body"].requires_grad_(not frozen)
    optimizer = Adam(model.parameters())
    with record(model):
        with torch.set_grad_enabled(graded):
            h = model["body"](torch.randn(8, 6))
        loss = F.cross_entropy(model["head"](h), torch.arange(8) % 3)
        step(optimizer, loss)
    return loss


BODY = tuple(f"body.{name}" for name, _ in mlp(6, 8).named_parameters())


@follows("cut-gradient", "Call body outside of torch.set_grad_enabled(False)", *BODY)
def body_that_is_to_learn(record: Record, followed: bool) -> Tensor:
    return body_under_no_grad(record, graded=followed, frozen=False)


@follows("cut-gradient", "freeze it with requires_grad_(False)", freezes=BODY)
def body_that_is_to_stay(record: Record, followed: bool) -> Tensor:
    return body_under_no_grad(record, graded=False, frozen=followed)


@follows("cut-gradient", "Call rsample()", "body.weight", "body.bias")
def noise_that_is_sampled(record: Record, followed: bool) -> Tensor:
    model = two(nn.Linear(6, 8), nn.Linear(4, 3))
    with record(model):
        mean, log_std = model["body"](torch.randn(8, 6)).chunk(2, 1)
        latent = Normal(mean, log_std.exp())
        z = latent.rsample() if followed else latent.sample()
        loss = F.cross_entropy(model["head"](z), torch.arange(8) % 3)
        loss.backward()
    return loss


@follows("cut-gradient", "use_reentrant=False", "body.weight", "body.bias")
def checkpoint_of_the_first_layer(record: Record, followed: bool) -> Tensor:
    model = two(nn.Linear(6, 8), nn.Linear(8, 3))
    with record(model):
        h = checkpoint(model["body"], torch.randn(8, 6), use_reentrant=not followed)
        assert isinstance(h, Tensor)
        loss = F.cross_entropy(model["head"](h.relu()), torch.arange(8) % 3)
        loss.backward()
    return loss


@follows(
    "cut-gradient",
    "with torch.no_grad(): at",
    "weight",
    "bias",
    same_loss=False,
    raises="not require grad",
)
def preview_that_leaves_gradients_off(record: Record, followed: bool) -> Tensor:
    model = nn.Linear(6, 3)
    try:
        with record(model):
            if followed:
                with torch.no_grad():
                    model(torch.randn(2, 6))
            else:
                torch.set_grad_enabled(False)
                model(torch.randn(2, 6))
            loss = F.cross_entropy(model(torch.randn(8, 6)), torch.arange(8) % 3)
            loss.backward()
    finally:
        torch.set_grad_enabled(True)
    return loss


@follows("cut-gradient", "torch.nested.as_nested_tensor()", "body.weight", "body.bias")
def tokens_of_several_lengths(record: Record, followed: bool) -> Tensor:
    model = two(nn.Linear(6, 8), nn.Linear(8, 3))
    make = torch.nested.as_nested_tensor if followed else torch.nested.nested_tensor
    with record(model):
        rows = make([*model["body"](torch.randn(8, 6)).split([2, 6])], layout=torch.jagged)
        loss = F.cross_entropy(model["head"](rows).values(), torch.arange(8) % 3)
        loss.backward()
    return loss


@follows("cut-gradient", "softmax", "body.weight", "body.bias", same_loss=False)
def expert_chosen_by_argmax(record: Record, followed: bool) -> Tensor:
    model = two(nn.Linear(6, 4), nn.Linear(4, 3))
    with record(model):
        scores = model["body"](torch.randn(8, 6))
        chosen = scores.softmax(1) if followed else F.one_hot(scores.argmax(1), 4).float()
        loss = F.cross_entropy(model["head"](chosen), torch.arange(8) % 3)
        loss.backward()
    return loss


@follows("cut-gradient", "create_graph=True", "body.weight")
def penalty_without_a_graph(record: Record, followed: bool) -> Tensor:
    model = two(nn.Linear(6, 8), nn.Linear(6, 1))
    with record(model):
        x = torch.randn(8, 6, requires_grad=True)
        out = model["body"](x).tanh().sum()
        (slope,) = torch.autograd.grad(out, x, create_graph=followed)
        loss = (slope.square().sum(1) - 1).square().mean() + model["head"](x).square().mean()
        loss.backward()
    return loss


@follows("constant-term", "Remove the detach()", "body.weight", "head.weight")
def term_that_is_detached(record: Record, followed: bool) -> Tensor:
    model = two(nn.Linear(6, 8), nn.Linear(8, 3))
    with record(model):
        h = model["body"](torch.randn(8, 6))
        size = h.square().mean()
        loss = F.cross_entropy(model["head"](h.relu()), torch.arange(8) % 3)
        loss = loss + (size if followed else size.detach())
        loss.backward()
    return loss


# --- gradients that are lost ---------------------------------------------------------------------


@follows("zero-gradient", "x + (torch.round(x) - x).detach()", "body.weight", "body.bias")
def rounded_on_the_way(record: Record, followed: bool) -> Tensor:
    model = two(nn.Linear(6, 8), nn.Linear(8, 3))
    with record(model):
        x = 3 * model["body"](torch.randn(8, 6))
        h = x + (torch.round(x) - x).detach() if followed else torch.round(x)
        loss = F.cross_entropy(model["head"](h), torch.arange(8) % 3)
        loss.backward()
    return loss


@follows("softmax-of-one", "binary_cross_entropy_with_logits", "weight", "bias", same_loss=False)
def softmax_of_one_output(record: Record, followed: bool) -> Tensor:
    model, target = nn.Linear(6, 1), (torch.arange(8.0) % 2)[:, None]
    with record(model):
        out = model(torch.randn(8, 6))
        if followed:
            loss = F.binary_cross_entropy_with_logits(out, target)
        else:
            loss = F.binary_cross_entropy(out.softmax(1), target)
        loss.backward()
    return loss


@follows("zero-gradient", "Lower the scale", "body.weight", "body.bias", same_loss=False)
def softmax_of_huge_scores(record: Record, followed: bool) -> Tensor:
    model = two(nn.Linear(6, 3), nn.Linear(3, 3))
    with record(model):
        weights = ((1 if followed else 1e6) * model["body"](torch.randn(8, 6))).softmax(1)
        loss = F.cross_entropy(model["head"](weights), torch.arange(8) % 3)
        loss.backward()
    return loss


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor, given: bool) -> Tensor:
        ctx.given = given  # type: ignore[attr-defined]
        return 2 * x

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *grads: Tensor) -> tuple[object, ...]:
        return (2 * grads[0] if ctx.given else None), None  # type: ignore[attr-defined]


@follows("backward-returned-none", "Return a gradient for every input", "body.weight", "body.bias")
def function_without_a_gradient(record: Record, followed: bool) -> Tensor:
    model = two(nn.Linear(6, 8), nn.Linear(8, 3))
    with record(model):
        h: Tensor = Doubled.apply(model["body"](torch.randn(8, 6)), followed)  # type: ignore[no-untyped-call]
        loss = F.cross_entropy(model["head"](h), torch.arange(8) % 3)
        loss.backward()
    return loss


@follows("data-assignment", "Use h itself in place of", "body.weight")
def values_put_into_a_buffer(record: Record, followed: bool) -> Tensor:
    model = two(nn.Linear(6, 8), nn.Linear(8, 3))
    with record(model):
        h, buffer = model["body"](torch.randn(8, 6)), torch.zeros(8, 8)
        if followed:
            buffer = h
        else:
            buffer.data = h
        loss = F.cross_entropy(model["head"](buffer), torch.arange(8) % 3)
        loss.backward()
    return loss


@follows("never-called", "Call", "head.weight", same_loss=False)
def head_that_is_not_called(record: Record, followed: bool) -> Tensor:
    model = two(nn.Linear(6, 8), nn.Linear(8, 3))
    with record(model):
        h = model["body"](torch.randn(8, 6))
        loss = F.cross_entropy(model["head"](h) if followed else h, torch.arange(8) % 3)
        loss.backward()
    return loss


@follows("output-not-in-loss", "Use the result of", "head.weight", same_loss=False)
def head_whose_result_is_left(record: Record, followed: bool) -> Tensor:
    model = two(nn.Linear(6, 8), nn.Linear(8, 8))
    with record(model):
        h = model["body"](torch.randn(8, 6))
        more = model["head"](h)
        loss = F.cross_entropy(h + more if followed else h, torch.arange(8) % 3)
        loss.backward()
    return loss
