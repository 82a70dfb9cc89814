"""The bugs that are kept apart: who writes rules reads these when the rules are done."""

from __future__ import annotations

import pytest

from tests.findings.corpus import reported_after, reported_after_values
from tests.findings.corpus.cases import REPORTED, play
from tests.findings.corpus.test_reported import rows

MODULES = (reported_after, reported_after_values)
assert all(MODULES)  # each has entered its rows

NOT_YET = frozenset[str](
    [
        "fake_detached_in_the_generators_step",
        "custom_loss_is_a_new_tensor",
        "penalty_never_added",
        "teacher_compared_with_itself",
        "layer_replaced_by_pruning",
        "every_layer_in_a_list",
        "epoch_begins_with_zero_grad",
        "adversarial_backward_after_the_step",
        "scheduler_first",
        "logarithm_hidden_by_where",
        "list_of_losses",
    ]
)
AFTER = [name for name, row in REPORTED.items() if row.half == "after"]


@pytest.mark.parametrize("name", rows(AFTER, NOT_YET))
def test_a_bug_kept_apart_is_named_with_its_cause_and_its_line(name: str) -> None:
    row = REPORTED[name]
    findings = play(row.program, row.raises)
    assert row.score(findings) == 1.0, (row.cause, sorted(row.lines), findings)


def test_what_is_not_reached_is_listed_by_names_that_exist() -> None:
    assert set(AFTER) >= NOT_YET


def test_each_row_has_a_thread_of_its_own_and_a_marked_line() -> None:
    addresses = [row.address for row in REPORTED.values()]
    assert len(set(addresses)) == len(addresses) >= 64
    assert all(1 <= len(REPORTED[name].lines) <= 3 for name in AFTER)
    assert len(AFTER) >= 32
