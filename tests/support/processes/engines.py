"""Run trainings with other engines on several ranks, bare and recorded, and compare the results.

    torchrun --nproc-per-node 2 -m tests.support.processes.engines

Rank 0 prints JSON. For each engine and rank it says whether the final weights are bit-equal, counts
the recorded step's collectives by kind and phase, says whether all of them have a line or a module,
and lists the findings, of which none is expected.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from graphviz_torch import Graph, find, record
from graphviz_torch.graph.files.file import text_of, value_of
from tests.support.processes.parallelism import messages_of

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)
Training = Callable[[bool], tuple[nn.Module, "Graph | None"]]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def batches() -> DataLoader[Any]:
    torch.manual_seed(1)
    return DataLoader(TensorDataset(torch.randn(24, 8), torch.randn(24, 4)), batch_size=4)


def accelerate(recorded: bool) -> tuple[nn.Module, Graph | None]:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapped, optimizer, loader = accelerator.prepare(model, optimizer, batches())
    graph = None
    for number, (x, y) in enumerate(loader):
        due = recorded and number == 1
        with record(wrapped) if due else nullcontext() as recording:
            loss = nn.functional.mse_loss(wrapped(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        graph = recording.graph if due else graph
    return model, graph


def lightning(recorded: bool) -> tuple[nn.Module, Graph | None]:
    from lightning.pytorch import LightningModule, Trainer

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = network()
            self.graph: Graph | None = None

        def training_step(self, batch: list[Tensor], index: int) -> Tensor:
            return nn.functional.mse_loss(self.network(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    module = Module()
    with TemporaryDirectory() as folder:
        trainer = Trainer(
            accelerator="cpu", devices=dist.get_world_size(), strategy="ddp", max_epochs=1,
            logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, default_root_dir=folder,
        )  # fmt: skip
        with record(module) if recorded else nullcontext() as recording:
            trainer.fit(module, batches())
    return module.network, recording.graphs[1] if recorded else None


def main() -> None:
    dist.init_process_group("gloo")
    results = {}
    for engine in (accelerate, lightning):
        bare, _ = engine(False)
        model, graph = engine(True)
        assert graph is not None
        sent = graph.collectives
        mine = {
            "equal": all(map(torch.equal, bare.parameters(), model.parameters())),
            "sent": dict(Counter(f"{each.kind} in {each.phase}" for each in sent)),
            "named": all(each.where or each.module for each in sent),
            "findings": messages_of(find(graph)),
            "graph": text_of(graph),
        }
        every: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(every, mine)
        graphs = [value_of(each.pop("graph"), Graph) for each in every]
        every[0]["findings"] += messages_of(find(graphs))
        results[engine.__name__] = every
    if dist.get_rank() == 0:
        print("RESULT", json.dumps(results), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
