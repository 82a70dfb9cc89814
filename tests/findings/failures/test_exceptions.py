"""Test the notes on the most frequent exceptions of a training step, and follow their advice."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence

from graphviz_torch import record
from graphviz_torch.findings.failure_causes import ADVICE

pytestmark = pytest.mark.skipif(
    sys.version_info < (3, 11), reason="exceptions carry notes since 3.11"
)


def ones(*shape: int, **options: Any) -> torch.Tensor:
    return torch.ones(*shape, **options)


LONG = torch.long
IMAGE, GREY = ones(2, 3, 8, 8), ones(2, 1, 8, 8)
LOGITS = torch.zeros(4, 3)
WIDE = ones(2, 3, dtype=torch.float64)
ROW, HALF = ones(3), ones(2, 2, dtype=torch.float16)


def parameter() -> nn.Parameter:
    return nn.Parameter(torch.ones(1))


def state(*, bias: bool) -> Any:
    """Return an optimizer of a layer."""
    return torch.optim.SGD(nn.Linear(2, 2, bias=bias).parameters(), lr=0.1)


def assign(tensor: Any) -> None:
    nn.Linear(2, 2).weight = tensor


def optimizer(groups: Any) -> None:
    torch.optim.SGD(groups, lr=0.1)


def scaled_step(*, backward: bool) -> None:
    weight, scaler = parameter(), torch.amp.GradScaler("cpu")
    loss = scaler.scale(weight.sum())
    if backward:
        loss.backward()
    scaler.step(torch.optim.SGD([weight], lr=0.1))


class WithoutSuper(nn.Module):
    def __init__(self) -> None:
        self.layer = nn.Linear(2, 2)


class WithSuper(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)


LAYERS = [nn.Linear(2, 2)]
WEIGHT = parameter()
LSTM = nn.LSTM(8, 4)
# A program that ends with an exception, words of the advice, and the program that follows it.
ROWS: dict[str, tuple[Callable[[], object], str, Callable[[], object]]] = {
    "channels": (
        lambda: nn.Conv2d(3, 8, 3)(GREY),
        "size of dimension 1",
        lambda: nn.Conv2d(1, 8, 3)(GREY),
    ),
    "dimensions of an image": (
        lambda: nn.Conv2d(3, 8, 3)(IMAGE[None]),
        "flatten the extra dimensions",
        lambda: nn.Conv2d(3, 8, 3)(IMAGE[None].flatten(0, 1)),
    ),
    "kernel": (
        lambda: nn.Conv2d(1, 1, 9)(GREY),
        "or padding",
        lambda: nn.Conv2d(1, 1, 9, padding=1)(GREY),
    ),
    "window": (
        lambda: nn.MaxPool2d(9)(GREY),
        "smaller than the pooling window",
        lambda: nn.MaxPool2d(8)(GREY),
    ),
    "batch": (
        lambda: F.cross_entropy(LOGITS, torch.zeros(8, dtype=LONG)),
        "the same first size",
        lambda: F.cross_entropy(LOGITS, torch.zeros(4, dtype=LONG)),
    ),
    "classes last": (
        lambda: F.cross_entropy(torch.zeros(4, 7, 10), torch.zeros(4, 7, dtype=LONG)),
        "call transpose(1, 2) on the input",
        lambda: F.cross_entropy(
            torch.zeros(4, 7, 10).transpose(1, 2), torch.zeros(4, 7, dtype=LONG)
        ),
    ),
    "class that is not there": (
        lambda: F.cross_entropy(LOGITS, torch.full((4,), 3)),
        "compare target.max()",
        lambda: F.cross_entropy(LOGITS, torch.full((4,), 2)),
    ),
    "double": (
        lambda: nn.Linear(3, 2)(WIDE),
        "x.to(weight.dtype)",
        lambda: nn.Linear(3, 2)(WIDE.to(torch.float32)),
    ),
    "double image": (
        lambda: nn.Conv2d(1, 1, 1)(GREY.double()),
        "x.to(weight.dtype)",
        lambda: nn.Conv2d(1, 1, 1)(GREY.double().to(torch.float32)),
    ),
    "half": (
        lambda: HALF @ ones(2, 2),
        "need one dtype",
        lambda: HALF @ ones(2, 2).to(HALF.dtype),
    ),
    "order": (
        lambda: ones(3, 4).t().view(12),
        "Call reshape() instead of view()",
        lambda: ones(3, 4).t().reshape(12),
    ),
    "parts": (
        lambda: [part.add_(1) for part in (parameter() * ROW).chunk(2)],
        "join them with torch.cat()",
        lambda: torch.cat([part + 1 for part in (parameter() * ROW).chunk(2)]),
    ),
    "elements": (
        lambda: ones(3, 4).view(5, 2),
        "pass -1 for one size",
        lambda: ones(3, 4).view(-1, 2),
    ),
    "cat": (
        lambda: torch.cat([ones(2, 3), ones(2, 2)]),
        "check dim",
        lambda: torch.cat([ones(2, 3), ones(2, 2)], dim=1),
    ),
    "stack": (
        lambda: torch.stack([ones(2), ones(3)]),
        "pad_sequence",
        lambda: nn.utils.rnn.pad_sequence([ones(2), ones(3)]),
    ),
    "target": (
        lambda: F.binary_cross_entropy_with_logits(ones(4, 1), ones(4)),
        "squeeze(-1) on the input",
        lambda: F.binary_cross_entropy_with_logits(ones(4, 1).squeeze(-1), ones(4)),
    ),
    "broadcast": (
        lambda: ones(4, 3) + ones(4),
        "a missing unsqueeze",
        lambda: ones(4, 3) + ones(4).unsqueeze(-1),
    ),
    "index": (lambda: ROW[3], "0 to size - 1", lambda: ROW[2]),
    "layer norm": (
        lambda: nn.LayerNorm(8)(ones(2, 4)),
        "the last dimensions of the input",
        lambda: nn.LayerNorm(4)(ones(2, 4)),
    ),
    "batch norm": (
        lambda: nn.BatchNorm2d(4)(IMAGE),
        "is dimension 1 of its input",
        lambda: nn.BatchNorm2d(3)(IMAGE),
    ),
    "batch norm of rows": (
        lambda: nn.BatchNorm2d(4)(ones(2, 4)),
        "use BatchNorm1d",
        lambda: nn.BatchNorm1d(4)(ones(2, 4)),
    ),
    "recurrent": (
        lambda: LSTM(ones(2, 3, 5)),
        "the last dimension of its input",
        lambda: LSTM(ones(2, 3, 8)),
    ),
    "state of a recurrent layer": (
        lambda: nn.Linear(4, 1)(LSTM(ones(2, 3, 8))),
        "output, state = lstm(x)",
        lambda: nn.Linear(4, 1)(LSTM(ones(2, 3, 8))[0]),
    ),
    "heads": (
        lambda: nn.MultiheadAttention(9, 2),
        "divides embed_dim",
        lambda: nn.MultiheadAttention(9, 3),
    ),
    "attention": (
        lambda: nn.MultiheadAttention(8, 2)(*[ones(2, 3, 4)] * 3),
        "the query's last dimension",
        lambda: nn.MultiheadAttention(4, 2)(*[ones(2, 3, 4)] * 3),
    ),
    "gradient of integers": (
        lambda: ones(3, dtype=LONG).requires_grad_(),
        "float()",
        lambda: ones(3, dtype=LONG).float().requires_grad_(),
    ),
    "mean of integers": (
        lambda: ones(3, dtype=LONG).mean(),
        "call float() first",
        lambda: ones(3, dtype=LONG).float().mean(),
    ),
    "condition": (lambda: bool(ROW > 0), "call any() or all()", lambda: bool((ROW > 0).all())),
    "loss class": (
        lambda: nn.CrossEntropyLoss(LOGITS, torch.zeros(4, dtype=LONG)),  # type: ignore[arg-type]
        "CrossEntropyLoss()(x, y)",
        lambda: nn.CrossEntropyLoss()(LOGITS, torch.zeros(4, dtype=LONG)),
    ),
    "number": (lambda: ROW.item(), "mean(), sum() or tolist()", lambda: ROW.mean().item()),
    "float": (lambda: float(ROW), "mean(), sum() or tolist()", lambda: float(ROW.sum())),
    "dimension": (lambda: ROW.sum(1), "fewer dimensions than the call expects", lambda: ROW.sum(0)),
    "mask": (
        lambda: ones(3, 4)[ones(4, dtype=torch.bool)],
        "x[:, mask]",
        lambda: ones(3, 4)[:, ones(4, dtype=torch.bool)],
    ),
    "parameter": (
        lambda: assign(ones(2, 2)),
        "nn.Parameter(tensor)",
        lambda: assign(nn.Parameter(ones(2, 2))),
    ),
    "super": (WithoutSuper, "super().__init__() first", WithSuper),
    "forward": (
        lambda: nn.ModuleList(LAYERS)(ones(2)),
        "the items of a ModuleList one by one",
        lambda: nn.ModuleList(LAYERS)[0](ones(2)),
    ),
    "list of layers": (
        lambda: nn.Sequential(LAYERS),  # type: ignore[arg-type]
        "nn.Sequential(*layers)",
        lambda: nn.Sequential(*LAYERS),
    ),
    "weights of another model": (
        lambda: nn.Linear(3, 2).load_state_dict(nn.Linear(4, 2).state_dict()),
        "compare the names and sizes",
        lambda: nn.Linear(3, 2).load_state_dict(nn.Linear(3, 2).state_dict()),
    ),
    "state of another optimizer": (
        lambda: state(bias=True).load_state_dict(state(bias=False).state_dict()),
        "in the same groups and order",
        lambda: state(bias=True).load_state_dict(state(bias=True).state_dict()),
    ),
    "scaler": (
        lambda: scaled_step(backward=False),
        "scaler.scale(loss).backward() first",
        lambda: scaled_step(backward=True),
    ),
    "two groups": (
        lambda: optimizer([{"params": [WEIGHT]}, {"params": [WEIGHT]}]),
        "to one group",
        lambda: optimizer([{"params": [WEIGHT]}, {"params": [parameter()]}]),
    ),
    "one tensor": (lambda: optimizer(WEIGHT), "[tensor]", lambda: optimizer([WEIGHT])),
    "none": (
        lambda: nn.Linear(2, 2)(None),
        "without a return statement",
        lambda: nn.Linear(2, 2)(ones(2)),
    ),
    "cholesky": (
        lambda: torch.linalg.cholesky(torch.zeros(3, 3)),
        "a small number to the diagonal",
        lambda: torch.linalg.cholesky(torch.zeros(3, 3) + 1e-3 * torch.eye(3)),
    ),
    "stride": (
        lambda: torch.from_numpy(np.ones(4)[::-1]),
        "array.copy()",
        lambda: torch.from_numpy(np.ones(4)[::-1].copy()),
    ),
    "empty sequence": (
        lambda: pack_padded_sequence(ones(3, 2, 4), torch.tensor([3, 0])),
        "empty sequences out",
        lambda: pack_padded_sequence(ones(3, 1, 4), torch.tensor([3])),
    ),
    "unsorted sequences": (
        lambda: pack_padded_sequence(ones(3, 2, 4), torch.tensor([2, 3])),
        "enforce_sorted=False",
        lambda: pack_padded_sequence(ones(3, 2, 4), torch.tensor([2, 3]), enforce_sorted=False),
    ),
    "embedding of numbers": (
        lambda: nn.Embedding(4, 2)(ROW),
        "call long()",
        lambda: nn.Embedding(4, 2)(ROW.long()),
    ),
    "embedding past its end": (
        lambda: nn.Embedding(4, 2)(torch.tensor([4])),
        "smaller than num_embeddings",
        lambda: nn.Embedding(5, 2)(torch.tensor([4])),
    ),
    "one hot": (
        lambda: F.one_hot(torch.tensor([5]), 5),
        "the largest class + 1",
        lambda: F.one_hot(torch.tensor([5]), 6),
    ),
    "one hot of numbers": (lambda: F.one_hot(ROW), "call long()", lambda: F.one_hot(ROW.long())),
    "gather": (
        lambda: ones(3, 3).gather(1, torch.zeros(3, 1)),
        "call long()",
        lambda: ones(3, 3).gather(1, torch.zeros(3, 1).long()),
    ),
    "bfloat16": (
        lambda: HALF.bfloat16().numpy(),
        "call float() first",
        lambda: HALF.bfloat16().float().numpy(),
    ),
    "probabilities": (
        lambda: F.binary_cross_entropy(ROW * 2, ROW),
        "sigmoid before binary_cross_entropy",
        lambda: F.binary_cross_entropy((ROW * 2).sigmoid(), ROW),
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_the_note_on_a_common_exception_says_what_to_change(name: str) -> None:
    program, words, repaired = ROWS[name]
    with pytest.raises(Exception) as caught, record():  # noqa: PT011
        program()
    (note,) = caught.value.__notes__
    assert words in note.rpartition("  try: ")[2]
    repaired()


def test_an_advice_belongs_to_one_message() -> None:
    """No part of a message is a part of another's: which advice is given hangs on no order."""
    texts = sorted(ADVICE)
    assert [(a, b) for a in texts for b in texts if a != b and a in b] == []
