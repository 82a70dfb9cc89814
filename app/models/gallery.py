"""The models that a visitor can run, with their titles, code and pictures."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

# Name of a model -> the numbers of simulated devices that a visitor can choose.
DEVICES: dict[str, tuple[int, ...]] = {
    "mlp": (1,),
    "cnn": (1,),
    "lstm": (1,),
    "transformer": (1,),
    "custom_function": (1,),
    "detached": (1,),
    "nan": (1,),
    "forgotten": (1,),
    "data_parallel": (2, 3, 4, 8),
    "pipeline": (2,),
}
NAMES = tuple(DEVICES)

MESHES = {"tensor_parallel": "tp", "fully_sharded": "dp"}  # model for two ranks -> mesh dimension
LARGE = "large"  # the model that the page "Will it fit?" rehearses
FAILING = "forgotten"  # the model whose forward raises on purpose
_FOLDER = Path(__file__).parent
_FOR_TYPE_CHECKERS = "\n# mypy: ignore-errors\n"  # a line that is not shown to visitors


@dataclass(frozen=True)
class Model:
    """One model of the gallery."""

    name: str  # the file's name without ".py"
    title: str  # "MLP"
    description: str  # "two linear layers and a ReLU, classifying 32 points."
    code: str

    @property
    def sentence(self) -> str:
        """The description with a capital letter."""
        return self.description[:1].upper() + self.description[1:]

    @property
    def picture(self) -> Path:
        """The file with a small picture of the graph, which `python docs/app_pictures.py` draws."""
        return _FOLDER / "pictures" / f"{self.name}.svg"


def model(name: str) -> Model:
    """Return the gallery model of this name.

    Raises:
        KeyError: if the gallery has no such model.
    """
    if name not in (*NAMES, *MESHES, LARGE):
        raise KeyError(name)
    text = (_FOLDER / f"{name}.py").read_text(encoding="utf-8")
    code = text.removesuffix(_FOR_TYPE_CHECKERS).rstrip() + "\n"
    title, _, description = code.splitlines()[0].strip('"').partition(": ")
    return Model(name, title, description, code)


def module(name: str) -> ModuleType:
    """Import and return the model's module, which imports torch.

    Raises:
        KeyError: if the gallery has no such model.
    """
    return importlib.import_module(f"{__package__}.{model(name).name}")


def titles(*, failing: bool = True) -> dict[str, str]:
    """Return a dict from each model's title to its name.

    Args:
        failing: whether to include the model whose forward raises.
    """
    return {model(name).title: name for name in NAMES if failing or name != FAILING}
