"""Gradients of torch.func by arguments that the function ignores, and by those that it uses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, hessian, jacrev, vmap

from tests.findings.corpus.cases import Record
from tests.findings.corpus.models import mlp
from tests.findings.mistakes.rows import says, silent

Weights = dict[str, Tensor]


def differentiate(record: Record, transform: Callable[..., Any], *, used: bool) -> None:
    model = mlp()
    weights = {name: p.detach() for name, p in model.named_parameters()}

    def loss(trained: Weights, x: Tensor) -> Tensor:
        return functional_call(model, trained if used else weights, (x,)).square().mean()

    with record(model):
        model(torch.randn(8, 6))
        transform(loss)(weights, torch.randn(8, 6))  # cause


@says("ignored-func-argument", "are all zero", "4 tensors")
def gradient_by_ignored_weights(record: Record) -> None:
    model = mlp()
    weights = {name: p.detach() for name, p in model.named_parameters()}
    with record(model):
        first = model(torch.randn(8, 6)).mean()
        per_sample = vmap(
            grad(lambda trained, x: functional_call(model, weights, (x,)).sum()), (None, 0)
        )
        per_sample(weights, torch.randn(8, 6))  # cause
        assert first.requires_grad


@silent("ignored-func-argument")
def a_gradient_by_used_weights(record: Record) -> None:
    differentiate(record, grad, used=True)


@silent("ignored-func-argument")
def a_jacobian_by_used_weights(record: Record) -> None:
    differentiate(record, jacrev, used=True)


@silent("ignored-func-argument")
def a_second_derivative_that_is_zero(record: Record) -> None:
    model = nn.Linear(3, 1)
    weights = {name: p.detach() for name, p in model.named_parameters()}
    with record(model):
        model(torch.randn(8, 3))
        hessian(lambda x: functional_call(model, weights, (x,)).sum())(torch.randn(8, 3))
        grad(lambda x: grad(lambda z: (2 * z).sum())(x).sum())(torch.randn(3))
