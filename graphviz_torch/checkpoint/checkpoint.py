"""Save, load and compare checkpoints in PyTorch's format, with `weights_only=True`.

Nothing in a file is executed. Before a module is changed, the names, shapes, dtypes and devices in
the file are compared with those of the module. If loading with `strict=True` would fail, the module
is not changed.
"""

from __future__ import annotations

import errno
import pickle
import re
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch

from ..devices.containers import children, join, rebuild
from ..devices.moving import to_device
from ..devices.simulated.devices import is_simulated
from ..graph import GraphLike, TensorMeta, graph_of
from ..graph.files.replacement import replacement
from ..graph.immutable import immutable
from ..graph.text import print_text, printable, type_text
from ..internals.tensors.metadata import tensor_meta
from .safetensors import load_safetensors, save_safetensors

# Types that `torch.load(weights_only=True)` can read, in addition to tensors and containers.
_PLAIN = (int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device, torch.Size)

# Limits for compressed zip archives (PyTorch itself does not compress). All files in an archive
# together may unpack to 16 times the size of the archive, or to 64 MiB, whichever is more. The
# pickle file, from which Python objects are created, may unpack to the size of the archive, or to 1
# MiB, whichever is more.
_MAX_UNPACKED_RATIO, _ALLOWED_UNPACKED, _ALLOWED_NAMES = 16, 64 << 20, 1 << 20

Into = torch.nn.Module | Mapping[str, Any]


@immutable
class CheckpointDiff:
    """The differences between a checkpoint and the module into which it would be loaded.

    >>> from graphviz_torch.checkpoint import compare_checkpoint
    >>> from torch import nn
    >>> compare_checkpoint(nn.Linear(2, 1), nn.Linear(2, 1, bias=False).state_dict()).missing
    ('bias',)
    """

    missing: tuple[str, ...] = ()  # names in the module, but not in the file
    unexpected: tuple[str, ...] = ()  # names in the file, but not in the module
    # Tensors that differ: (name, metadata in the file, metadata in the module).
    shapes: tuple[tuple[str, TensorMeta, TensorMeta], ...] = ()
    dtypes: tuple[tuple[str, TensorMeta, TensorMeta], ...] = ()  # loading converts these tensors
    devices: tuple[tuple[str, TensorMeta, TensorMeta], ...] = ()  # loading copies these tensors
    optimizers: tuple[str, ...] = ()  # sentences about optimizer states that do not fit

    @property
    def fits(self) -> bool:
        """True if loading with `strict=True` would succeed.

        Dtypes and devices may differ, because loading converts tensors.
        """
        return not (self.missing or self.unexpected or self.shapes or self.optimizers)

    _repr_pretty_ = print_text

    def __str__(self) -> str:
        lines = [f"missing in the file: {name}" for name in self.missing]
        lines += [f"unexpected in the file: {name}" for name in self.unexpected]
        for word, triples in (
            ("of another shape", self.shapes),
            ("of another dtype, will be converted", self.dtypes),
            ("on another device, will be copied", self.devices),
        ):
            lines += [
                f"{word}: {name} is {a} in the file, {b} in the module" for name, a, b in triples
            ]
        lines += self.optimizers
        return "\n".join(map(printable, lines)) or "the file fits the module"


def save_checkpoint(value: Any, path: str | Path, *, graph: GraphLike | None = None) -> Path:
    """Write a checkpoint atomically: if writing fails, an older file is not changed.

    Args:
        value: a tensor; a module or an optimizer, whose `state_dict` is saved; or a list or dict of
            these and of plain values: `{"model": model, "optimizer": optimizer, "epoch": 3}`.
        path: the file to write. The suffix ".safetensors" selects the format of that name, which
            can contain only tensors. Any other suffix selects PyTorch's format.
        graph: a graph to write as well, to `graph_path_for(path)`.

    Returns:
        The path of the checkpoint.

    Raises:
        TypeError: if `value` contains an object that `weights_only=True` cannot load. The message
            names its position.
        OSError: if the file cannot be written.

    >>> import torch
    >>> from graphviz_torch.checkpoint import load_checkpoint
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> model = torch.nn.Linear(2, 1)
    >>> with TemporaryDirectory() as folder:
    ...     path = save_checkpoint({"model": model, "epoch": 3}, Path(folder, "last.pt"))
    ...     load_checkpoint(path)["epoch"]
    3
    """
    path = Path(path)
    state = _state(value, "")
    with replacement(path) as file:
        if path.suffix == ".safetensors":
            save_safetensors(state, file)
        else:
            _save(state, file)
    if graph is not None:
        graph_of(graph).save(graph_path_for(path))
    return path


def graph_path_for(path: str | Path) -> Path:
    """Return the path of the graph that belongs to a checkpoint.

    >>> graph_path_for("model.pt").name
    'model.pt.graph.json'
    """
    return Path(f"{path}.graph.json")


def load_checkpoint(
    path: str | Path,
    into: Into | None = None,
    *,
    map_location: torch.device | str | Mapping[str, str] | None = "cpu",
    strict: bool = True,
    report: Callable[[CheckpointDiff], object] | None = None,
) -> Any:
    """Read a checkpoint and, if `into` is given, load it into modules and optimizers.

    Args:
        path: the file to read.
        into: a module, which gets the whole content; or a dict of modules and optimizers, which get
            the entries of the same names.
        map_location: device for the tensors, as for `torch.load`; simulated devices are possible.
        strict: True to raise ValueError if the file does not fit exactly; False to load only the
            entries that fit.
        report: function that is called with the `CheckpointDiff` before anything is changed, such
            as `print`.

    Returns:
        The content of the file.

    Raises:
        OSError: if the file does not exist or cannot be read.
        ValueError: if the file is not a checkpoint, would run code, or unpacks to many times its
            size; if it does not fit and `strict` is True; or if a module or optimizer cannot load
            its state. In this last case, other modules or optimizers may have been changed already.
        TypeError: if `into` contains an object that is neither a module nor an optimizer.
        RuntimeError: if the device is not available.
        ImportError: for a ".safetensors" file if the package safetensors is not installed.

    >>> import torch
    >>> from graphviz_torch.checkpoint import save_checkpoint
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> model, restored = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    >>> with TemporaryDirectory() as folder:
    ...     state = load_checkpoint(save_checkpoint(model, Path(folder, "model.pt")), restored)
    >>> torch.equal(restored.weight, model.weight)
    True
    """
    path = Path(path)
    value = _read(path, map_location)
    if into is None:
        return value
    targets = {"": into} if isinstance(into, torch.nn.Module) else dict(into)
    found = compare_checkpoint(into, value)
    if report is not None:
        report(found)
    if strict and not found.fits:
        raise ValueError(f"{path} does not fit, and nothing was changed:\n{found}")
    # Optimizers are loaded first: loading them may still fail, while modules have been checked.
    for name, target in sorted(targets.items(), key=lambda pair: _is_module(pair[1])):
        state = value if name == "" else value.get(name)
        try:
            if _is_module(target):
                unfit = {triple[0] for triple in found.shapes}
                fitting = {k: v for k, v in (state or {}).items() if join(name, k) not in unfit}
                target.load_state_dict(fitting, strict=strict)
            elif state is not None and not found.optimizers:
                target.load_state_dict(state)
        except Exception as error:  # a malformed value may raise any exception
            kind = name or type(target).__name__
            raise ValueError(f"{path}: {kind} cannot load its state: {error}") from error
    return value


def _is_module(target: Any) -> bool:
    return isinstance(target, torch.nn.Module)


def compare_checkpoint(into: Into, value: Any) -> CheckpointDiff:
    """Compare the content of a checkpoint with the modules and optimizers that would load it.

    Args:
        into: a module, or a dict of modules and optimizers.
        value: the content: a state dict, or a dict of state dicts with the same keys as `into`.

    Raises:
        TypeError: if `into` contains an object that is neither a module nor an optimizer.
        ValueError: if the content is not a dict of tensors, or if a tensor has no values.

    >>> from torch import nn
    >>> print(compare_checkpoint(nn.Linear(2, 1), nn.Linear(3, 1).state_dict()))
    of another shape: weight is f32[1, 3] cpu in the file, f32[1, 2] cpu in the module
    """
    if isinstance(into, torch.nn.Module):
        return _compare_module("", into, value)
    if not isinstance(value, Mapping):
        raise ValueError(f"The file contains {type_text(value)}, not a dict with {list(into)}.")
    parts = []
    for name, target in into.items():
        if isinstance(target, torch.nn.Module):
            parts.append(_compare_module(name, target, value.get(name, {})))
        elif isinstance(target, torch.optim.Optimizer):
            parts.append(
                CheckpointDiff(optimizers=_compare_optimizer(name, target, value.get(name)))
            )
        else:
            raise TypeError(f"into[{name!r}] is {type_text(target)}: pass modules and optimizers.")
    fields = ("missing", "unexpected", "shapes", "dtypes", "devices", "optimizers")
    return CheckpointDiff(*(sum((getattr(part, field) for part in parts), ()) for field in fields))


def _compare_module(name: str, module: torch.nn.Module, state: Any) -> CheckpointDiff:
    if not isinstance(state, Mapping):
        raise ValueError(
            f"The file contains {type_text(state)} for {name or type(module).__name__}, "
            "not a dict from names to tensors."
        )
    for key in state:
        if not isinstance(key, str):
            raise ValueError(
                f"The file contains {type_text(key)} as a name for {name or type(module).__name__}."
            )
    own = {k: v for k, v in module.state_dict().items() if isinstance(v, torch.Tensor)}
    for k in own:
        if k in state and not isinstance(state[k], torch.Tensor):
            raise ValueError(
                f"The file contains {type_text(state[k])} for {join(name, k)}, not a tensor."
            )
        if k in state and state[k].is_meta and not own[k].is_meta:
            raise ValueError(f"{join(name, k)} is a meta tensor, without values, in the file.")
        if k in state and state[k].layout != own[k].layout:
            raise ValueError(
                f"{join(name, k)} is {state[k].layout} in the file, {own[k].layout} in the module."
            )
    both = [
        (join(name, k), tensor_meta(state[k]), tensor_meta(v)) for k, v in own.items() if k in state
    ]
    return CheckpointDiff(
        tuple(join(name, key) for key in own if key not in state),
        tuple(join(name, key) for key in state if key not in module.state_dict()),
        tuple(pair for pair in both if pair[1].shape != pair[2].shape),
        tuple(pair for pair in both if pair[1].dtype != pair[2].dtype),
        tuple(pair for pair in both if pair[1].device != pair[2].device),
    )


def _compare_optimizer(name: str, optimizer: torch.optim.Optimizer, state: Any) -> tuple[str, ...]:
    if not isinstance(state, Mapping) or "param_groups" not in state:
        return (f"missing in the file: the state of {name}",)
    try:
        groups = [isinstance(group, Mapping) and group["params"] for group in state["param_groups"]]
        sizes: list[int | None] = [
            len(group) if isinstance(group, list) else None for group in groups
        ]
    except (KeyError, TypeError):
        sizes = [None]
    if None in sizes:
        return (f"in the file, the state of {name} has groups without a list of parameters",)
    own = [len(group["params"]) for group in optimizer.param_groups]
    if sizes == own:
        return ()
    return (f"{name} has parameter groups of sizes {own}, but the file has sizes {sizes}",)


def _state(value: Any, name: str) -> Any:
    """Return a value with each module and optimizer in it replaced by its `state_dict`.

    Args:
        value: the value.
        name: path of the value in the checkpoint, for error messages.

    Raises:
        TypeError: for a value that could not be loaded again.
    """
    if isinstance(value, (torch.nn.Module, torch.optim.Optimizer)):
        return _state(value.state_dict(), name)
    if isinstance(value, torch.Tensor) or type(value) in _PLAIN:
        return value
    if type(value) in (list, tuple) or isinstance(value, dict):
        parts = children(value) or []
        return rebuild(value, [_state(part, join(name, key)) for key, part in parts])
    raise TypeError(
        f"{name or 'The value'} is {type_text(value)}, which weights_only=True cannot load. Save "
        "tensors, numbers, strings, lists, dicts, modules and optimizers."
    )


def _save(state: Any, file: BinaryIO) -> None:
    try:
        torch.save(state, file)
    except RuntimeError as error:
        # If the disk is full, torch raises RuntimeError ("unexpected pos") from the OSError.
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise


def _read(path: Path, map_location: Any) -> Any:
    simulated = is_simulated(map_location) or str(map_location).startswith("sim:")
    place = "cpu" if simulated else map_location
    if path.suffix == ".safetensors":
        value = load_safetensors(path, place)
    else:
        try:
            with open(path, "rb") as file:
                _refuse_bombs(file)
                value = torch.load(file, map_location=place, weights_only=True)
        except pickle.UnpicklingError as error:
            raise ValueError(_refusal(path, str(error))) from None
        except MemoryError:
            raise
        except Exception as error:  # a broken file may cause any exception
            # EINVAL means that the file is broken: torch tried to seek to a negative position.
            if isinstance(error, OSError) and error.errno != errno.EINVAL:
                raise
            # PyTorch's own message about a missing device is clear, so it is kept.
            if "deserialize object on" in str(error):
                raise
            raise ValueError(
                f"{path} is not a PyTorch checkpoint: {printable(str(error), lines=True)}"
            ) from error
    return to_device(value, map_location) if simulated else value


def _refuse_bombs(file: BinaryIO) -> None:
    """Raise ValueError if a file is a zip archive that unpacks to many times its size."""
    size = file.seek(0, 2)
    file.seek(0)
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            parts = archive.infolist()
        unpacked = sum(part.file_size for part in parts)
        names = max([p.file_size for p in parts if p.filename.endswith(".pkl")], default=0)
        if unpacked > max(_MAX_UNPACKED_RATIO * size, _ALLOWED_UNPACKED) or names > max(
            size, _ALLOWED_NAMES
        ):
            raise ValueError(f"its {size:,} bytes unpack to {unpacked:,} bytes.")
    file.seek(0)


def _refusal(path: Path, message: str) -> str:
    wanted = re.search(r"(?:GLOBAL|class|function)\s+`?([\w.]+\.[\w.]+)", message)
    if wanted is None:
        first = printable(message.splitlines()[0])
        return f"{path} is not a PyTorch checkpoint, or is damaged: {first}"
    return (
        f"{path} was refused: it would load {wanted[1]}. A pickle that contains more than tensors "
        "and plain values can run any code. Nothing was run. Ask the author of the file for a "
        "state_dict."
    )
