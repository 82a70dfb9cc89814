"""Test recordings of programs with each kind of tensor: run, drawn, saved and loaded."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.support.tensors.programs import PROGRAMS, outcomes

# What the statistics are of, where it is not all of each gradient; () where there are none.
EXTENTS: dict[str, tuple[str, ...]] = {
    "tensor parallel": ("", "local part"),
    "sequence parallel": ("", "local part"),
    "tensor parallel and sharded": ("", "local part"),
    "a DTensor": ("", "local part"),
    "TwoTensor": ("inner tensors",),
    "LoggingTensor": (),
    "a wrapper": (),
    "a wrapper with an offset": (),
    "fake": (),
    "meta": (),
}
# Some at a time, in a process that one of them may end.
SIZE = 11
NAMES = list(PROGRAMS)
GROUPS = [NAMES[i : i + SIZE] for i in range(0, len(NAMES), SIZE)]


@pytest.mark.parametrize("names", GROUPS, ids=lambda names: f"from {names[0]}")
def test_a_program_of_any_kind_of_tensor_ends_as_it_does_bare(names: list[str]) -> None:
    ended = dict(outcomes(names))
    assert {name: each["error"] for name, each in ended.items() if each["error"]} == {}
    extents = {name: tuple(each["extents"]) for name, each in ended.items()}
    assert extents == {name: EXTENTS.get(name, ("",)) for name in names}
    assert {name: each["notes"] for name, each in ended.items() if each["notes"]} == {}


def test_the_numbers_are_those_of_the_part_that_they_are_said_to_be_of() -> None:
    ended: Any = dict(outcomes(["a DTensor", "TwoTensor", "a subclass with memory", "freed"]))
    # Of (1, 2, 3, 4) this process has (1, 2), and the gradient of x * x is 2 x.
    assert ended["a DTensor"]["leaves"]["leaf"] == [pytest.approx(math.hypot(2, 4))]
    # Both tensors of a TwoTensor are equal here: its norms are those of one, times the root of 2.
    for one, two in zip(
        ended["a subclass with memory"]["norms"], ended["TwoTensor"]["norms"], strict=True
    ):
        assert two == pytest.approx(one * math.sqrt(2))
    for name, [norm] in ended["a subclass with memory"]["leaves"].items():
        assert ended["TwoTensor"]["leaves"][name] == [pytest.approx(norm * math.sqrt(2))]
    assert ended["freed"]["norms"][0] is None  # its memory was not there when backward began
