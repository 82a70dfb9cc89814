"""Test findings on losses with unsuitable inputs, in recorded programs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from graphviz_torch import find, record, trace
from tests.support.recorded import only

T = torch.tensor([0, 1, 2, 3])
ONES = torch.ones(4, 5)

WRONG: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "softmax": (lambda x: F.cross_entropy(x.softmax(1), T), "probabilities from softmax"),
    "sigmoid": (lambda x: F.cross_entropy(x.sigmoid(), T), "probabilities from sigmoid"),
    "smoothed": (
        lambda x: F.cross_entropy(x.softmax(1), T, label_smoothing=0.1),
        "probabilities from softmax",
    ),
    "turned": (
        lambda x: F.cross_entropy(x.softmax(1).view(2, 2, 5).transpose(1, 2), T.view(2, 2)),
        "probabilities from softmax",
    ),
    "nll": (lambda x: F.nll_loss(x.softmax(1), T), "probabilities from softmax"),
    "nll of scores": (lambda x: F.nll_loss(x @ torch.ones(5, 5), T), "raw scores from mm"),
    "nll of a picture": (
        lambda x: F.nll_loss(
            F.conv2d(x.view(1, 1, 4, 5), torch.ones(3, 1, 1, 1)),
            torch.zeros(1, 4, 5, dtype=torch.long),
        ),
        "raw scores from convolution",
    ),
    "binary": (
        lambda x: F.binary_cross_entropy_with_logits(x.sigmoid(), ONES),
        "probabilities from sigmoid",
    ),
}
WRONG["log_softmax of log_softmax"] = (
    lambda x: F.cross_entropy(x.log_softmax(1), T),
    "log-probabilities from log_softmax",
)
WRONG |= {
    f"softmax and {name}": (
        lambda x, pick=pick, rows=rows: F.cross_entropy(pick(x.softmax(1)), T[:rows]),
        "probabilities from softmax",
    )
    for name, rows, pick in (
        ("clone", 4, lambda p: p.clone()),
        ("slice", 2, lambda p: p[:2]),
        ("select", 4, lambda p: p.view(1, 4, 5)[0]),
        ("index", 4, lambda p: p[torch.arange(4)]),
        ("expand", 4, lambda p: p.expand(4, 5)),
        ("unflatten", 4, lambda p: p.view(20).unflatten(0, (4, 5))),
        ("another dtype", 4, lambda p: p.double()),
    )
}
RIGHT: dict[str, Callable[[Tensor], Tensor]] = {
    "scores": lambda x: F.cross_entropy(x, T),
    "log_softmax": lambda x: F.nll_loss(x.log_softmax(1), T),
    "the logarithm": lambda x: F.nll_loss(x.softmax(1).log(), T),
    "scores with a penalty": lambda x: (
        F.nll_loss(z := x @ ONES.T @ ONES, T) + z.logsumexp(1).mean()
    ),
    "a tree of choices": lambda x: F.nll_loss(F.logsigmoid(x.mul(2)) @ torch.ones(5, 5), T),
    "log_softmax by itself": lambda x: x.sigmoid().log_softmax(1).sum(),
    "attention": lambda x: F.cross_entropy(x.softmax(1) @ torch.ones(5, 5), T),
    "binary": lambda x: F.binary_cross_entropy(x.sigmoid(), ONES),
    "binary scores": lambda x: F.binary_cross_entropy_with_logits(x, ONES),
    "distilled": lambda x: F.kl_div(x.log_softmax(1), x.softmax(1), reduction="batchmean"),
}


def messages(y: Tensor) -> list[str]:
    return [f.message for f in find(trace(y, names={})) if f.rule == "loss-input"]


@pytest.mark.parametrize("name", WRONG)
def test_a_loss_that_got_what_it_does_not_take(name: str) -> None:
    loss, given = WRONG[name]
    (message,) = messages(loss(torch.rand(4, 5, requires_grad=True)))
    assert message.endswith(f", but got {given}.")


@pytest.mark.parametrize("name", RIGHT)
def test_a_loss_that_got_what_it_takes(name: str) -> None:
    assert not messages(RIGHT[name](torch.rand(4, 5, requires_grad=True)))


def test_a_recording_names_cross_entropy_and_the_layer() -> None:
    model = nn.Sequential(nn.Linear(5, 5), nn.Softmax(1))
    with record(model) as recording:
        F.cross_entropy(model(torch.rand(4, 5)), T).backward()
    found = only("loss-input", recording.graph)
    here = found.where
    assert here.startswith("test_losses.py:")
    assert found.message == (
        f"cross_entropy at {here} takes raw scores, but got probabilities from softmax in 1 at "
        f"{here}."
    )
    titles = [recording.graph.nodes[node].title for node in found.nodes]
    assert titles == ["softmax", "log_softmax"]


@pytest.mark.parametrize(("shapes", "told"), [(((8, 1), (8, 4)), 1), (((8, 4), (8, 4)), 0)])
def test_a_loss_of_a_column_and_a_wider_matrix_is_told(
    shapes: tuple[tuple[int, int], tuple[int, int]], told: int
) -> None:
    value = torch.randn(shapes[0], requires_grad=True)
    with record() as recording:
        nn.functional.mse_loss(value, torch.randn(shapes[1])).backward()
    found = [f for f in find(recording) if f.rule == "accidental-broadcast"]
    assert len(found) == told
    assert all("[8, 1]" in f.message and "4 values of the other" in f.message for f in found)


@pytest.mark.parametrize(("whole", "found"), [(True, 0), (False, 1)])
def test_a_mask_compares_positions_and_a_column_of_lengths(whole: bool, found: int) -> None:
    lengths = torch.tensor([[3], [1], [4], [2]]).to(torch.long if whole else torch.float)
    weights = torch.randn(4, 4, requires_grad=True)
    with record() as recording:
        (weights * (torch.arange(4) < lengths)).sum().backward()
    assert [f.rule for f in find(recording)] == ["accidental-broadcast"] * found
