"""Models from other projects, each with an example input.

A source yields entries and builds nothing: each entry is built in the process that runs it.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

Forward = Callable[[], Any]


class Entry(NamedTuple):
    """An architecture of a library. `build` returns the model and a call of its forward."""

    library: str
    name: str
    build: Callable[[], tuple[nn.Module, Forward]]


def loss_of(output: Any) -> Tensor:
    """Return the loss that a model computed itself, or else the mean square of all its results.

    Raises:
        ValueError: if no result requires a gradient.
    """
    own = getattr(output, "loss", None)
    if isinstance(own, Tensor) and own.requires_grad:
        return own if own.ndim == 0 else own.mean()
    if hasattr(output, "__dict__") and not isinstance(output, (Tensor, dict, tuple, list)):
        output = vars(output)
    leaves = pytree.tree_leaves(output)
    results = [each for each in leaves if isinstance(each, Tensor) and each.requires_grad]
    if not results:
        raise ValueError("no result requires a gradient")
    terms = [(each.abs() if each.is_complex() else each).square().mean() for each in results]
    return torch.stack([term.float() for term in terms]).sum() if len(terms) > 1 else terms[0]


def called_with(model: nn.Module, inputs: Any) -> Forward:
    """Return a call of `model` with an example: a tensor, a list of arguments, or keywords."""
    if isinstance(inputs, dict):
        parameters = inspect.signature(model.forward).parameters.values()
        names = {each.name for each in parameters}
        any_name = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters)
        if any_name or set(inputs) <= names:
            return lambda: model(**inputs)
    if isinstance(inputs, (tuple, list)) and _takes(model, len(inputs)):
        return lambda: model(*inputs)
    return lambda: model(inputs)


def _takes(model: nn.Module, count: int) -> bool:
    """Report whether the forward can be called with `count` positional arguments."""
    try:
        inspect.signature(model.forward).bind(*range(count))
    except TypeError:
        return False
    return True


def folder(path: Path) -> Iterator[Entry]:
    """Yield the first entry of each file of a folder that assigns `MENAGERIE_ENTRIES`.

    An entry is a tuple: a name, the names of the functions that build the model and an example
    input, and further fields, which are not used here.
    """
    for file in sorted(path.glob("*.py")):
        if "MENAGERIE_ENTRIES" in file.read_text(errors="replace"):
            yield Entry(path.name, file.stem, lambda file=file: _first_entry(file))


def _first_entry(file: Path) -> tuple[nn.Module, Forward]:
    root = next((each for each in file.parents if not (each / "__init__.py").exists()), file.parent)
    for place in (str(file.parent), str(root), str(root.parent)):
        sys.path.append(place)
    # A file of a package may import its neighbors relatively. The package itself is not imported,
    # because it may import all its files.
    name = file.stem
    if root != file.parent:
        package = ModuleType(file.parent.name)
        package.__path__ = [str(file.parent)]
        sys.modules.setdefault(package.__name__, package)
        name = f"{package.__name__}.{name}"
    specification = importlib.util.spec_from_file_location(name, file)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    specification.loader.exec_module(module)
    _, build, example, *_ = next(iter(module.MENAGERIE_ENTRIES))
    build = build if callable(build) else getattr(module, build)
    example = example if callable(example) else getattr(module, example)
    model = build()
    return model, called_with(model, example())
