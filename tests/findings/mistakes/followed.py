"""Programs with a mistake that can follow the advice: softmaxes, broadcasts, clipping, Functions.

`test_mistakes.py` checks the finding, and `test_advice.py` that the advice helps.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD
from torch.utils.checkpoint import checkpoint

from tests.findings.corpus.cases import Record
from tests.findings.corpus.models import mlp
from tests.findings.mistakes.rows import says


@says("double-softmax", advice="the raw scores", same_loss=False)
def softmax_of_a_softmax(record: Record, followed: bool = False) -> Tensor:
    router = nn.Linear(6, 4)
    with record(router):
        logits = router(torch.randn(16, 6))
        scores = logits if followed else logits.softmax(-1)
        loss = scores.softmax(-1).mean(0).square().sum()
        loss.backward()
    return loss


@says("ignored-gradient", advice="Multiply the gradients")
def backward_without_its_gradient(record: Record, followed: bool = False) -> Tensor:
    class Keep(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, gradient: Tensor) -> Tensor:
            ctx.save_for_backward(gradient)
            return x.new_ones(())

        @staticmethod
        def backward(ctx: Any, grad_output: Tensor) -> Any:
            return ctx.saved_tensors[0], None

    class Scaled(Keep):
        @staticmethod
        def backward(ctx: Any, grad_output: Tensor) -> Any:
            return ctx.saved_tensors[0] * grad_output, None

    model = mlp()
    with record(model):
        y = model(torch.randn(8, 6))
        loss = 0.1 * (Scaled if followed else Keep).apply(y, torch.randn(8, 3))
        loss.backward()
    return loss


@says("redrawn-dropout", advice="Leave out preserve_rng_state=False")
def checkpoint_with_other_masks(record: Record, followed: bool = False) -> Tensor:
    block = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.5), nn.Linear(16, 3))
    with record(block):
        x = torch.randn(8, 6)
        y = checkpoint(block, x, use_reentrant=False, preserve_rng_state=followed)
        loss = y.square().mean()
        loss.backward()
    return loss


@says("checkpoint-differs", advice="or change it after backward", same_loss=False)
def layer_that_is_left_out_before_backward(record: Record, followed: bool = False) -> Tensor:
    layers = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6)])
    active = list(layers)

    def run(x: Tensor) -> Tensor:
        for layer in active:
            x = layer(x)
        return x

    with record(layers):
        x = torch.randn(8, 6, requires_grad=True)
        loss: Tensor = checkpoint(run, x, use_reentrant=True).square().mean()
        if not followed:
            active.pop()
        loss.backward()
    return loss


@says("ineffective-clipping", advice="keep the parameters in a list")
def clipping_of_a_used_iterator(record: Record, followed: bool = False) -> Tensor:
    model = mlp()
    parameters: Iterable[Tensor] = filter(lambda p: p.requires_grad, model.parameters())
    if followed:
        parameters = list(parameters)
    optimizer = SGD(parameters, lr=0.1)
    with record(model):
        loss = F.cross_entropy(model(torch.randn(8, 6)), torch.arange(8) % 3)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
    return loss


@says("accidental-broadcast", advice="keepdim=True", same_loss=False)
def weights_of_another_shape(record: Record, followed: bool = False) -> Tensor:
    net = nn.Conv2d(2, 2, 3, padding=1)
    with record(net):
        weight = torch.rand(4, 1, 1, 1)
        error = net(torch.randn(4, 2, 5, 5)).square().mean(1, keepdim=followed)
        loss = (weight * error).mean()
        loss.backward()
    return loss


@says("accidental-broadcast", advice="keepdim=True to the reduction", same_loss=False)
def maximum_of_rows_for_columns(record: Record, followed: bool = False) -> Tensor:
    model = mlp(6, 4)
    with record(model):
        scores = model(torch.randn(8, 6)) @ model(torch.randn(8, 6)).T
        largest = scores.detach().max(1, keepdim=followed).values
        loss = (scores - largest).exp().sum(1).log().mean()
        loss.backward()
    return loss
