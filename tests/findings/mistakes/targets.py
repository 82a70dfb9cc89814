"""Targets that a loss does not accept or ignores, or that are all equal."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from tests.findings.corpus.cases import Record
from tests.findings.mistakes.rows import says, silent

CLASSES = torch.arange(8) % 3


@says(
    "target-out-of-range",
    "cross_entropy at {cause} takes class indices, or probabilities that sum to 1, but 6 of 12",
    advice="may have several classes, use binary_cross_entropy_with_logits",
)
def classes_of_which_a_sample_has_several(record: Record) -> None:
    model = nn.Linear(6, 3)
    y = torch.tensor([[1.0, 1, 0], [1, 0, 0], [0, 1, 1], [0.5, 0.5, 0]])
    with record(model):
        F.cross_entropy(model(torch.randn(4, 6)), y).backward()  # cause


@silent("target-out-of-range")
def probabilities_of_pixels_and_of_one_sample(record: Record) -> None:
    """The classes are the second dimension, or the only one."""
    model = nn.Conv2d(2, 3, 1)
    with record(model):
        scores = model(torch.randn(2, 2, 4, 4))
        loss = F.cross_entropy(scores, torch.rand(2, 3, 4, 4).softmax(1).bfloat16().float())
        (loss + F.cross_entropy(scores[0, :, 0, 0], torch.tensor([0.2, 0.5, 0.3]))).backward()


@silent("target-out-of-range", "ignored-targets", "constant-targets")
def targets_that_fit(record: Record) -> None:
    model = nn.Linear(6, 3)
    with record(model):
        out, more = model(torch.randn(8, 6)), model(torch.randn(8, 6))
        labels = CLASSES.masked_fill(CLASSES == 2, -100)
        loss = F.cross_entropy(out, labels) + F.cross_entropy(more, out.softmax(1).detach())
        loss = loss + F.cosine_embedding_loss(out, more, 2 * (CLASSES > 0) - 1)
        smooth = F.one_hot(CLASSES, 3) * 0.9 + 0.05
        held, log = more.softmax(1).detach(), more.log_softmax(1).detach()
        loss = loss + F.cross_entropy(out, smooth) + F.kl_div(out.log_softmax(1), held)
        loss = loss + F.kl_div(F.logsigmoid(out), log, log_target=True)
        (loss + F.binary_cross_entropy_with_logits(out, smooth)).backward()


def met(record: Record, targets: Tensor) -> None:
    model = nn.Linear(6, 1)
    loader = DataLoader(TensorDataset(torch.randn(48, 6), targets), 24)
    with record(model):
        for x, y in loader:
            F.mse_loss(model(x).squeeze(1), y).backward()  # loss


@says("constant-targets", "got 48 targets in y, and all of them are 0.5", severity="info")
def numbers_that_are_all_alike(record: Record) -> None:
    met(record, torch.full((48,), 0.5))


@silent("constant-targets")
def numbers_that_differ_between_batches(record: Record) -> None:
    met(record, torch.arange(2).repeat_interleave(24).float())


@silent("constant-targets")
def adversary_that_is_to_say_real(record: Record) -> None:
    critic = nn.Linear(6, 1)
    with record(critic):
        scores = critic(torch.randn(24, 6))
        F.binary_cross_entropy_with_logits(scores, torch.ones_like(scores)).backward()


@silent("constant-targets")
def positive_that_is_the_first_of_the_scores(record: Record) -> None:
    model, head = nn.Linear(6, 8), nn.Linear(8, 1)
    zeros = torch.zeros(16, dtype=torch.long)
    with record(nn.ModuleList([model, head])):
        q, k, queue = model(torch.randn(16, 6)), torch.randn(16, 8), torch.randn(8, 5)
        logits = torch.cat([(q * k).sum(1, keepdim=True), q @ queue], 1)
        logits /= 0.07
        loss = F.cross_entropy(logits, zeros) + F.cross_entropy(q @ queue, zeros)
        loss = loss + F.cross_entropy(head(torch.cat([q, q, q])).view(16, 3), zeros)
        keys = model(torch.randn(16, 4, 6)).transpose(1, 2)
        (loss + F.cross_entropy(5 * (q.unsqueeze(1) @ keys).squeeze(1), zeros)).backward()


@says("constant-targets", " at {cause} got 16 targets in labels, and all of them are 0")
def labels_in_the_order_of_a_folder(record: Record) -> None:
    model, labels = nn.Linear(6, 3, bias=False), torch.arange(48) // 16
    with record(model):
        labels = labels[:16]
        (F.cross_entropy(model(torch.randn(16, 6)) / 2, labels)).backward()  # cause


@says("ignored-targets", "in 1 of 2 calls")
def batch_of_two_without_a_target(record: Record) -> None:
    model = nn.Linear(6, 3)
    with record(model):
        total = torch.zeros(())
        for labels in (CLASSES, torch.full((8,), -1)):
            total = total + F.nll_loss(  # cause
                model(torch.randn(8, 6)).log_softmax(1), labels, ignore_index=-1, reduction="sum"
            )
        total.backward()
