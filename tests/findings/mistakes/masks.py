"""Masks of attention that do not mask, their variants, and similar programs without a mistake."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.findings.corpus.cases import Record
from tests.findings.mistakes.rows import says, silent

LENGTH = 5
PAST = torch.ones(LENGTH, LENGTH).tril()
PADDED = torch.arange(LENGTH).expand(3, LENGTH) >= torch.tensor([[3], [4], [5]])


def attend(record: Record, weigh: Callable[[Tensor], Tensor]) -> None:
    """Record an attention whose weights `weigh` computes from its scores."""
    project, head = nn.Linear(6, 24), nn.Linear(8, 6)
    with record(nn.ModuleList([project, head])):
        q, k, v = project(torch.randn(3, LENGTH, 6)).chunk(3, -1)
        weights = weigh(q @ k.transpose(-2, -1) / 8**0.5)
        head(weights @ v).square().mean().backward()


@says("attention-mask", "adds a mask of 0 and 1")
def mask_of_ones_added_to_the_scores(record: Record) -> None:
    attend(record, lambda scores: (scores + PAST).softmax(-1))


@says("attention-mask", "multiplies the scores")
def mask_of_ones_times_the_scores(record: Record) -> None:
    attend(record, lambda scores: F.softmax(PAST * scores, -1))


@says("attention-mask", "after the softmax")
def mask_of_the_padding_times_the_weights(record: Record) -> None:
    kept = (~PADDED).float()[:, None]
    attend(record, lambda scores: F.dropout(scores.softmax(2), 0.1) * kept)


@says("attention-mask", "sets masked scores to 0", "still gets a weight")
def masked_scores_of_zero(record: Record) -> None:
    attend(record, lambda scores: scores.masked_fill(PADDED[:, None], 0.0).softmax(-1))


@says("attention-mask", "takes all of the weight")
def large_score_without_its_sign(record: Record) -> None:
    attend(record, lambda scores: scores.masked_fill(PAST == 0, 1e9).softmax(-1))


@says("attention-mask", "hides the past", advice="Negate")
def past_filled_instead_of_the_future(record: Record) -> None:
    attend(record, lambda scores: scores.masked_fill(PAST.bool(), -1e9).softmax(-1))


@says("attention-mask", "multi_head_attention_forward", "to later positions")
def mask_of_the_convention_of_another_function(record: Record) -> None:
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    with record(attention):
        x = torch.randn(3, LENGTH, 8)
        hidden = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril(-1)
        attention(x, x, x, attn_mask=hidden)[0].square().mean().backward()  # cause


@says("attention-mask", "adds a mask of 0 and 1")
def padding_as_numbers(record: Record) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    with record(layer):
        padded = PADDED.float()
        out = layer(torch.randn(3, LENGTH, 8), src_key_padding_mask=padded)  # cause
        out.square().mean().backward()


@silent("attention-mask")
def large_negative_numbers_added(record: Record) -> None:
    attend(record, lambda scores: (scores + (1 - PAST) * -1e9).softmax(-1))


@silent("attention-mask")
def bias_of_zero_outside_of_a_window(record: Record) -> None:
    outside = torch.triu(torch.ones(LENGTH, LENGTH), 2) > 0

    def weigh(scores: Tensor) -> Tensor:
        bias = scores.detach().requires_grad_().tanh().masked_fill(outside, 0.0)
        return (scores + bias).softmax(-1)

    attend(record, weigh)


@silent("attention-mask")
def large_negative_scores(record: Record) -> None:
    attend(record, lambda scores: scores.masked_fill(PAST == 0, -1e4).softmax(-1))


@silent("attention-mask")
def rows_of_padding_set_to_zero_after_a_mask(record: Record) -> None:
    def weigh(scores: Tensor) -> Tensor:
        weights = scores.masked_fill(PADDED[:, None], -torch.inf).softmax(-1)
        return weights * (~PADDED).float()[:, :, None]

    attend(record, weigh)


@silent("attention-mask")
def weights_that_are_normalized_again(record: Record) -> None:
    def weigh(scores: Tensor) -> Tensor:
        weights = scores.softmax(-1) * PAST
        return weights / weights.sum(-1, keepdim=True)

    attend(record, weigh)


@silent("attention-mask")
def dropout_of_the_program_itself(record: Record) -> None:
    kept = (torch.rand(3, LENGTH, LENGTH) > 0.2).float() / 0.8
    attend(record, lambda scores: scores.softmax(-1) * kept)


@silent("attention-mask")
def bias_by_distance(record: Record) -> None:
    distance = (torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)).abs().float()
    attend(record, lambda scores: (scores - 0.5 * distance).softmax(-1))


@silent("attention-mask")
def bias_of_the_neighbors(record: Record) -> None:
    neighbors = torch.eye(LENGTH).roll(1, 0).mul(0.5)
    attend(record, lambda scores: (scores + neighbors).softmax(-1))


@silent("attention-mask")
def scores_that_decay_with_distance(record: Record) -> None:
    decay = (torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)).abs().neg().exp()
    attend(record, lambda scores: (scores * decay).softmax(-1))


@silent("attention-mask")
def masks_of_functions_in_their_conventions(record: Record) -> None:
    attention, x = nn.MultiheadAttention(8, 2, batch_first=True), torch.randn(3, LENGTH, 8)
    with record(attention):
        hidden = PAST == 0
        out = attention(x, x, x, attn_mask=hidden, key_padding_mask=PADDED)[0]
        out = out + F.scaled_dot_product_attention(out, out, out, attn_mask=PAST.bool())
        out = out + F.scaled_dot_product_attention(out, out, out, attn_mask=PAST.log())
        out.square().mean().backward()


@silent("attention-mask")
def mask_of_a_loss(record: Record) -> None:
    model = nn.Linear(6, LENGTH)
    with record(model):
        loss = model(torch.randn(3, LENGTH, 6)).square() * PAST
        loss.mean().backward()


@silent("attention-mask")
def scores_of_others_without_the_own(record: Record) -> None:
    model, own = nn.Linear(6, 8), torch.eye(LENGTH, dtype=torch.bool)
    with record(model):
        z = F.normalize(model(torch.randn(LENGTH, 6)), dim=1)
        similar = (z @ z.t()).masked_fill(own, 0)
        F.cross_entropy(similar, torch.arange(LENGTH).roll(1)).backward()
