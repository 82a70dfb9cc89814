"""The models a visitor can run, each a file whose code is shown as it stands."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

NAMES = (
    "mlp",
    "cnn",
    "lstm",
    "transformer",
    "custom_function",
    "detached",
    "nan",
    "forgotten",
    "data_parallel",
    "pipeline",
)
_FOLDER = Path(__file__).parent / "models"
_FOR_TYPE_CHECKERS = "\n# mypy: ignore-errors\n"  # the files are scripts, as a reader writes them


@dataclass(frozen=True)
class Model:
    """One file of the gallery."""

    name: str  # of the file, without ".py"
    title: str  # "MLP"
    says: str  # "two linear layers and a ReLU, classifying 32 points."
    code: str

    @property
    def path(self) -> Path:
        """The file."""
        return _FOLDER / f"{self.name}.py"

    def build(
        self, devices: Sequence[torch.device], seed: int
    ) -> tuple[nn.Module, Callable[[], Tensor]]:
        """The model and a function that computes its loss."""
        torch.manual_seed(seed)
        made: tuple[nn.Module, Callable[[], Tensor]] = importlib.import_module(
            f"app.models.{self.name}"
        ).build(devices)
        return made


def model(name: str) -> Model:
    """The model in file `name`.

    Raises:
        KeyError: if the gallery has none of that name.
    """
    if name not in NAMES:
        raise KeyError(name)
    text = (_FOLDER / f"{name}.py").read_text(encoding="utf-8")
    code = text.removesuffix(_FOR_TYPE_CHECKERS).rstrip() + "\n"
    title, _, says = code.splitlines()[0].strip('"').partition(": ")
    return Model(name, title, says, code)
