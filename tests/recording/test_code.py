"""Test what is read from the compiled code of a program."""

from __future__ import annotations

import sys
from types import CodeType, FrameType

import pytest

from graphviz_torch.internals.frames import CodePosition
from graphviz_torch.recording.program.code import find_assignment, find_method_call, is_made_by_call


def here() -> FrameType:
    return sys._getframe(1)


def line(place: CodePosition | None) -> int | None:
    """Return the line of a position, counted from the first line of its function."""
    if place is None:
        return None
    code, offset = place
    lines = (last for start, end, last in code.co_lines() if start <= offset < end)
    return (next(lines) or 0) - code.co_firstlineno


def test_a_variable_is_made_by_the_call_that_was_stored_in_it_last() -> None:
    made = list("a")
    given = made
    again = 1
    again = len(made)
    other = len(made)
    other = again
    frame = here()
    later = 1
    found = [n for n in frame.f_locals if is_made_by_call(frame, n)]
    assert found == ["made", "again", "frame"]
    assert (given, other, later) == (["a"], 1, 1)


def test_what_stands_below_the_line_that_runs_makes_no_variable() -> None:
    value = 1
    frame = here()
    before = is_made_by_call(frame, "value")
    value = len("a")
    assert (before, is_made_by_call(frame, "value"), value) == (False, True, 1)


def twice(optimizer: object, other: object) -> None:
    optimizer.step()  # type: ignore[attr-defined]
    other.step()  # type: ignore[attr-defined]
    other.rate = 1  # type: ignore[attr-defined]


def once(scheduler: object) -> None:
    scheduler.rate = 2  # type: ignore[attr-defined]
    scheduler.step()  # type: ignore[attr-defined]


TWICE, ONCE = twice.__code__, once.__code__


@pytest.mark.parametrize(
    ("codes", "name", "expected"),
    [
        ([ONCE], "", 2),
        ([TWICE], "", None),  # two calls: which is meant
        ([TWICE], "optimizer", 1),
        ([TWICE], "other", 2),
        ([TWICE, ONCE], "scheduler", 2),
        ([TWICE], "scheduler", None),
    ],
)
def test_a_call_is_found_where_only_one_can_be_meant(
    codes: list[CodeType], name: str, expected: int | None
) -> None:
    assert line(find_method_call(codes, "step", name)) == expected


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ([ONCE], 1),
        ([TWICE, ONCE], 3),  # that of the code which records comes first
        ([here.__code__, TWICE, ONCE], None),
        ([here.__code__, TWICE], 3),
        ([here.__code__], None),
    ],
)
def test_a_written_attribute_is_found_where_only_one_can_be_meant(
    codes: list[CodeType], expected: int | None
) -> None:
    assert line(find_assignment(codes, "rate")) == expected
