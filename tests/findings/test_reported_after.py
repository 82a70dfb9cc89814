"""The bugs that are kept apart: who writes rules reads these when the rules are done."""

from __future__ import annotations

import pytest

from tests.findings import reported_after, reported_after_values
from tests.findings.corpus import REPORTED, play
from tests.findings.test_reported import rows

MODULES = (reported_after, reported_after_values)
assert all(MODULES)  # each has entered its rows

NOT_YET = frozenset[str](
    [
        "fake_detached_in_the_generators_step",
        "decouple_losses_copied",
        "custom_loss_is_a_new_tensor",
        "spectrogram_under_no_grad",
        "torch_normal_of_a_mean",
        "penalty_never_added",
        "teacher_compared_with_itself",
        "requires_grad_set_on_the_loss",
        "leaf_times_a_number",
        "gradient_of_an_input_that_moved",
        "layer_replaced_by_pruning",
        "parameters_in_a_dict",
        "every_layer_in_a_list",
        "centers_not_optimized",
        "microbatches_cleared",
        "epoch_begins_with_zero_grad",
        "clipping_that_comes_too_late",
        "clipped_by_value_while_scaled",
        "two_discriminators_never_step",
        "adversarial_backward_after_the_step",
        "scheduler_first",
        "everything_frozen",
        "test_leaves_eval_mode",
        "returns_minus_values",
        "mse_of_all_pairs",
        "kl_div_loss_of_softmax",
        "log_probabilities_into_cross_entropy",
        "logarithm_hidden_by_where",
        "variance_overflows",
        "padding_on_the_left_of_a_causal_mask",
        "mean_of_no_targets",
        "list_of_losses",
        "random_features_on_the_cpu",
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
