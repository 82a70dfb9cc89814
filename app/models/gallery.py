"""The models a visitor can run, each a file whose code is shown as it stands."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

# How many simulated devices an example can use, all of them.
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
# What two ranks run together, each with the name of its mesh's dimension.
MESHES = {"tensor_parallel": "tp", "fully_sharded": "dp"}
LARGE = "large"  # what is rehearsed on ranks that are not there
FAILING = "forgotten"  # its forward fails, on purpose
_FOLDER = Path(__file__).parent
_FOR_TYPE_CHECKERS = "\n# mypy: ignore-errors\n"  # the files are scripts, as a reader writes them


@dataclass(frozen=True)
class Model:
    """One file of the gallery."""

    name: str  # of the file, without ".py"
    title: str  # "MLP"
    says: str  # "two linear layers and a ReLU, classifying 32 points."
    code: str

    @property
    def sentence(self) -> str:
        """What it says, to stand alone."""
        return self.says[:1].upper() + self.says[1:]

    @property
    def picture(self) -> Path:
        """Its graph, drawn small; `python docs/app_pictures.py` draws it."""
        return _FOLDER / "pictures" / f"{self.name}.svg"


def model(name: str) -> Model:
    """The model in file `name`.

    Raises:
        KeyError: if the gallery has none of that name.
    """
    if name not in (*NAMES, *MESHES, LARGE):
        raise KeyError(name)
    text = (_FOLDER / f"{name}.py").read_text(encoding="utf-8")
    code = text.removesuffix(_FOR_TYPE_CHECKERS).rstrip() + "\n"
    title, _, says = code.splitlines()[0].strip('"').partition(": ")
    return Model(name, title, says, code)


def module(name: str) -> ModuleType:
    """The file `name`, imported: it needs torch.

    Raises:
        KeyError: if the gallery has none of that name.
    """
    return importlib.import_module(f"{__package__}.{model(name).name}")


def titles(*, failing: bool = True) -> dict[str, str]:
    """The name of each model by its title."""
    return {model(name).title: name for name in NAMES if failing or name != FAILING}
