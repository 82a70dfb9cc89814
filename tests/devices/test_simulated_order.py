"""Test simulations that end out of order, in another thread, or by garbage collection."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.parallel import data_parallel
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from graphviz_torch import simulate_accelerator
from graphviz_torch.devices.simulated.accelerator import simulating
from graphviz_torch.devices.simulated.data_parallel import simulated_devices
from tests.support.programs import in_threads


def leave(simulation: Any) -> None:
    simulation.__exit__(None, None, None)


def modes() -> list[Any]:
    return [*_get_current_function_mode_stack(), *_get_current_dispatch_mode_stack()]


def test_an_inner_block_that_outlives_the_outer_one_works_on_and_the_last_one_leaves_nothing() -> (
    None
):
    before = data_parallel.__globals__["parallel_apply"]
    outer, host = simulate_accelerator(), simulate_accelerator(2)
    outer.__enter__()
    devices = host.__enter__()
    leave(outer)
    assert simulating()
    assert torch.ones(2).to(devices[1]).sum().item() == 2
    assert torch.tensor([3.0], device=devices[0]).tolist() == [3]
    assert simulated_devices() == devices
    leave(host)
    assert not simulating()
    assert modes() == simulated_devices() == []
    assert data_parallel.__globals__["parallel_apply"] is before


def test_a_block_that_another_thread_ends_is_over_and_the_block_there_goes_on() -> None:
    here = simulate_accelerator()
    here.__enter__()

    def elsewhere() -> tuple[float, list[Any]]:
        with simulate_accelerator(2) as devices:
            leave(here)
            found = torch.ones(1).to(devices[1]).item()
        return found, modes()

    assert in_threads(elsewhere) == [(1.0, [])]
    assert not simulating()
    assert torch.ones(2, device="meta:64").is_meta
    assert torch.ones(2).add(1).tolist() == [2, 2]
    with simulate_accelerator() as [device]:  # and takes what was left of the other one with it
        assert torch.ones(1).to(device).item() == 1
    assert modes() == []


def test_a_generator_that_is_collected_ends_its_own_block_alone() -> None:
    def held() -> Iterator[None]:
        with simulate_accelerator():
            yield

    generator: Any = held()
    next(generator)
    with simulate_accelerator() as [device]:
        around: list[Any] = [generator]
        around.append(around)  # so that the collector alone can end it
        del generator, around
        gc.collect()
        assert torch.ones(1).to(device).item() == 1
    assert modes() == []
