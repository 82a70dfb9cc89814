"""Programs for advice on exceptions, and on losses that train nothing."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD

from tests.findings.advice.rows import follows, two
from tests.findings.corpus.cases import Record, step
from tests.findings.corpus.models import mlp

CLASSES = torch.arange(8) % 3


@follows("backward-twice", "Add the losses", "body.weight", raises="second time", same_loss=False)
def two_losses_of_one_result(record: Record, followed: bool) -> Tensor:
    model = two(nn.Linear(6, 8), nn.Linear(8, 3))
    with record(model):
        h = model["body"](torch.randn(8, 6)).tanh()
        one, other = F.cross_entropy(model["head"](h), CLASSES), h.square().mean()
        if followed:
            one = one + other
            one.backward()
        else:
            one.backward()
            other.backward()
    return one


@follows(
    "changed-in-place", "Compute a new tensor", "body.weight", raises="inplace", same_loss=False
)
def result_that_is_added_to(record: Record, followed: bool) -> Tensor:
    model = two(nn.Linear(6, 8), nn.Linear(8, 3))
    with record(model):
        h = model["body"](torch.randn(8, 6)).exp()
        if followed:
            h = h + 1
        else:
            h += 1
        loss = F.cross_entropy(model["head"](h), CLASSES)
        loss.backward()
    return loss


@follows(
    "changed-in-place",
    "clone() on the base tensor",
    "body.weight",
    raises="inplace",
    same_loss=False,
)
def view_that_is_added_to(record: Record, followed: bool) -> Tensor:
    model = two(nn.Linear(6, 8), nn.Linear(8, 3))
    with record(model):
        h = whole = model["body"](torch.randn(8, 6)).exp()
        if followed:
            whole = h.clone()
        first = whole[:, :4]
        first += 1.0
        loss = F.cross_entropy(model["head"](whole), CLASSES)
        loss.backward()
    meant = torch.cat([h[:, :4] + 1, h[:, 4:]], 1)
    assert torch.equal(F.cross_entropy(model["head"](meant), CLASSES), loss)
    return loss


@follows("frozen", "Call requires_grad_(True)", "weight", raises="grad", same_loss=False)
def model_that_is_frozen(record: Record, followed: bool) -> Tensor:
    model = nn.Linear(6, 3).requires_grad_(followed)
    with record(model):
        loss = F.cross_entropy(model(torch.randn(8, 6)), CLASSES)
        loss.backward()
    return loss


@follows("grad-of-non-leaf", "detach().requires_grad_()", raises="NoneType", same_loss=False)
def gradient_of_a_scaled_input(record: Record, followed: bool) -> Tensor:
    model = mlp()
    with record(model):
        x = torch.randn(8, 6, requires_grad=True) * 2
        if followed:
            x = x.detach().requires_grad_()
        loss = F.cross_entropy(model(x), CLASSES)
        loss.backward()
        assert x.grad is not None or not followed
        x.grad.norm()  # type: ignore[union-attr]
    return loss


@follows("loss-is-a-leaf", "Compute loss from the model's output", "weight")
def loss_that_is_made_anew(record: Record, followed: bool) -> Tensor:
    model = nn.Linear(6, 3)
    with record(model):
        loss = F.cross_entropy(model(torch.randn(8, 6)), CLASSES)
        if not followed:
            loss = torch.tensor(loss.item(), requires_grad=True)
        loss.backward()
    return loss


@follows("zero-grad-before-step", "Call optimizer.step() after backward()")
def gradients_that_no_step_uses(record: Record, followed: bool) -> Tensor:
    model, first = mlp(), torch.zeros(())
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for i in range(3):
            loss = F.cross_entropy(model(torch.randn(8, 6)), CLASSES)
            optimizer.zero_grad()
            loss.backward()
            if followed:
                optimizer.step()
            first = first if i else loss.detach()
    return first


@follows("zero-grad-before-step", "Call zero_grad() right after each step()", same_loss=False)
def gradients_cleared_in_each_part(record: Record, followed: bool) -> Tensor:
    model, first = mlp(), torch.zeros(())
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for i in range(8):
            loss = F.cross_entropy(model(torch.randn(8, 6)), CLASSES)
            if not followed:
                optimizer.zero_grad()
            loss.backward()
            if i % 2:
                optimizer.step()
                if followed:
                    optimizer.zero_grad()
            first = first if i else loss.detach()
    return first


@follows("optimizer-never-stepped", "Call step() of that optimizer")
def second_optimizer_that_is_forgotten(record: Record, followed: bool) -> Tensor:
    model, first = two(nn.Linear(6, 8), nn.Linear(8, 3)), torch.zeros(())
    other, optimizer = SGD(model["body"].parameters(), 0.1), SGD(model["head"].parameters(), 0.1)
    with record(model):
        for i in range(3):
            h = model["body"](torch.randn(8, 6)).detach()
            loss = F.cross_entropy(model["head"](h), CLASSES)
            step(optimizer, loss)
            other.zero_grad()
            model["body"](torch.randn(8, 6)).square().mean().backward()
            if followed:
                other.step()
            first = first if i else loss.detach()
    return first


@follows("mixed-losses", "Call optimizer.zero_grad() before the second backward")
def gradient_that_another_loss_left(record: Record, followed: bool) -> Tensor:
    model, first = two(nn.Linear(6, 8), nn.Linear(8, 3)), torch.zeros(())
    optimizer, other = SGD(model["body"].parameters(), 0.1), SGD(model["head"].parameters(), 0.1)
    with record(model):
        for i in range(2):
            loss = F.cross_entropy(model["head"](model["body"](torch.randn(8, 6))), CLASSES)
            first = first if i else loss.detach()
            loss.backward()
            other.step()
            if followed:
                optimizer.zero_grad()
            model["body"](torch.randn(8, 6)).square().mean().backward()
            optimizer.step()
            model.zero_grad()
    return first


@follows(
    "attribute-without-effect",
    "Call body.requires_grad_(False)",
    freezes=("body.weight", "body.bias"),
)
def module_that_is_frozen_by_an_attribute(record: Record, followed: bool) -> Tensor:
    model = two(nn.Linear(6, 8), nn.Linear(8, 3))
    if followed:
        model["body"].requires_grad_(False)
    else:
        model["body"].requires_grad = False
    with record(model):
        loss = F.cross_entropy(model["head"](model["body"](torch.randn(8, 6))), CLASSES)
        loss.backward()
    return loss


@follows("attribute-without-effect", "Write requires_grad in place", freezes=("body.weight",))
def weight_that_is_frozen_by_a_wrong_name(record: Record, followed: bool) -> Tensor:
    model = two(nn.Linear(6, 8), nn.Linear(8, 3))
    setattr(model["body"].weight, "requires_grad" if followed else "require_grad", False)
    with record(model):
        loss = F.cross_entropy(model["head"](model["body"](torch.randn(8, 6))), CLASSES)
        loss.backward()
    return loss
