"""Compare the findings of several trainers with those of a plain training loop."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from graphviz_torch import Graph, find, record


class Model(nn.Module):
    """A model whose first layer cannot learn."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.second = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        hidden = hidden.detach()
        self.mean = hidden.mean().item()
        y: torch.Tensor = self.second(hidden)
        return y

    def loss(self, batch: Any) -> torch.Tensor:
        x, y = batch
        return (self(x) - y).square().mean()


def batches() -> DataLoader[Any]:
    torch.manual_seed(0)
    return DataLoader(TensorDataset(torch.randn(4, 3), torch.randn(4, 1)), batch_size=2)


def by_a_plain_loop(model: Model) -> Graph:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        for batch in batches():
            optimizer.zero_grad()
            loss = model.loss(batch)
            loss.backward()
            optimizer.step()
    return recording.graph


def by_lbfgs(model: Model) -> Graph:
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=2)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model.loss(batch)
        loss.backward()
        return loss

    with record(model) as recording:
        for batch in batches():  # noqa: B007
            optimizer.step(closure)
    return recording.graph


def by_a_partial_closure(model: Model) -> Graph:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def closure(batch: Any) -> float:
        optimizer.zero_grad()
        loss = model.loss(batch)
        loss.backward()
        return float(loss.detach())

    with record(model) as recording:
        for batch in batches():
            optimizer.step(partial(closure, batch))
    return recording.graph


def by_lightning(model: Model) -> Graph:
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            return model.loss(batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = lightning.Trainer(
            max_epochs=1,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        module = Module()
        with record(model) as recording:
            trainer.fit(module, batches())
    return recording.graph


def by_accelerate(model: Model) -> Graph:
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer, loader = accelerator.prepare(optimizer, batches())
    with record(model) as recording:
        for batch in loader:
            optimizer.zero_grad()
            loss = model.loss(batch)
            accelerator.backward(loss)
            optimizer.step()
    return recording.graph


def by_transformers(model: Model) -> Graph:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")

    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": model.loss((x, labels))}

    rows = [{"x": x, "labels": y} for x, y in batches().dataset]
    arguments = transformers.TrainingArguments(
        output_dir=tempfile.gettempdir(),
        num_train_epochs=1,
        per_device_train_batch_size=2,
        optim="sgd",
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        max_grad_norm=0.0,
    )
    trainer = transformers.Trainer(model=Wrapped(), args=arguments, train_dataset=rows)
    with record(model) as recording:
        trainer.train()
    return recording.graph


def told(graph: Graph) -> set[tuple[str, str]]:
    """Return the rules with findings, and their lines in the model."""
    return {(finding.rule, finding.where) for finding in find(graph)}


TRAININGS: list[Callable[[Model], Graph]] = [
    *(by_lbfgs, by_a_partial_closure, by_lightning, by_accelerate, by_transformers)
]


@pytest.mark.parametrize("train", TRAININGS)
def test_a_training_by_others_is_told_as_the_plain_loop_is(train: Callable[[Model], Graph]) -> None:
    torch.manual_seed(0)
    expected = by_a_plain_loop(Model())
    graph = train(Model())
    assert told(expected)
    assert told(graph) == told(expected)
    assert [cut.how for cut in graph.cuts] == [cut.how for cut in expected.cuts]
    assert [cut.where for cut in graph.cuts] == [cut.where for cut in expected.cuts]
    assert [(p.name, p.stepped, p.in_optimizer) for p in graph.parameters] == [
        (p.name, p.stepped, p.in_optimizer) for p in expected.parameters
    ]


def test_a_closure_that_never_clears_its_gradients_is_told_as_the_plain_loop_is() -> None:
    def train(closed: bool) -> str:
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def closure() -> torch.Tensor:
            loss = model(torch.ones(2, 3)).square().mean()
            loss.backward()
            return loss

        with record(model) as recording:
            for _ in range(3):
                if closed:
                    optimizer.step(closure)  # type: ignore[arg-type]
                else:
                    closure()
                    optimizer.step()
        return recording.graph.step.stale_gradients

    assert train(True).startswith("test_trainers.py:")
    assert train(False).startswith("test_trainers.py:")


def test_what_no_optimizer_holds_is_said_though_the_block_ends_with_zero_grad() -> None:
    torch.manual_seed(0)
    generator, critic = nn.Linear(2, 3), nn.Linear(3, 1)
    of_generator = torch.optim.SGD(generator.parameters(), lr=0.1)
    of_critic = torch.optim.SGD(critic.parameters(), lr=0.1)
    both = nn.ModuleDict({"generator": generator, "critic": critic})
    with record(both) as recording:
        of_generator.zero_grad()
        critic(generator(torch.ones(4, 2))).mean().backward()
        of_generator.step()
        of_generator.zero_grad()
        of_critic.zero_grad()
    assert [p.in_optimizer for p in recording.graph.parameters] == [True] * 4
    assert "not-in-optimizer" not in {finding.rule for finding in find(recording.graph)}
