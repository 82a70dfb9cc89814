"""Trainings in PyTorch's anomaly mode, and trainings in which only one step is debugged."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn
from torch.autograd import detect_anomaly, set_detect_anomaly
from torch.optim import LBFGS, SGD

from tests.findings.corpus.cases import Record, step
from tests.findings.corpus.models import mlp
from tests.findings.mistakes.rows import says, silent

Mode = AbstractContextManager[object]


def train(
    model: nn.Module, steps: int, mode: Callable[[int], Mode] = lambda i: nullcontext()
) -> None:
    optimizer = SGD(model.parameters(), lr=0.1)
    for i in range(steps):
        with mode(i):
            step(optimizer, model(torch.randn(8, 6)).square().mean())


@says(
    "anomaly-mode",
    "switched on at {cause}",
    "in 3 training steps",
    advice="Switch anomaly mode off",
)
def a_mode_that_is_never_switched_off(record: Record) -> None:
    model = mlp()
    with record(model):
        set_detect_anomaly(True)  # cause
        train(model, 3)
    set_detect_anomaly(False)


@says("anomaly-mode", "in 2 training steps")
def a_block_around_the_training(record: Record) -> None:
    model = mlp()
    with record(model), detect_anomaly():  # cause
        train(model, 2)


@says("anomaly-mode", "in 2 training steps")
def a_block_around_each_step(record: Record) -> None:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for _ in range(2):
            with set_detect_anomaly(True):  # cause
                step(optimizer, model(torch.randn(8, 6)).square().mean())


@says("anomaly-mode", "switched on at {cause}", "in 4 training steps")
def a_mode_that_is_restored_after_a_block_without_it(record: Record) -> None:
    model = mlp()
    with record(model), set_detect_anomaly(True):  # cause
        train(model, 6, lambda i: set_detect_anomaly(i not in (2, 3)))


@says("anomaly-mode", "Anomaly mode was on in 3 training steps")
def a_mode_from_before_the_recording(record: Record) -> None:
    model = mlp()
    with set_detect_anomaly(True), record(model):
        train(model, 3)


@says("anomaly-mode", "in 2 training steps")
def two_steps_with_a_closure(record: Record) -> None:
    model = mlp()
    optimizer = LBFGS(model.parameters(), max_iter=1)

    def closure() -> float:
        optimizer.zero_grad()
        loss = model(torch.ones(8, 6)).square().mean()
        loss.backward()
        return loss.item()

    with record(model), set_detect_anomaly(True):  # cause
        for _ in range(2):
            optimizer.step(closure)


@silent("anomaly-mode")
def one_step_of_many_in_anomaly_mode(record: Record) -> None:
    model = mlp()
    with record(model):
        train(model, 4, lambda i: set_detect_anomaly(i == 1))


@silent("anomaly-mode")
def every_second_step_in_anomaly_mode(record: Record) -> None:
    model = mlp()
    with record(model):
        train(model, 6, lambda i: set_detect_anomaly(i % 2 == 0))


@silent("anomaly-mode")
def one_debugged_step_of_two_optimizers(record: Record) -> None:
    one, other = mlp(), mlp()
    optimizers = SGD(one.parameters(), lr=0.1), SGD(other.parameters(), lr=0.1)
    with record():
        for i in range(3):
            with set_detect_anomaly(i == 0):
                for model, optimizer in zip((one, other), optimizers, strict=True):
                    step(optimizer, model(torch.randn(8, 6)).square().mean())


@silent("anomaly-mode")
def a_mode_that_is_switched_off_before_the_training(record: Record) -> None:
    model = mlp()
    with record(model):
        set_detect_anomaly(True)
        train(model, 1)
        set_detect_anomaly(False)
        train(model, 3)
