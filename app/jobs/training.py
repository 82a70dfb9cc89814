"""A job that trains a small deep network and reports each layer's gradient norm at each step."""

from __future__ import annotations

import tempfile
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.tensorboard import SummaryWriter

from graphviz_torch import record, to_tensorboard, watch

from . import devices
from .backward import open_own_recording
from .recordings import zip_folder
from .server import report
from .values import LoggedStep, TrainingResult, TrainingSettings

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "Sigmoid": nn.Sigmoid,
    "Tanh": nn.Tanh,
    "ReLU": nn.ReLU,
}
WIDTH = 32


class Deep(nn.Module):
    """A stack of equal layers. With `residual`, each layer's input is added to its output."""

    def __init__(self, settings: TrainingSettings) -> None:
        super().__init__()
        self.residual = settings.residual
        activation = ACTIVATIONS[settings.activation]
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), activation()) for _ in range(settings.depth)
        )
        self.head = nn.Linear(WIDTH, 1)
        for parameter in self.layers.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=settings.gain / WIDTH**0.5)
            else:
                nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x) if self.residual else layer(x)
        result: Tensor = self.head(x)
        return result


def train(settings: TrainingSettings) -> TrainingResult:
    """Train a network, and report each `LoggedStep` when the step ends."""
    torch.manual_seed(settings.seed)
    with devices.use(settings.device) as found, tempfile.TemporaryDirectory() as folder:
        device = found[0]
        model = Deep(settings).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=settings.rate)
        x = torch.randn(64, WIDTH, device=device)
        target = torch.sin(x[:, :1] * 2)
        with SummaryWriter(folder) as writer:
            norms = _Norms(writer)
            watching = watch(model, norms)
            for step in range(settings.steps):
                last = step == settings.steps - 1
                recording = record(model)
                with recording if last else nullcontext():
                    loss = nn.functional.mse_loss(model(x), target)
                    torch.autograd.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                writer.add_scalar("loss", loss.item(), step)
                report(LoggedStep(step, loss.item(), norms.take()))
            watching.remove()
            to_tensorboard(recording.graph, writer, step=settings.steps)
        return TrainingResult(open_own_recording(recording.graph), zip_folder(Path(folder)))


class _Norms:
    """A writer for `watch` that collects the gradient norms of one step, first layer first."""

    def __init__(self, writer: SummaryWriter) -> None:
        self._writer, self._norms = writer, list[float]()

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self._writer.add_scalar(tag, value, step)
        if "/layers." in tag:
            self._norms.append(value)

    def take(self) -> tuple[float, ...]:
        """Return the norms of this step, and clear the list for the next step."""
        norms, self._norms = tuple(self._norms), []
        return norms
