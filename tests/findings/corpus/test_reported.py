"""Bugs that people reported are named with cause and line, and healthy trainings are left alone."""

from __future__ import annotations

import pytest

from graphviz_torch import Finding
from tests.findings.corpus import (
    healthy,
    healthy_generative,
    healthy_on_purpose,
    healthy_techniques,
    reported_before,
    reported_before_values,
)
from tests.findings.corpus.cases import HEALTHY, REPORTED, Reported, play

MODULES = (
    healthy,
    healthy_generative,
    healthy_on_purpose,
    healthy_techniques,
    reported_before,
    reported_before_values,
)
assert all(MODULES)  # each has entered its rows

# What `find` does not name yet, or not with its line. The list only gets shorter: a row that is
# reached fails until it is taken out.
NOT_YET = frozenset[str]()
FALSE_ALARMS = frozenset[str]()


def rows(names: list[str], not_yet: frozenset[str]) -> list[object]:
    mark = pytest.mark.xfail(strict=True, raises=AssertionError, reason="not reached yet")
    return [pytest.param(name, marks=mark if name in not_yet else ()) for name in names]


BEFORE = [name for name, row in REPORTED.items() if row.half == "before"]


@pytest.mark.parametrize("name", rows(BEFORE, NOT_YET))
def test_a_reported_bug_is_named_with_its_cause_and_its_line(name: str) -> None:
    row = REPORTED[name]
    findings = play(row.program, row.raises)
    assert row.score(findings) == 1.0, (row.cause, sorted(row.lines), findings)


@pytest.mark.parametrize("name", rows(list(HEALTHY), FALSE_ALARMS))
def test_a_healthy_training_has_neither_errors_nor_warnings(name: str) -> None:
    assert [f for f in play(HEALTHY[name]) if f.severity != "info"] == []


def test_what_is_not_reached_is_listed_by_names_that_exist() -> None:
    assert set(BEFORE) >= NOT_YET
    assert set(HEALTHY) >= FALSE_ALARMS


def test_each_row_has_a_thread_of_its_own_and_a_marked_line() -> None:
    table = [REPORTED[name] for name in BEFORE]
    assert len({row.address for row in table}) == len(table) >= 32
    assert all(row.address.startswith("https://") for row in table)
    assert all(row.cause.endswith(".") for row in table)
    assert all(1 <= len(row.lines) <= 3 for row in table)
    assert len(HEALTHY) >= 54


def test_a_point_is_for_the_cause_and_the_line_in_one_of_the_first_two_findings() -> None:
    row = Reported(reported_before.adjacency_detached, "https://", "A cut.", r"detach", None)
    (line,) = row.lines
    exact = Finding("", "warning", f"adj was cut by detach() at {line}.", where="other.py:1")
    cause = Finding("", "warning", "adj was cut by detach().", where=f"{line}0")
    place = Finding("", "warning", "theta got no gradient.", where=line)
    other = Finding("", "warning", "no optimizer holds it.", where="other.py:1")
    assert [row.score([f]) for f in (exact, cause, place, other)] == [1, 0.5, 0.5, 0]
    assert [row.score([cause, place]), row.score([])] == [0.5, 0]
    assert [row.score([other, exact]), row.score([other, other, exact])] == [1, 0]
    assert [row.misled([f]) for f in (exact, cause, place, other)] == [False, False, False, True]
