"""Test which line of the program disabled gradients, at each moment of a recording."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from graphviz_torch import record

LAYER = torch.nn.Linear(3, 2)


def call() -> torch.Tensor:
    return LAYER(torch.ones(2, 3))


def block() -> None:
    with torch.set_grad_enabled(False):
        call()  # here


def bare_call() -> None:
    torch.set_grad_enabled(False)  # here
    call()


def after_a_block_inside() -> None:
    torch.set_grad_enabled(False)  # here
    with torch.no_grad():
        torch.ones(2)
    with torch.enable_grad():
        call()
    call()


def block_inside() -> None:
    torch.set_grad_enabled(False)
    with torch.no_grad():
        call()  # here


def block_after_it_was_switched_on() -> None:
    torch.set_grad_enabled(False)
    torch.set_grad_enabled(True)
    with torch.no_grad():
        call()  # here


@torch.no_grad()
def decorated() -> None:
    call()  # here


@pytest.mark.parametrize(
    ("program", "how"),
    [
        (block, "set_grad_enabled"),
        (bare_call, "switched_off"),
        (after_a_block_inside, "switched_off"),
        (block_inside, "no_grad"),
        (block_after_it_was_switched_on, "no_grad"),
        (decorated, "no_grad"),
    ],
)
def test_a_cut_names_what_switched_gradients_off_and_is_at_the_line_of_a_call_that_stays(
    program: Callable[[], None], how: str
) -> None:
    recording = record(LAYER)
    with suppress(RuntimeError), recording:
        program()
        torch.ones(1).sum().backward()
    torch.set_grad_enabled(True)
    text, first = inspect.getsourcelines(program)
    [own] = [i for i, line in enumerate(text, first) if line.rstrip().endswith("# here")]
    place = f"{Path(__file__).name}:{own}"
    cuts = {(cut.how, cut.where) for cut in recording.graph.cuts}
    assert {each for each, _ in cuts} == {how}
    if how == "switched_off":
        assert cuts == {(how, place)}
