"""Padding of tokens that a loss or an attention uses."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from tests.findings.corpus.cases import Record
from tests.findings.mistakes.rows import says, silent

LENGTHS = (4, 6, 9, 5)


def language(record: Record, tokens: Tensor, targets: Tensor, **options: Any) -> None:
    model = nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 20))
    with record(model):
        scores = model(tokens[:, :-1]).flatten(0, 1)
        F.cross_entropy(scores, targets[:, 1:].flatten(), **options).backward()  # cause


def padded() -> Tensor:
    tokens = torch.randint(1, 19, (4, 9))
    for row, length in zip(tokens, LENGTHS, strict=True):
        row[length:] = 19
    return tokens


@says(
    "padding-in-targets",
    "results at 9 of 32 positions",
    "nll_loss",
    "are 19",
    advice="ignore_index=19",
)
def rows_that_end_with_one_token(record: Record) -> None:
    tokens = padded()
    language(record, tokens, tokens)


@silent("padding-in-targets")
def first_end_of_each_row_counts(record: Record) -> None:
    tokens = padded()
    targets = tokens.clone()
    for row, length in zip(targets, LENGTHS, strict=True):
        row[length + 1 :] = -100
    language(record, tokens, targets)


@silent("padding-in-targets")
def token_that_occurs_elsewhere_too(record: Record) -> None:
    tokens = padded()
    tokens[0, 0] = 19
    language(record, tokens, tokens)


@silent("padding-in-targets")
def padding_without_weight(record: Record) -> None:
    tokens, weight = padded(), torch.ones(20)
    weight[19] = 0
    language(record, tokens, tokens, weight=weight)


@silent("attention-to-padding")
def causal_attention_to_padding(record: Record) -> None:
    embed, tokens = nn.Embedding(20, 8), padded()
    with record(embed):
        h = embed(tokens)
        F.scaled_dot_product_attention(h, h, h, is_causal=True).mean().backward()


@says("attention-to-padding", "is inverted", severity="warning")
def mask_that_hides_all_but_the_padding(record: Record) -> None:
    embed, tokens = nn.Embedding(20, 8), padded()
    with record(embed):
        h = embed(tokens)[:, None]
        shown = (tokens == 19)[:, None, None]
        F.scaled_dot_product_attention(h, h, h, attn_mask=shown).square().mean().backward()


@silent("attention-to-padding")
def mask_that_hides_the_padding(record: Record) -> None:
    embed, tokens = nn.Embedding(20, 8), padded()
    with record(embed):
        h = embed(tokens)[:, None]
        shown = (tokens != 19)[:, None, None]
        F.scaled_dot_product_attention(h, h, h, attn_mask=shown).square().mean().backward()


def preference(record: Record, masked: bool) -> None:
    model, tokens = nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 20)), padded()
    with record(model):
        labels = tokens[:, 1:]
        every = model(tokens[:, :-1]).log_softmax(-1).gather(-1, labels[..., None]).squeeze(-1)
        if masked:
            every = every * (labels != 19)
        row = every.sum(1)  # cause
        F.logsigmoid(row).mean().neg().backward()


@says("padding-in-targets", "results at 9 of 32 positions", "sum", advice="a mask")
def log_probabilities_of_whole_rows(record: Record) -> None:
    preference(record, masked=False)


@silent("padding-in-targets")
def log_probabilities_times_a_mask(record: Record) -> None:
    preference(record, masked=True)


def answer(record: Record, lengths: tuple[int, ...]) -> None:
    """Predict the hidden tokens at the end of each row."""
    model = nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 20))
    with record(model):
        tokens = torch.randint(1, 19, (4, 9))
        hidden = torch.arange(9) >= torch.tensor(lengths)[:, None]
        scores = model(tokens.masked_fill(hidden, 19))
        F.cross_entropy(scores[hidden], tokens[hidden]).backward()


@silent("padding-in-targets")
def masks_of_which_each_row_has_equally_many(record: Record) -> None:
    answer(record, (6, 6, 6, 6))


@silent("padding-in-targets")
def masks_whose_results_are_all_that_the_loss_uses(record: Record) -> None:
    answer(record, LENGTHS)


@silent("padding-in-targets")
def copying_task(record: Record) -> None:
    """Blanks are no padding, although they end the rows and the loss uses all results."""
    model = nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 20))
    with record(model):
        digits, blanks = torch.randint(1, 20, (4, 5)), torch.zeros(4, 4, dtype=torch.long)
        scores = model(torch.cat([digits, blanks], 1)).flatten(0, 1)
        F.cross_entropy(scores, torch.cat([blanks, digits], 1).flatten()).backward()


def reward(record: Record, last: Any) -> None:
    embed, cell, score = nn.Embedding(20, 8), nn.GRU(8, 8, batch_first=True), nn.Linear(8, 1)
    with record(nn.ModuleList([embed, cell, score])):
        scores = score(cell(embed(padded()))[0]).squeeze(-1)
        taken = scores[torch.arange(4), last]  # cause
        taken.square().mean().backward()


@says("padding-in-targets", "results at 3 of 36 positions", advice="length of each row")
def reward_of_the_last_position(record: Record) -> None:
    reward(record, -1)


@silent("padding-in-targets")
def reward_of_the_last_token(record: Record) -> None:
    reward(record, torch.tensor(LENGTHS) - 1)


@silent("padding-in-targets")
def losses_of_tokens_times_a_mask(record: Record) -> None:
    model, tokens = nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 20)), padded()
    with record(model):
        scores, targets = model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()
        every = F.cross_entropy(scores, targets, reduction="none")
        (every * (targets != 19)).sum().backward()


@silent("padding-in-targets")
def decoder_that_starts_with_the_padding_token(record: Record) -> None:
    model = nn.Sequential(nn.Embedding(20, 8, padding_idx=0), nn.Linear(8, 20))
    words = torch.randint(1, 20, (4, 9))
    with record(model):
        scores = model(F.pad(words[:, :-1], (1, 0)))
        F.cross_entropy(scores.flatten(0, 1), words.flatten()).backward()


def every_row_padded() -> Tensor:
    tokens = padded()
    tokens[2, 7:] = 19
    return tokens


def attend(record: Record, shown: Any) -> None:
    """Run an attention that is written by hand."""
    embed, head, tokens = nn.Embedding(20, 8), nn.Linear(8, 3), every_row_padded()
    with record(nn.ModuleList([embed, head])):
        h = embed(tokens)  # cause
        scores = (h @ torch.randn(8)).masked_fill(~shown(tokens), -torch.inf)
        pooled = (scores.softmax(1)[:, None] @ h)[:, 0]
        F.cross_entropy(head(pooled), torch.arange(4) % 3).backward()


@says("attention-to-padding", "only the padding gets a gradient", "14 of 36", advice="Negate")
def own_attention_with_an_inverted_mask(record: Record) -> None:
    attend(record, lambda tokens: tokens == 19)


@silent("attention-to-padding")
def own_attention_with_a_mask(record: Record) -> None:
    attend(record, lambda tokens: tokens != 19)


def series(record: Record, batch_first: bool, masked: bool) -> None:
    cell, head = nn.GRU(2, 8, batch_first=batch_first), nn.Linear(8, 1)
    with record(nn.ModuleList([cell, head])):
        rows = [torch.randn(length, 2) for length in LENGTHS]
        batch = pad_sequence(rows, batch_first=batch_first)
        every = head(cell(batch)[0]).square()
        if masked:
            every = every * batch.ne(0).any(-1, keepdim=True)
        loss = every.mean()  # cause
        loss.backward()


@says("padding-in-targets", "results at 12 of 36 positions", "mean", "were padded at")
def series_padded_by_pad_sequence(record: Record) -> None:
    series(record, batch_first=True, masked=False)


@says("padding-in-targets", "results at 12 of 36 positions", "mean", "were padded at")
def series_with_the_time_first(record: Record) -> None:
    series(record, batch_first=False, masked=False)


@silent("padding-in-targets")
def series_times_a_mask(record: Record) -> None:
    series(record, batch_first=True, masked=True)


@silent("padding-in-targets")
def series_times_a_mask_with_the_time_first(record: Record) -> None:
    series(record, batch_first=False, masked=True)
