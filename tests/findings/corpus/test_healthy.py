"""Test that healthy trainings have no errors and no warnings."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from graphviz_torch import record
from tests.support.models import (
    MLP,
    ConvNet,
    ResNet,
    TiedMLP,
    Transformer,
    UnrolledRNN,
    gpt2,
    llama,
    tokens,
    worked_example,
)
from tests.support.recorded import serious, tower, trained

pytestmark = pytest.mark.usefixtures("the_same_numbers")


def classes(count: int) -> Callable[[Tensor], Tensor]:
    return lambda logits: cross_entropy(logits, torch.arange(len(logits)) % count)


def next_word(out: object) -> Tensor:
    logits = getattr(out, "logits", out)
    assert isinstance(logits, Tensor)
    return cross_entropy(logits.flatten(0, 1), torch.arange(logits.shape[:2].numel()) % 16)


class Checkpointed(MLP):
    def forward(self, x: Tensor) -> Tensor:
        hidden = checkpoint(self.fc1, x, use_reentrant=False)
        assert isinstance(hidden, Tensor)
        return self.fc2(torch.relu(hidden))


HEALTHY: dict[str, Callable[[], tuple[nn.Module, Tensor, Callable[..., Tensor]]]] = {
    "mlp": lambda: (MLP(), torch.randn(64, 4), classes(2)),
    "one sample": lambda: (MLP(), torch.randn(1, 4), classes(2)),
    "tied": lambda: (TiedMLP(), torch.randn(64, 4), classes(4)),
    "convolutions": lambda: (ConvNet(), torch.randn(8, 3, 16, 16), classes(10)),
    "resnet": lambda: (ResNet(width=8), torch.randn(8, 3, 64, 64), classes(10)),
    "rnn": lambda: (UnrolledRNN(30), torch.randn(8, 4), classes(4)),
    "lstm": lambda: (UnrolledRNN(30, cell=nn.LSTMCell), torch.randn(8, 4), classes(4)),
    "transformer": lambda: (Transformer(4), tokens(8, 2), next_word),
    "gpt2": lambda: (gpt2(6), tokens(8, 2), next_word),
    "llama": lambda: (llama(6), tokens(8, 2), next_word),
    "checkpoint": lambda: (Checkpointed(), torch.randn(64, 4), classes(2)),
    "ten relus": lambda: (tower(10, nn.ReLU), torch.randn(32, 64), classes(4)),
    "batch norm": lambda: (
        tower(12, lambda: nn.Sequential(nn.BatchNorm1d(64), nn.ReLU())),
        torch.randn(32, 64),
        classes(4),
    ),
    "dropout": lambda: (
        nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 2)),
        torch.randn(64, 8),
        classes(2),
    ),
    "float64": lambda: (MLP().double(), torch.randn(64, 4, dtype=torch.float64), classes(2)),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_model_has_neither_errors_nor_warnings(name: str) -> None:
    model, x, loss = HEALTHY[name]()
    assert serious(trained(model, x, loss=loss)) == []


def test_the_worked_example_has_neither(sim: torch.device) -> None:
    x = torch.arange(1, 4, dtype=torch.float32, requires_grad=True)
    for make in (lambda: worked_example()["y"], lambda: ((x.to(sim) + 2) ** 2 + 3).mean().cpu()):
        with record() as recording:
            make().backward()
        assert serious(recording.graph) == []


@pytest.mark.parametrize("clear", ["before", "after"])
def test_a_healthy_training_loop_on_an_accelerator_has_neither(
    sim: torch.device, clear: str
) -> None:
    model = ConvNet().to(sim)
    optimizer = torch.optim.AdamW(model.parameters())
    images, labels = torch.randn(80, 3, 8, 8), torch.arange(80) % 10
    losses = []
    with record(model) as recording:
        for start in range(0, 80, 4):
            if clear == "before":
                optimizer.zero_grad()
            x, y = images[start : start + 4].to(sim), labels[start : start + 4].to(sim)
            loss = cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if clear == "after":
                optimizer.zero_grad()
    *previous, last = recording.graphs
    assert serious(last, *previous) == []


def test_a_model_moved_and_trained_in_the_block_has_neither(sim: torch.device) -> None:
    model = Transformer(4)
    with record(model) as recording:
        model.to(sim)
        optimizer = torch.optim.AdamW(model.parameters())
        model(tokens(8, 2).to(sim)).square().mean().backward()
        optimizer.step()
    assert serious(recording.graph) == []


def test_evaluation_without_a_backward_has_neither() -> None:
    model = MLP()
    with record(model) as recording:
        model(torch.randn(64, 4)).argmax(1)
    assert serious(recording.graph) == []
