"""Checkpointed segments that run other modules in backward, and similar programs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.findings.corpus.cases import Record
from tests.findings.mistakes.rows import says, silent


class Adapted(nn.Module):
    """A frozen layer with two adapters; the name of the active adapter is an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(6, 6).requires_grad_(False)
        self.adapters = nn.ModuleDict({name: nn.Linear(6, 6) for name in ("one", "other")})
        self.active: str | None = "one"

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.base(x)
        return y if self.active is None else y + self.adapters[self.active](x)


def adapt(record: Record, later: str | None, reentrant: bool = True) -> None:
    """Set the active adapter to `later` between forward and backward."""
    model, x = Adapted(), torch.randn(4, 6, requires_grad=True)
    with record(model):
        loss = checkpoint(model, x, use_reentrant=reentrant).square().mean()
        model.active = later
        loss.backward()


@says("checkpoint-differs", "called adapters.one in forward, but not when backward ran it again.")
def adapter_that_is_switched_off_before_backward(record: Record) -> None:
    adapt(record, None)


@says("checkpoint-differs", "adapters.one in forward", "which called adapters.other instead")
def adapter_of_another_task_in_backward(record: Record) -> None:
    adapt(record, "other")


@silent("output-not-in-loss")
def adapter_that_is_switched_off_before_each_of_several_backwards(record: Record) -> None:
    model, x = Adapted(), torch.randn(4, 6, requires_grad=True)
    with record(model):
        for _ in range(3):
            model.active = "one"
            loss = checkpoint(model, x, use_reentrant=True).square().mean()
            model.active = None
            loss.backward()


@silent("checkpoint-differs")
def adapter_that_stays_on(record: Record) -> None:
    adapt(record, "one")


def run_twice(record: Record, function: Callable[[nn.Module, Tensor], Any]) -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    with record(model):
        x = torch.randn(4, 6, requires_grad=True)
        y = checkpoint(function, model, x, use_reentrant=True)
        checkpoint(model[1], y, use_reentrant=True).square().mean().backward()


@silent("checkpoint-differs")
def random_layers_from_the_same_random_state(record: Record) -> None:
    run_twice(record, lambda model, x: model[0](x) if torch.rand(()) > 0.5 else model(x))


@silent("checkpoint-differs")
def module_without_gradients_in_a_segment(record: Record) -> None:
    def features(model: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            noise = model[1](x)
        result: Tensor = model[0](x) + noise
        return result

    run_twice(record, features)


@silent("checkpoint-differs")
def backward_that_is_tried_again(record: Record) -> None:
    class Fails(nn.Module):
        fails = False

        def forward(self, x: Tensor) -> Tensor:
            if self.fails:
                raise MemoryError
            return x

    layers = nn.Sequential(nn.Linear(6, 6), Fails(), nn.Linear(6, 6))
    with record(layers):
        x = torch.randn(4, 6, requires_grad=True)
        for fails in (True, False):
            loss = checkpoint(layers, x, use_reentrant=True).square().mean()
            layers[1].fails = fails
            with suppress(MemoryError):
                loss.backward()
            layers[1].fails = False


@silent("checkpoint-differs")
def segments_inside_a_segment(record: Record) -> None:
    def run(model: Any, x: Tensor) -> Any:
        for layer in (*model, *model):
            x = checkpoint(layer, x, use_reentrant=True)
        return x

    run_twice(record, run)


@silent("checkpoint-differs")
def segment_of_a_teacher_without_gradients(record: Record) -> None:
    teacher, student = nn.Linear(6, 6), nn.Linear(6, 6)
    with record(nn.ModuleList([teacher, student])):
        x = torch.randn(4, 6, requires_grad=True)
        with torch.no_grad():
            target = checkpoint(teacher, x, use_reentrant=True)
        y = checkpoint(student, x, use_reentrant=True)
        (y - target).square().mean().backward()


@silent("checkpoint-differs")
def segment_whose_result_is_detached(record: Record) -> None:
    generator, critic = nn.Linear(6, 6), nn.Linear(6, 6)
    with record(nn.ModuleList([generator, critic])):
        x = torch.randn(4, 6, requires_grad=True)
        fake = checkpoint(generator, x, use_reentrant=True).detach().requires_grad_()
        checkpoint(critic, fake, use_reentrant=True).square().mean().backward()


@silent("checkpoint-differs")
def validation_after_a_checkpointed_step(record: Record) -> None:
    model = nn.Linear(6, 6)
    with record(model):
        x = torch.randn(4, 6, requires_grad=True)
        checkpoint(model, x, use_reentrant=True).square().mean().backward()
        with torch.no_grad():
            model(torch.randn(4, 6))
