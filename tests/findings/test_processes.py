"""Test that mistakes of several processes over gloo are found, and are gone once repaired."""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed as dist

from graphviz_torch.findings.rule import FINDERS
from tests.support.processes.launch import launched

if not dist.is_available():
    pytest.skip("torch without distributed", allow_module_level=True)
from tests.support.processes.apart import APART, TOGETHER
from tests.support.processes.healthy import HEALTHY
from tests.support.processes.mistakes import ROWS

FAMILIES = ("averages", "collectives", "steps_and_ranks", "replicas")
OURS = {each.id for each in FINDERS if each.module.rpartition(".")[2] in FAMILIES}
OURS |= {"ineffective-clipping"}
Reports = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def reports() -> Reports:
    """Return the merged report of two ranks for each program."""
    return launched("tests.support.processes.reports", ranks=2)


@pytest.fixture(scope="module")
def trainings() -> Reports:
    """Return the merged report of two ranks for each training whose steps are recorded."""
    return launched("tests.support.processes.reports", "apart", ranks=2)


@pytest.mark.parametrize("name", ROWS)
def test_a_mistake_of_many_processes_is_named_once_and_no_other_is(
    reports: Reports, name: str
) -> None:
    row, found = ROWS[name], reports[name]
    [told] = [each for each in found if each["rule"] in OURS]
    assert (told["rule"], told["severity"]) == (row.rule, row.severity)
    assert not [words for words in row.words if words not in told["message"]]
    assert told["where"] == row.lines.get("cause", told["where"])


@pytest.mark.parametrize("name", ROWS)
def test_of_a_program_that_follows_the_advice_nothing_is_said(reports: Reports, name: str) -> None:
    assert OURS.isdisjoint(each["rule"] for each in reports[f"{name}, repaired"])


@pytest.mark.parametrize("name", HEALTHY)
def test_the_nearest_program_without_the_mistake_is_left_alone(reports: Reports, name: str) -> None:
    assert OURS.isdisjoint(each["rule"] for each in reports[name])


@pytest.mark.parametrize("name", APART)
def test_a_training_whose_ranks_come_apart_is_told_since_when_and_why(
    trainings: Reports, name: str
) -> None:
    row = APART[name]
    [told] = [each for each in trainings[name] if each["rule"] in OURS]
    assert told["rule"] == row.rule
    assert not [words for words in row.words if words not in told["message"]]
    assert (told["where"] in row.lines) is row.line


@pytest.mark.parametrize("name", APART)
def test_of_a_training_that_follows_the_advice_nothing_is_said(
    trainings: Reports, name: str
) -> None:
    assert OURS.isdisjoint(each["rule"] for each in trainings[f"{name}, repaired"])


def test_of_sixteen_trainings_at_least_twelve_are_told_with_their_line() -> None:
    assert len(APART) == 16
    assert sum(row.line for row in APART.values()) >= 12


@pytest.mark.parametrize("name", TOGETHER)
def test_of_a_training_whose_ranks_stay_together_nothing_is_said(
    trainings: Reports, name: str
) -> None:
    assert OURS.isdisjoint(each["rule"] for each in trainings[name])
