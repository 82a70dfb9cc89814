"""Test the records of optimizers: what each step began with."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.optim import SGD, Adam, Optimizer

from graphviz_torch.internals.hooks.optimizers import Stepped, Stepping
from graphviz_torch.recording.optimizer_log import OptimizerLog, OptimizerRecord, learning_rate


def weight() -> torch.nn.Parameter:
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    return parameter


def step(log: OptimizerLog[OptimizerRecord], optimizer: Optimizer, *args: Any) -> OptimizerRecord:
    record = log.on_optimizer_step_start(Stepping(optimizer, args, sys._getframe()))
    optimizer.step()
    log.on_optimizer_step_end(Stepped(optimizer))
    return record


def test_a_learning_rate_is_one_number_for_everybody_and_a_device_is_not_waited_for() -> None:
    rates: list[Any] = [0.1, 1, torch.tensor(0.5), torch.ones(1, device="meta"), torch.ones(2), "x"]
    expected = [0.1, 1.0, 0.5, None, None, None]
    assert [learning_rate({"lr": rate}) for rate in rates] == expected


def test_a_record_counts_steps_and_knows_what_each_began_with() -> None:
    log = OptimizerLog(OptimizerRecord)
    adam = Adam([{"params": [weight()], "lr": 0.5}, {"params": [weight()], "lr": 0.0}])
    first = step(log, adam)
    assert (first.steps, first.rates, first.had_state, first.keeps_state) == (
        1,
        [0.5, 0],
        False,
        True,
    )
    adam.param_groups[0]["lr"] = 0.25
    second = step(log, adam, lambda: 0.0)
    assert second is first
    assert (second.steps, second.rates, second.had_state) == (2, [0.25, 0], True)
    assert second.computes
    assert not step(log, SGD([weight()], 0.1)).keeps_state


def test_an_optimizer_at_the_address_of_a_dead_one_has_a_record_of_its_own() -> None:
    log = OptimizerLog(OptimizerRecord)
    records = [step(log, SGD([weight()], 0.1)) for _ in range(200)]
    assert {record.steps for record in records} == {1}
    alive = SGD([weight()], 0.1)
    step(log, alive)
    assert [record.ref() for record in log] == [alive]


def test_the_records_of_many_optimizers_are_bounded() -> None:
    log, many = OptimizerLog(OptimizerRecord), [SGD([weight()], 0.1) for _ in range(80)]
    for optimizer in many:
        step(log, optimizer)
    assert [record.ref() for record in log] == many[-64:]
