"""Last steps of padded and bidirectional sequences, and similar programs without a mistake."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tests.findings.corpus.cases import Record
from tests.findings.mistakes.rows import says, silent

LENGTHS = torch.tensor([3, 5, 2])


def read(record: Record, layer: nn.RNNBase, last: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Train with the features that `last` takes from a layer's result and states."""
    with record(layer):
        output, states = layer(torch.randn(3, 5, 4))
        last(output, states[0] if isinstance(states, tuple) else states).square().mean().backward()


def unpack(record: Record, last: Callable[[Tensor, Tensor], Tensor], *, by_length: bool) -> None:
    layer = nn.GRU(4, 6, batch_first=True)
    with record(layer):
        lengths = LENGTHS.sort(descending=True).values if by_length else LENGTHS
        given = torch.randn(3, 5, 4)
        packed = pack_padded_sequence(given, lengths, batch_first=True, enforce_sorted=by_length)
        output, lengths = pad_packed_sequence(layer(packed)[0], batch_first=True)
        last(output, lengths).square().mean().backward()


@says("last-step", "reverse direction of gru", advice="h[-2] and h[-1]")
def last_row_of_a_bidirectional_layer(record: Record) -> None:
    layer = nn.GRU(4, 6, 2, bidirectional=True)
    read(record, layer, lambda output, h: output[-1] * torch.randn(5, 12))


@says("last-step", "reverse direction of lstm")
def last_step_by_select(record: Record) -> None:
    layer = nn.LSTM(4, 6, batch_first=True, bidirectional=True)
    read(record, layer, lambda output, h: output.select(1, -1).relu())


@says("last-step", "is padding for 2 sequences", advice="lengths - 1")
def last_step_of_padded_sequences(record: Record) -> None:
    unpack(record, lambda output, lengths: output[:, -1, :].tanh(), by_length=False)


@says("last-step", "is padding for 2 sequences")
def last_step_of_sorted_sequences(record: Record) -> None:
    unpack(record, lambda output, lengths: output[:, 4].tanh(), by_length=True)


@silent("last-step")
def step_of_each_length(record: Record) -> None:
    rows = torch.arange(3)
    unpack(record, lambda output, lengths: output[rows, lengths - 1].tanh(), by_length=False)


@silent("last-step")
def last_step_of_one_direction(record: Record) -> None:
    read(record, nn.LSTM(4, 6, batch_first=True), lambda output, h: output[:, -1].relu())


@silent("last-step")
def features_of_each_direction(record: Record) -> None:
    layer = nn.LSTM(4, 6, batch_first=True, bidirectional=True)
    ends = lambda output, h: output[:, -1, :6] + output[:, 0, 6:]  # noqa: E731
    read(record, layer, ends)


@silent("last-step")
def first_and_last_step(record: Record) -> None:
    """As of a span: each direction has read the whole sequence in one of the two."""
    layer = nn.LSTM(4, 6, batch_first=True, bidirectional=True)
    read(record, layer, lambda output, h: torch.cat([output[:, 0], output[:, -1]], 1).relu())


@silent("last-step")
def features_of_each_direction_in_two_steps(record: Record) -> None:
    layer = nn.LSTM(4, 6, batch_first=True, bidirectional=True)
    read(record, layer, lambda output, h: output[:, -1][:, :6] + output[:, 0][:, 6:])


@silent("last-step")
def last_states(record: Record) -> None:
    layer = nn.GRU(4, 6, batch_first=True, bidirectional=True)
    read(record, layer, lambda output, h: torch.cat([h[-2], h[-1]], 1).relu())


@silent("last-step")
def sequences_of_equal_lengths(record: Record) -> None:
    layer = nn.GRU(4, 6, batch_first=True)
    with record(layer):
        packed = pack_padded_sequence(torch.randn(3, 5, 4), torch.full((3,), 5), batch_first=True)
        output, _ = pad_packed_sequence(layer(packed)[0], batch_first=True)
        output[:, -1].square().mean().backward()
