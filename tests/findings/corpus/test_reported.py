"""Test that reported bugs are found with cause and line, and healthy trainings have no findings."""

from __future__ import annotations

import pytest

from graphviz_torch import Finding
from tests.findings.corpus import tables
from tests.findings.corpus.cases import HEALTHY, REPORTED, Reported, names_own_line_first, play
from tests.findings.corpus.reported import before

assert tables  # full

# What `find` does not name yet, or not with its line. The list only gets shorter: a row that is
# reached fails until it is taken out.
NOT_YET = frozenset(
    [
        "penalty_never_added",
        "function_that_ignores_one_gradient",
        "residual_of_a_straight_through_result",
        "selective_kernels_over_the_batch",
        "encoder_without_batch_first",
        "scheduler_stepped_for_batch_and_epoch",
        "weights_all_zero",
        "temperature_loss_that_reaches_the_actor",
        "scheduler_stepped_twice_for_a_step",
        "optimizer_made_in_each_epoch",
        # Of "recent", when it was written:
        "auxiliary_loss_scaler_discarded",
        "helper_that_reads_a_generator_twice",
        "masked_weights_that_decay",
        # Of "unseen", when it was scored:
        "resized_embedding_is_no_longer_frozen",
        "learnable_scales_made_after_the_optimizer",
    ]
)
FALSE_ALARMS = frozenset[str]()


def rows(names: list[str], not_yet: frozenset[str]) -> list[object]:
    mark = pytest.mark.xfail(strict=True, raises=AssertionError, reason="no rule names it yet")
    return [pytest.param(name, marks=mark if name in not_yet else ()) for name in names]


@pytest.mark.parametrize("name", rows(list(REPORTED), NOT_YET))
def test_a_reported_bug_is_named_with_its_cause_and_its_line(name: str) -> None:
    row = REPORTED[name]
    findings = play(row.program, row.raises)
    assert row.score(findings) == 1.0, (row.cause, sorted(row.lines), findings)
    assert names_own_line_first(row.program, findings)


@pytest.mark.parametrize("name", rows(list(REPORTED), NOT_YET))
def test_a_run_names_a_reported_bug_that_one_recording_names(name: str) -> None:
    row = REPORTED[name]
    assert row.score(play(row.program, row.raises, run=True)) == 1.0


REPAIRED = {name: row.repaired for name, row in REPORTED.items() if row.repaired}


@pytest.mark.parametrize("name", REPAIRED)
def test_the_repaired_program_has_neither_errors_nor_warnings(name: str) -> None:
    program = REPAIRED[name]
    findings = play(program) + play(program, gradients="finite")
    assert [f for f in findings if f.severity != "info"] == []


@pytest.mark.parametrize("name", rows(list(HEALTHY), FALSE_ALARMS))
def test_a_healthy_training_has_neither_errors_nor_warnings(name: str) -> None:
    findings = play(HEALTHY[name])
    light, run = play(HEALTHY[name], gradients="finite"), play(HEALTHY[name], run=True)
    assert [f for f in findings + light + run if f.severity != "info"] == []
    assert names_own_line_first(HEALTHY[name], findings)


def test_what_is_not_reached_is_listed_by_names_that_exist() -> None:
    assert set(REPORTED) >= NOT_YET
    assert set(HEALTHY) >= FALSE_ALARMS


def test_each_row_has_a_thread_of_its_own_and_a_marked_line() -> None:
    table = list(REPORTED.values())
    assert len({row.address for row in table}) == len(table) >= 232
    assert {row.set for row in table} == {
        "before",
        "after",
        "blind",
        "tuning",
        "holdout",
        "recent",
        "unseen",
    }
    assert all(row.address.startswith("https://") for row in table)
    assert all(row.cause.endswith(".") for row in table)
    assert all(1 <= len(row.lines) <= 3 for row in table)
    assert len(HEALTHY) >= 144


def test_a_point_is_for_the_cause_and_the_line_in_one_of_the_first_two_findings() -> None:
    row = Reported(before.adjacency_detached, "https://", "A cut.", r"detach", None)
    (line,) = row.lines
    exact = Finding("", "warning", f"adj was cut by detach() at {line}.", where="other.py:1")
    cause = Finding("", "warning", "adj was cut by detach().", where=f"{line}0")
    place = Finding("", "warning", "theta got no gradient.", where=line)
    other = Finding("", "warning", "no optimizer holds it.", where="other.py:1")
    assert [row.score([f]) for f in (exact, cause, place, other)] == [1, 0.5, 0.5, 0]
    assert [row.score([cause, place]), row.score([])] == [0.5, 0]
    assert [row.score([other, exact]), row.score([other, other, exact])] == [1, 0]
    assert [row.misled([f]) for f in (exact, cause, place, other)] == [False, False, False, True]
