"""Terms of a loss without a gradient, and values that are constant on purpose."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from tests.findings.corpus.cases import Record
from tests.findings.mistakes.rows import says, silent


@says("constant-term", "trains nothing: size was cut by detach()")
def term_that_is_taken_from_one(record: Record) -> None:
    body, head = nn.Linear(4, 6), nn.Linear(6, 3)
    with record(nn.ModuleList([body, head])):
        h = body(torch.randn(5, 4))
        size = h.square().mean()
        error = F.cross_entropy(head(h.relu()), torch.arange(5) % 3)
        (1 - (size.detach() - error)).backward()


@silent()
def maximum_that_is_taken_away_and_added_again(record: Record) -> None:
    """As in a logsumexp: no gradient has to come through it."""
    model = nn.Linear(4, 3)
    with record(model):
        scores = model(torch.randn(4))
        most = scores.max().detach()
        ((scores - most).exp().sum().log() + most - scores[1]).backward()


@silent()
def loss_of_a_reference(record: Record) -> None:
    """As of a teacher: no optimizer holds it, and it is there to compare with."""
    policy, reference = nn.Linear(4, 3), nn.Linear(4, 3)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    inputs, targets = torch.randn(5, 4), torch.arange(5) % 3
    with record(nn.ModuleDict({"policy": policy, "reference": reference})):
        loss = F.cross_entropy(policy(inputs), targets)
        with torch.no_grad():
            base = F.cross_entropy(reference(inputs), targets)
        (loss - base).backward()
        optimizer.step()


@says("constant-term", "trains nothing: distance was cut by detach()", severity="warning")
def distance_to_a_reference(record: Record) -> None:
    """What it was computed from learns, too."""
    body, head, reference = nn.Linear(4, 6), nn.Linear(6, 3), nn.Linear(4, 6)
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
    inputs, targets = torch.randn(5, 4), torch.arange(5) % 3
    with record(nn.ModuleList([body, head, reference])):
        h = body(inputs)
        distance = (h - reference(inputs)).square().mean()
        error = F.cross_entropy(head(h.relu()), targets)
        (error + distance.detach()).backward()
        optimizer.step()


@silent("constant-term")
def sum_that_begins_with_a_zero_like_another_result(record: Record) -> None:
    """The zero has the dtype and the device of what was cut, and none of its values."""
    model = nn.Linear(4, 3)
    with record(model):
        with torch.no_grad():
            before = model(torch.randn(5, 4)).mean()
        loss = before.new_tensor(0.0) + torch.zeros_like(before)
        (loss + F.cross_entropy(model(torch.randn(5, 4)), torch.arange(5) % 3)).backward()
