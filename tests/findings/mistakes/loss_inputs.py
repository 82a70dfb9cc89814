"""Losses with inputs or weights of the wrong kind, and similar losses without a mistake."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.findings.corpus.cases import Record, step
from tests.findings.mistakes.rows import says, silent

CLASSES = torch.arange(8) % 3


@says("loss-input", "result of dropout", "0.5 of the predictions", advice="before the last layer")
def dropout_behind_the_last_layer(record: Record) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3), nn.Dropout())
    with record(model):
        scores = model(torch.randn(8, 4))  # cause
        F.cross_entropy(scores, CLASSES).backward()


@silent("loss-input")
def dropout_of_features_that_are_averaged(record: Record) -> None:
    model, drop = nn.Linear(4, 3), nn.Dropout()
    with record(model):
        scores = drop(model(torch.randn(8, 5, 4))).mean(1)
        F.cross_entropy(scores, CLASSES).backward()


@silent("loss-input")
def dropout_in_eval_mode_or_with_no_probability(record: Record) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.3).eval())
    with record(model):
        F.mse_loss(F.dropout(model(torch.randn(8, 4)), 0.0), torch.randn(8, 3)).backward()


@says("loss-input", "ctc_loss", "over dimension 1", advice="dimension of the classes")
def ctc_of_frames_that_are_transposed_after_the_softmax(record: Record) -> None:
    model = nn.Linear(4, 6)
    with record(model):
        frames = model(torch.randn(3, 9, 4)).log_softmax(1).transpose(0, 1)  # cause
        lengths = torch.full((3,), 9), torch.full((3,), 2)
        F.ctc_loss(frames, torch.ones(3, 2, dtype=torch.long), *lengths).backward()


@silent("loss-input")
def ctc_of_classes_that_are_permuted(record: Record) -> None:
    model = nn.Conv1d(4, 6, 3, padding=1)
    with record(model):
        frames = model(torch.randn(3, 4, 9)).log_softmax(1).permute(2, 0, 1)
        lengths = torch.full((3,), 9), torch.full((3,), 2)
        F.ctc_loss(frames, torch.ones(3, 2, dtype=torch.long), *lengths).backward()


@silent("loss-input")
def log_probabilities_of_tokens_in_rows(record: Record) -> None:
    model = nn.Linear(4, 6)
    with record(model):
        scores = model(torch.randn(3, 9, 4)).log_softmax(2)
        F.nll_loss(scores.flatten(0, 1), torch.arange(27) % 6).backward()


def recognize(record: Record, targets: Tensor, lengths: Tensor, blank: int = 0) -> None:
    model = nn.Linear(4, 6)
    with record(model):
        frames = model(torch.randn(9, 3, 4)).log_softmax(2)
        F.ctc_loss(frames, targets, torch.full((3,), 9), lengths, blank).backward()  # cause


@says("target-out-of-range", "3 of 6 targets", "the blank", advice="from 1")
def classes_from_zero_beside_a_blank_of_zero(record: Record) -> None:
    recognize(record, torch.tensor([[0, 1], [2, 0], [0, 3]]), torch.full((3,), 2))


@says("target-out-of-range", "1 of 5 targets")
def targets_in_a_row_with_the_blank_last(record: Record) -> None:
    recognize(record, torch.tensor([1, 2, 5, 3, 4]), torch.tensor([2, 1, 2]), blank=5)


@silent("target-out-of-range")
def padding_of_targets_with_the_blank(record: Record) -> None:
    recognize(record, torch.tensor([[1, 0], [2, 3], [4, 0]]), torch.tensor([1, 2, 1]))


@silent("target-out-of-range")
def classes_from_zero_beside_a_blank_at_the_end(record: Record) -> None:
    recognize(record, torch.tensor([[0, 1], [2, 0], [0, 3]]), torch.full((3,), 2), blank=5)


@says("softmax-of-one", "softmax at {cause}", "each result is 1", advice="positions")
def weights_of_positions_over_their_features(record: Record) -> None:
    body, score, head = nn.Linear(6, 8), nn.Linear(8, 1), nn.Linear(8, 3)
    with record(nn.ModuleList([body, score, head])):
        h = body(torch.randn(8, 5, 6))
        weights = score(h).softmax(-1)  # cause
        F.cross_entropy(head((weights * h).sum(1)), CLASSES).backward()


@silent("softmax-of-one")
def weights_of_positions(record: Record) -> None:
    body, score, head = nn.Linear(6, 8), nn.Linear(8, 1), nn.Linear(8, 3)
    with record(nn.ModuleList([body, score, head])):
        h = body(torch.randn(8, 5, 6))
        F.cross_entropy(head((score(h).softmax(1) * h).sum(1)), CLASSES).backward()


@silent("softmax-of-one")
def sequence_of_one_position(record: Record) -> None:
    project = nn.Linear(6, 24)
    with record(project):
        q, k, v = project(torch.randn(3, 1, 6)).chunk(3, -1)
        ((q @ k.transpose(1, 2)).softmax(-1) @ v).square().mean().backward()


@silent("softmax-of-one")
def class_of_a_batch_of_one(record: Record) -> None:
    model = nn.Linear(6, 3)
    with record(model):
        F.cross_entropy(model(torch.randn(1, 6)), CLASSES[:1]).backward()


@says("focal-of-mean", "the mean of binary_cross_entropy_with_logits")
def focal_loss_of_a_binary_mean(record: Record) -> None:
    model = nn.Linear(4, 1)
    with record(model):
        loss = F.binary_cross_entropy_with_logits(model(torch.randn(8, 4)), torch.rand(8, 1))
        p = torch.exp(-1 * loss)  # cause
        (0.25 * (1 - p).pow(2) * loss).backward()


@silent("focal-of-mean")
def focal_loss_of_each_sample(record: Record) -> None:
    model = nn.Linear(4, 3)
    with record(model):
        loss = F.cross_entropy(model(torch.randn(8, 4)), CLASSES, reduction="none")
        ((1 - torch.exp(-loss)) ** 2 * loss).mean().backward()


@silent("focal-of-mean")
def perplexity_beside_the_loss(record: Record) -> None:
    model = nn.Linear(4, 3)
    with record(model):
        loss = F.cross_entropy(model(torch.randn(8, 4)), CLASSES)
        (loss + 0.01 * loss.exp()).backward()


@silent("focal-of-mean")
def probability_of_a_whole_sequence(record: Record) -> None:
    model, reward = nn.Linear(4, 3), torch.tensor(0.3)
    with record(model):
        loss = F.cross_entropy(model(torch.randn(8, 4)), CLASSES)
        (-torch.exp(-loss) * reward).backward()


def losses(record: Record, combine: str, maximize: bool = False) -> None:
    """Train a model and two weights of its losses, which `combine` makes one loss."""
    model, w = nn.Linear(4, 3), nn.Parameter(torch.zeros(2))
    model.register_parameter("weights", w)
    groups = [{"params": [model.weight, model.bias]}, {"params": [w], "maximize": maximize}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    with record(model):
        scores = model(torch.randn(8, 4))
        one, two = F.cross_entropy(scores, CLASSES), scores.square().mean()
        step(optimizer, _COMBINED[combine](one, two, w))


def weigh_by_a_sigmoid(one: Tensor, two: Tensor, w: Tensor) -> Tensor:
    return w[0].sigmoid() * one + (1 - w[0].sigmoid()) * two


def weigh_a_stack(one: Tensor, two: Tensor, w: Tensor) -> Tensor:
    return (torch.stack([one, two]) * w.exp()).sum()


def divide_by_variances(one: Tensor, two: Tensor, w: Tensor) -> Tensor:
    return one / (2 * w[0].exp() ** 2) + two / (2 * w[1].exp() ** 2)


def add_logarithms(one: Tensor, two: Tensor, w: Tensor) -> Tensor:
    return one / (2 * w[0].exp()) + two / (2 * w[1].exp()) + 0.5 * w.sum()


def use_a_temperature(one: Tensor, two: Tensor, w: Tensor) -> Tensor:
    return (one - w[0].exp()).square() + two


_COMBINED = {
    each.__name__: each
    for each in (
        *(weigh_by_a_sigmoid, weigh_a_stack, divide_by_variances, add_logarithms),
        use_a_temperature,
    )
}


@says("trained-loss-weight", "weights determines a weight of the loss", advice="weights.sum()")
def trained_share_of_two_losses(record: Record) -> None:
    losses(record, "weigh_by_a_sigmoid")


@says("trained-loss-weight")
def trained_weights_of_a_stack_of_losses(record: Record) -> None:
    losses(record, "weigh_a_stack")


@says("trained-loss-weight")
def variances_without_their_logarithms(record: Record) -> None:
    losses(record, "divide_by_variances")


@silent("trained-loss-weight")
def variances_with_their_logarithms(record: Record) -> None:
    losses(record, "add_logarithms")


@silent("trained-loss-weight")
def number_that_a_loss_should_reach(record: Record) -> None:
    losses(record, "use_a_temperature")


@silent("trained-loss-weight")
def multipliers_that_are_maximized(record: Record) -> None:
    losses(record, "weigh_a_stack", maximize=True)


@silent("trained-loss-weight")
def scale_of_scores(record: Record) -> None:
    model, scale = nn.Linear(4, 3), nn.Parameter(torch.ones(()))
    model.register_parameter("scale", scale)
    with record(model):
        scores = model(torch.randn(8, 4)) * scale.exp()
        step(torch.optim.SGD(model.parameters(), lr=0.1), F.cross_entropy(scores, CLASSES))
