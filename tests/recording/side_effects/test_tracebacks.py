"""Test that warnings and tracebacks are the same as without a recording."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from graphviz_torch import record


def broadcast() -> None:
    functional.mse_loss(torch.ones(2, 1, requires_grad=True), torch.ones(2))


def broadcast_in_a_module() -> None:
    nn.MSELoss()(torch.ones(2, 1, requires_grad=True), torch.ones(2))


def gradient_of_a_result() -> None:
    _ = (torch.ones(2, requires_grad=True) * 2).grad


def soft() -> None:
    functional.softmax(torch.ones(2, requires_grad=True))


WARNINGS = [broadcast, broadcast_in_a_module, gradient_of_a_result, soft]


def shown(run: Callable[[], None], recordings: int, times: int = 1) -> list[tuple[str, int, str]]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("default")
        for _ in range(times):
            with ExitStack() as stack:
                for _ in range(recordings):
                    stack.enter_context(record())
                run()
    return [(w.filename, w.lineno, str(w.message)) for w in found]


@pytest.mark.parametrize("run", WARNINGS)
@pytest.mark.parametrize("recordings", [1, 2])
def test_a_warning_names_the_line_that_it_names_without_us(
    run: Callable[[], None], recordings: int
) -> None:
    bare = shown(run, 0)
    assert len(bare) == 1
    assert shown(run, recordings) == bare


@pytest.mark.parametrize("run", WARNINGS)
def test_a_warning_is_shown_once_for_each_line_as_without_us(run: Callable[[], None]) -> None:
    assert shown(run, 1, times=3) == shown(run, 0, times=3)


def test_a_complex_result_of_a_module_causes_no_warning() -> None:
    model = nn.Linear(3, 2, dtype=torch.cfloat)
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings(record=True) as found, record(model):
            model(torch.ones(4, 3, dtype=torch.cfloat)).abs().sum().backward()
    finally:
        torch.set_warn_always(always)
    assert not found


@pytest.mark.parametrize("action", ["error", "ignore"])
def test_a_filter_by_module_takes_a_warning_as_without_us(action: Any) -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        warnings.filterwarnings(action, module=__name__.replace(".", r"\."))
        with pytest.raises(UserWarning) if action == "error" else nullcontext(), record():
            broadcast()
    assert not found


def a_call() -> None:
    torch.ones(2, 3, requires_grad=True) @ torch.ones(2, 3)


def a_function_of_torch() -> None:
    functional.linear(torch.ones(2, 3, requires_grad=True), torch.ones(2, 2))


def a_module() -> None:
    nn.Linear(3, 2)(torch.ones(2, 2))


def a_backward() -> None:
    loss = torch.ones(2, requires_grad=True).exp().sum()
    loss.backward()
    loss.backward()


def a_hook() -> None:
    x = torch.ones(2, requires_grad=True)
    x.register_hook(lambda gradient: 1 / 0)
    x.exp().sum().backward()


@pytest.mark.parametrize("run", [a_call, a_function_of_torch, a_module, a_backward, a_hook])
def test_a_traceback_has_no_frame_of_ours(run: Callable[[], None]) -> None:
    def caught(recorded: bool) -> list[str]:
        with record() if recorded else nullcontext():
            try:
                run()
            except Exception as error:
                return [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
        raise AssertionError

    ours = record.__code__.co_filename.removesuffix("recording/recording.py")
    assert not [name for name in caught(True) if name.startswith(ours)]
    # Before a mode PyTorch may have a frame of its own more.
    assert set(caught(False)) <= set(caught(True))
