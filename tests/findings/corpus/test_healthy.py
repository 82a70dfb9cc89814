"""Models with nothing wrong have no findings above a note: a false alarm is worse than silence."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from graphviz_torch import record, simulate_accelerator
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
from tests.support.recorded import classified, serious, tower, trained

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
    with record() as recording:
        worked_example()["y"].backward()
    assert serious(recording.graph) == []
    x = torch.arange(1, 4, dtype=torch.float32, requires_grad=True)
    with record() as recording:
        y = ((x.to(sim) + 2) ** 2 + 3).mean().cpu()
        y.backward()
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


def test_two_stages_on_two_devices_have_neither() -> None:
    with simulate_accelerator(2) as (first, second):
        body, head = nn.Linear(4, 8).to(first), nn.Linear(8, 2).to(second)

        class Pipeline(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.body, self.head = body, head

            def forward(self, x: Tensor) -> Tensor:
                return self.head(torch.relu(self.body(x.to(first))).to(second))

        graph = trained(Pipeline(), torch.randn(64, 4))
        assert serious(graph) == []


def test_a_target_network_under_no_grad_has_neither() -> None:
    both = nn.ModuleDict({"online": MLP(), "target": MLP()})
    optimizer = torch.optim.SGD(both["online"].parameters(), lr=0.1)
    with record(both) as recording:
        x = torch.randn(64, 4)
        with torch.no_grad():
            wanted = both["target"](x)
        ((both["online"](x) - wanted) ** 2).mean().backward()
        optimizer.step()
    assert serious(recording.graph) == []


def test_training_the_discriminator_on_detached_samples_has_neither() -> None:
    both = nn.ModuleDict({"generator": MLP(4, 8, 4), "discriminator": MLP(4, 8, 1)})
    optimizer = torch.optim.Adam(both["discriminator"].parameters())
    with record(both) as recording:
        samples = both["generator"](torch.randn(64, 4)).detach()
        both["discriminator"](samples).mean().backward()
        optimizer.step()
    assert serious(recording.graph) == []


def test_evaluation_without_a_backward_has_neither() -> None:
    model = MLP()
    with record(model) as recording:
        out = model(torch.randn(64, 4))
        out.argmax(1)
    assert serious(recording.graph) == []


def test_mixed_precision_has_neither() -> None:
    model = MLP()
    with record(model) as recording, torch.autocast("cpu", dtype=torch.bfloat16):
        classified(model(torch.randn(64, 4)).repeat(1, 2)).backward()
    assert serious(recording.graph) == []


def test_a_teacher_that_runs_under_no_grad_beside_the_model_has_neither() -> None:
    model, teacher = MLP(), MLP()
    with record(model) as recording:
        x = torch.randn(64, 4)
        with torch.no_grad():
            wanted = teacher(x)
        (model(x) - wanted).square().mean().backward()
    assert serious(recording.graph) == []


def test_two_optimizers_in_turn_that_clear_after_their_step_have_neither() -> None:
    both = nn.ModuleDict({"actor": MLP(), "critic": MLP(4, 8, 1)})
    steps = [torch.optim.SGD(part.parameters(), lr=0.1) for part in both.values()]
    with record(both) as recording:
        states = torch.randn(64, 4)
        values = both["critic"](states).squeeze(1)
        chances = both["actor"](states).log_softmax(1)[:, 0]
        for loss, optimizer in zip(
            [(chances * values.detach()).mean(), values.square().mean()], steps, strict=True
        ):
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    assert [serious(graph) for graph in recording.graphs] == [[], []]


def test_heads_that_are_trained_in_turn_have_neither() -> None:
    model = nn.ModuleDict({"body": MLP(4, 8, 4), "left": nn.Linear(4, 2), "right": nn.Linear(4, 2)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        for head in ("left", "right"):
            optimizer.zero_grad()
            model[head](model["body"](torch.randn(64, 4))).square().mean().backward()
            optimizer.step()
    assert [serious(graph) for graph in recording.graphs] == [[], []]


def test_a_small_batch_in_each_of_many_steps_is_no_run_of_copies(sim: torch.device) -> None:
    model = MLP().to(sim)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        for _ in range(20):
            optimizer.zero_grad()
            model(torch.randn(16, 4).to(sim)).sum().backward()
            optimizer.step()
    assert serious(recording.graph) == []
