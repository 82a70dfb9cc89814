"""Test recorded training steps, by one line of code or by a callback of real trainers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from accelerate import Accelerator
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.tensorboard import SummaryWriter
from transformers import Trainer, TrainingArguments

from graphviz_torch import load
from graphviz_torch.graph import Training, graph_of
from graphviz_torch.integrations.lightning import AutogradRecorder as LightningRecorder
from graphviz_torch.integrations.steps import due_steps
from graphviz_torch.integrations.training import FindingsError, record_steps
from graphviz_torch.integrations.transformers import AutogradRecorder as TransformersRecorder
from tests.support.processes.forks import forked


class Net(nn.Module):
    """A model whose first layer is cut off, and whose loss is NaN from step `spoil` on."""

    def __init__(self, spoil: int = 99) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 1)
        self.calls, self.spoil = 0, spoil

    def forward(self, x: torch.Tensor, labels: Any = None) -> dict[str, torch.Tensor]:
        self.calls += 1
        y = self.last(self.first(x).detach()).square().mean()
        return {"loss": y * float("nan") if self.calls > self.spoil else y}


def net(spoil: int = 99, lr: float = 0.1) -> tuple[Net, torch.optim.Optimizer]:
    model = Net(spoil)
    return model, torch.optim.SGD(model.parameters(), lr=lr)


def train(model: nn.Module, optimizer: Any, steps: int, backward: Any = None) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.ones(2, 3))["loss"]
        backward(loss) if backward else loss.backward()
        optimizer.step()


def numbers(path: Path) -> list[int]:
    """Return the numbers of the steps in a file."""
    run = load(path)
    assert isinstance(run, Training)
    return [step.number for step in run.steps]


def test_dropout_in_an_evaluation_after_the_last_step_is_told_with_that_step(
    tmp_path: Path,
) -> None:
    class Drops(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 1)

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": nn.functional.dropout(self.layer(x)).square().mean()}

    model = Drops()
    with record_steps(model, folder=tmp_path) as steps:
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), 2)
        with torch.no_grad():
            model.eval()(torch.ones(2, 3))
    assert [finding.rule for finding in steps.findings] == ["dropout-in-eval-mode"]
    assert numbers(tmp_path / "run.json.gz") == [0, 1]


def test_steps_are_due_by_name_and_by_number() -> None:
    assert [s for s in range(8) if due_steps(at=[1, 5], every=3)(s)] == [0, 1, 3, 5, 6]
    with pytest.raises(ValueError, match="every=0"):
        due_steps(every=0)


def test_one_line_records_every_nth_step_and_logs_each_finding_once(
    tmp_path: Path, logged: Callable[..., list[logging.LogRecord]]
) -> None:
    records = logged("graphviz_torch", logging.INFO)
    model, optimizer = net()
    with record_steps(model, every=2, folder=tmp_path) as steps:
        train(model, optimizer, 5)
    assert [file.name for file in tmp_path.iterdir()] == ["run.json.gz"]
    assert numbers(tmp_path / "run.json.gz") == [0, 2, 4]
    [said] = [r for r in records if "first.weight" in r.getMessage()]
    assert said.levelno == logging.WARNING
    assert "detach() at test_training.py:" in said.getMessage()
    assert [finding.rule for finding in steps.findings] == ["cut-gradient"]
    labels = {node.label for node in graph_of(load(tmp_path / "run.json.gz")).nodes}
    assert {"last.weight", "last.bias"} <= labels


def test_only_steps_with_a_gradient_that_is_not_finite_are_reported(tmp_path: Path) -> None:
    model, optimizer = net(spoil=3, lr=0.0)
    with record_steps(model, nonfinite=True, folder=tmp_path):
        train(model, optimizer, 4)
    assert numbers(tmp_path / "run.json.gz") == [3]


def test_a_finding_raises_if_asked_to_and_then_nothing_is_left() -> None:
    model, optimizer = net()
    with (
        pytest.raises(FindingsError, match=r"1 found in step 1\n.*cut by detach"),
        record_steps(model, at=1, raise_on="warning"),
    ):
        train(model, optimizer, 3)
    assert model.calls == 2


def test_steps_after_the_first_know_the_variables_of_the_loop_as_well() -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD([model.bias], lr=0.1)
    with record_steps(model) as steps:
        for _ in range(3):
            optimizer.zero_grad()
            offset = torch.ones(3, requires_grad=True)
            model(torch.ones(2, 3) + offset).sum().backward()
            optimizer.step()
    assert {"offset", "weight", "bias"} <= {node.label for node in steps.graph.nodes}
    [said] = [each.message for each in steps.findings if each.rule == "not-in-optimizer"]
    assert "No optimizer updates weight, which got a gradient at test_training.py:" in said
    assert " optimizer, stepped at test_training.py:" in said


def test_graph_and_norms_go_to_tensorboard(tmp_path: Path) -> None:
    model, optimizer = net()
    with SummaryWriter(tmp_path) as writer, record_steps(model, at=1, loggers=[writer]):
        train(model, optimizer, 3)
    events = EventAccumulator(str(tmp_path)).Reload()
    [norm] = events.Scalars("gradient_norm/last")
    assert norm.step == 1
    assert norm.value > 0


def test_accelerate_needs_one_line() -> None:
    accelerator = Accelerator(cpu=True)
    model, optimizer = net()
    model, optimizer = accelerator.prepare(model, optimizer)
    with record_steps(model, at=[0, 2]) as steps:
        train(model, optimizer, 3, accelerator.backward)
    assert [finding.rule for finding in steps.findings] == ["cut-gradient"]
    assert steps.recorded == 2


class Module(lightning.LightningModule):
    """The same model for Lightning's Trainer."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        return self.net(batch[0])["loss"]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def lightning_trainer(folder: Path, callback: LightningRecorder, **options: Any) -> Any:
    return lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=3,
        callbacks=[callback],
        default_root_dir=folder,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        **options,
    )


def batches() -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.ones(8, 3)), batch_size=2)


def test_lightning_records_batches_and_its_logger_gets_the_graph(tmp_path: Path) -> None:
    callback = LightningRecorder(every=2)
    logger = TensorBoardLogger(tmp_path, name="run", version=0)
    lightning_trainer(tmp_path, callback, logger=logger).fit(Module(), batches())
    [finding] = callback.report.findings
    assert "net.first.weight and net.first.bias got no gradient" in finding.message
    [folder] = (tmp_path / "run").iterdir()
    scalars = EventAccumulator(str(folder)).Reload().Scalars("gradient_norm/net.last")
    assert [entry.step for entry in scalars] == [0, 2]


def test_lightning_stops_where_a_finding_raises(tmp_path: Path) -> None:
    callback = LightningRecorder(at=1, raise_on="warning")
    trainer = lightning_trainer(tmp_path, callback, logger=False)
    with pytest.raises(FindingsError, match="step 1"):
        trainer.fit(Module(), batches())
    assert trainer.global_step == 2


def test_transformers_trainer_records_steps(tmp_path: Path) -> None:
    callback = TransformersRecorder(at=1, folder=tmp_path / "graphs")
    arguments = TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=3,
        per_device_train_batch_size=2,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
    )
    rows = [{"x": torch.ones(3), "labels": 0} for _ in range(8)]
    Trainer(Net(), arguments, train_dataset=rows, callbacks=[callback]).train()
    assert numbers(tmp_path / "graphs" / "run.json.gz") == [1]
    rules = [finding.rule for finding in callback.report.findings]
    assert rules == ["cut-gradient", "unused-input"]  # forward ignores the labels


RANKS = """
import json, sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from graphviz_torch.integrations.training import record_steps
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with record_steps(model, at=1, folder=sys.argv[1]) as steps:
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(4 + rank, 2)).sum().backward()
        optimizer.step()
dist.destroy_process_group()
"""


def test_of_two_ranks_each_records_its_own_and_the_first_gathers(tmp_path: Path) -> None:
    (tmp_path / "ranks.py").write_text(RANKS)
    done = forked("ranks.py", "graphs", folder=tmp_path, ranks=2)
    assert done.returncode == 0, done.stderr
    files = sorted((tmp_path / "graphs").iterdir())
    assert [file.name for file in files] == [f"run.rank{i}.json.gz" for i in (0, 1)]
    nodes = [{node.name: node for node in graph_of(load(file)).nodes} for file in files]
    assert [by["AddmmBackward0"].outputs[0].shape[0] for by in nodes] == [4, 5]


def test_fabric_needs_one_line() -> None:
    fabric = lightning.Fabric(accelerator="cpu", devices=1)
    model = Net()
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with record_steps(model, at=[0, 2]) as steps:
        train(model, optimizer, 3, fabric.backward)
    [finding] = steps.findings
    assert finding.message.startswith("first.weight and first.bias got no gradient")
    assert steps.recorded == 2


LARGE = "the package is large: pip install wandb mlflow-skinny to run this"


def test_graph_and_norms_go_to_a_wandb_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb", reason=LARGE)
    monkeypatch.setenv("WANDB_SILENT", "true")
    model, optimizer = net()
    with (
        wandb.init(project="steps", dir=tmp_path, mode="offline") as run,
        record_steps(model, at=1, loggers=[run]),
    ):
        train(model, optimizer, 3)
        logged = dict(run.summary)
    assert logged["gradient_norm/last"] > 0
    assert logged["graphviz_torch/step"] == 1
    [page] = tmp_path.rglob("autograd_graph*.html")
    assert "<html" in page.read_text()


def test_graph_and_norms_go_to_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason=LARGE)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # the skinny package has no database
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    model, optimizer = net()
    with mlflow.start_run() as run, record_steps(model, at=1, loggers=[mlflow]):
        train(model, optimizer, 3)
    [norm] = mlflow.MlflowClient().get_metric_history(run.info.run_id, "gradient_norm/last")
    assert norm.step == 1
    assert norm.value > 0
    [page] = tmp_path.rglob("step00001.html")
    assert "<html" in page.read_text()
