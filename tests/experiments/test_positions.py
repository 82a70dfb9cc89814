"""Test the experiment that changes later positions: models that see tokens to predict."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphviz_torch import record, simulate_accelerator
from graphviz_torch.experiments import experiment
from tests.experiments.programs import attention, later, net, predicted, recorded

pytestmark = pytest.mark.usefixtures("the_same_numbers")


def without_mask() -> Any:
    return predicted(lambda self, ids: self.head(attention(self.embed(ids), None)))


def inverted_mask() -> Any:
    def forward(self: Any, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        return self.head(attention(x, later(x).T))

    return predicted(forward)


def norm_over_time() -> Any:
    def forward(self: Any, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        return self.head(x - x.mean(1, keepdim=True))

    return predicted(forward)


def padded_on_both_sides() -> Any:
    def forward(self: Any, ids: Tensor) -> Tensor:
        return self.head(self.conv(self.embed(ids).mT).mT)

    return predicted(forward, conv=nn.Conv1d(8, 8, 3, padding=1))


def both_directions() -> Any:
    def forward(self: Any, ids: Tensor) -> Tensor:
        return self.head(self.lstm(self.embed(ids))[0])

    return predicted(forward, lstm=nn.LSTM(8, 4, batch_first=True, bidirectional=True))


def norm_over_time_after_an_lstm() -> Any:
    def forward(self: Any, ids: Tensor) -> Any:
        hidden, state = self.lstm(self.embed(ids))
        return self.head(hidden - hidden.mean(1, keepdim=True)), state

    return predicted(forward, lstm=nn.LSTM(8, 8, batch_first=True))


@pytest.mark.parametrize(
    ("program", "operation"),
    [
        (without_mask, "softmax"),
        (inverted_mask, "softmax"),
        (norm_over_time, "mean"),
        (norm_over_time_after_an_lstm, "mean"),
        (padded_on_both_sides, "convolution"),
        (both_directions, ""),
    ],
)
def test_what_shows_later_tokens_to_earlier_outputs_is_named(
    program: Callable[[], Any], operation: str
) -> None:
    [found] = experiment(program(), "positions")
    assert found.finding is not None, str(found)
    assert found.finding.rule == "future-leak"
    assert operation in found.operation
    assert ".py:" in found.where


@pytest.mark.parametrize("function", [F.cross_entropy, F.nll_loss])
def test_a_loss_that_takes_the_classes_second_has_the_positions_too(function: Any) -> None:
    ids = torch.randint(0, 11, (3, 9))
    model = net(
        lambda self, ids: self.head(attention(self.embed(ids), None)).log_softmax(-1),
        embed=nn.Embedding(11, 8),
        head=nn.Linear(8, 11),
    )
    with record(model, experiments=True) as recording:
        function(model(ids[:, :8]).transpose(1, 2), ids[:, 1:]).backward()
    [found] = experiment(recording, "positions")
    assert found.finding is not None, str(found)
    assert found.finding.rule == "future-leak"


def masked() -> Any:
    def forward(self: Any, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        return self.head(attention(x, later(x)))

    return predicted(forward)


def masked_by_torch() -> Any:
    def forward(self: Any, ids: Tensor) -> Tensor:
        x = self.embed(ids)[:, None]
        made = torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
        return self.head(made[:, 0])

    return predicted(forward)


def one_direction() -> Any:
    def forward(self: Any, ids: Tensor) -> Tensor:
        return self.head(self.lstm(self.embed(ids))[0])

    return predicted(forward, lstm=nn.LSTM(8, 8, batch_first=True))


def with_its_last_state() -> Any:
    """A state of as many numbers as positions, which is returned and knows all of them."""

    def forward(self: Any, ids: Tensor) -> Any:
        hidden, state = self.lstm(self.embed(ids))
        return self.head(hidden), state

    return predicted(forward, lstm=nn.LSTM(8, 8, batch_first=True))


def padded_on_the_left() -> Any:
    def forward(self: Any, ids: Tensor) -> Tensor:
        x = torch.nn.functional.pad(self.embed(ids).mT, (2, 0))
        return self.head(self.conv(x).mT)

    return predicted(forward, conv=nn.Conv1d(8, 8, 3))


def norm_of_each_position() -> Any:
    return predicted(lambda self, ids: self.head(self.norm(self.embed(ids))), norm=nn.LayerNorm(8))


@pytest.mark.parametrize(
    "program",
    [
        masked,
        masked_by_torch,
        one_direction,
        with_its_last_state,
        padded_on_the_left,
        norm_of_each_position,
    ],
)
def test_nothing_is_found_where_each_output_sees_what_came_before(
    program: Callable[[], Any],
) -> None:
    [found] = experiment(program(), "positions")
    assert found.holds is True, str(found)
    assert found.finding is None


@pytest.mark.parametrize(("shift", "said"), [(0, "the inputs themselves"), (2, "shifted by 2")])
def test_targets_that_are_not_shifted_by_one_are_a_finding_of_their_own(
    shift: int, said: str
) -> None:
    def forward(self: Any, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        return self.head(attention(x, later(x)))

    _, found = experiment(predicted(forward, shift), "positions")
    assert found.finding is not None
    assert found.finding.rule == "target-shift"
    assert said in found.finding.message


def test_what_reads_both_ways_and_gives_back_its_input_is_not_told_off() -> None:
    def forward(self: Any, ids: Tensor) -> Tensor:
        return self.head(attention(self.embed(ids), None))

    [found] = experiment(predicted(forward, 0), "positions")
    assert found.holds is None
    assert found.finding is None


@pytest.mark.parametrize(
    ("places", "words"),
    [([2, 4, 5], [3, 4, 5]), ([1, 2, 3, 4, 5], [3, 3, 3, 3, 3])],
)
def test_a_few_masked_words_that_stand_behind_their_masks_too_are_not_the_next_ones(
    places: list[int], words: list[int]
) -> None:
    model = net(
        lambda self, ids: self.head(attention(self.embed(ids), None)),
        embed=nn.Embedding(11, 8),
        head=nn.Linear(8, 11),
    )
    ids, targets = torch.randint(6, 10, (1, 8)), torch.full((1, 8), -100)
    ids[0, [place + 1 for place in places]] = torch.tensor(words)
    targets[0, places] = torch.tensor(words)
    [found] = experiment(recorded(model, ids, targets=targets), "positions")
    assert (
        found.message
        == "no target is a shifted copy of an integer input of shape (batch, positions)"
    )


def test_it_is_named_on_a_simulated_device_whose_views_have_no_storage_in_common() -> None:
    with simulate_accelerator() as [device]:
        model = net(
            lambda self, ids: self.head(attention(self.embed(ids), None)).view(3, 8, 11),
            embed=nn.Embedding(11, 8),
            head=nn.Linear(8, 11),
        ).to(device)
        tokens = torch.randint(0, 11, (3, 9)).to(device)
        with record(model, experiments=True) as recording:
            output = model(tokens[:, :-1])
            F.cross_entropy(output.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        [found] = experiment(recording, "positions")
    assert found.finding is not None, str(found)
    assert "softmax" in found.operation


def test_a_model_that_shifts_its_labels_itself_does_not_copy_them() -> None:
    def forward(self: Any, labels: Tensor) -> Tensor:
        x = self.embed(F.pad(labels[:, :-1], (1, 0)))
        return self.head(attention(x, later(x)))

    [found] = experiment(predicted(forward, 0), "positions")
    assert found.holds is True, str(found)
