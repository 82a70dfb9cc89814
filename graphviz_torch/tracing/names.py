"""What the caller calls each tensor: its variables, a dict it passes, or a module's parameters.

And what class the modules are of: "Linear(4, 16)", with the sizes that tell one from another.

The caller's objects are looked at, not asked: a container that loads what it lists loads nothing,
and what an object of theirs raises costs no more than its names.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from ..graph import Graph
from ..graph.text import type_text
from ..internals.frames import caller_frame, local_variables, parameter_names, user_frames
from ..internals.tensors.pytree import ATOMS, flatten, is_nesting, length
from ..internals.wrappers import is_wrapped_child, unsharded_parameters

Names = Mapping[str, Any] | torch.nn.Module | None

_CONTAINED = 1000  # tensors of one list or dict of the caller's that get a name


class ParameterName(str):
    """The name of a parameter, with the path of the module that has it: "encoder.fc1.weight"."""

    __slots__ = ()


class BufferName(ParameterName):
    """The same for a buffer."""

    __slots__ = ()


def caller_names(names: Names, outputs: Any = None) -> list[tuple[str, Tensor]]:
    """Pairs of name and tensor; a tensor with several names has the one to prefer first.

    Args:
        names: a dict (values that are modules give their parameters under "key.parameter"), a
            module, `{}` for no names; None reads the variables of the first caller outside this
            package, in the order in which they were bound, and of the user's frames that lead
            there: an argument has the name that its caller gave it.
        outputs: what is traced; its keys and fields name its tensors, after the names above.

    Raises:
        TypeError: if `names` is none of these, or a dict with nothing to name.
    """
    if names is None:
        frames = user_frames(caller_frame())
        variables, inside = _outwards_names(frames, _Variables(), _of_containers)
        # A model that a function was given is a variable of its caller, too.
        once = {id(pair): pair for pair in variables}
        return [*once.values(), *_of_outputs(outputs), *inside]
    if isinstance(names, torch.nn.Module):
        return [*_of_module(names, ""), *_of_outputs(outputs)]
    if isinstance(names, Mapping):
        if not names:
            return []
        found = [*_of_mapping(names), *_of_containers(names)]
        if not found and not any(is_nesting(value) for value in names.values()):
            raise TypeError(
                f"names has no tensor and no module among its {len(names)} values. Pass tensors by "
                'name, as in {"x": x}, or {} for no names.'
            )
        return [*found, *_of_outputs(outputs)]
    raise TypeError(
        f"names is {type_text(names)}; pass a dict of tensors by name, an nn.Module, "
        "{} for no names, or None to read the caller's variables."
    )


def _outwards_names(
    frames: list[FrameType], *readers: Callable[[Mapping[str, Any]], Iterable[tuple[str, Tensor]]]
) -> list[list[tuple[str, Tensor]]]:
    """Names and tensors in the variables of several frames, the innermost first, by reader.

    Args:
        readers: each gives names and tensors of variables.
    """
    found: list[list[tuple[str, Tensor]]] = [[] for _ in readers]
    for frame in reversed(frames):
        given, variables = parameter_names(frame), local_variables(frame, without=ATOMS)
        for i, read in enumerate(readers):
            found[i] = with_outer(list(read(variables)), found[i], given)
    return found


def with_outer(
    named: list[tuple[str, Tensor]], outer: list[tuple[str, Tensor]], given: Container[str]
) -> list[tuple[str, Tensor]]:
    """Names and tensors of a frame, and behind them those of the frames around it.

    Args:
        named: of the frame.
        outer: of those around it.
        given: names of its arguments: one has the name that its caller gave it, if there is one.
    """
    renamed = [k for k, (name, _) in enumerate(named) if name in given] if outer else []
    if renamed:
        further = {id(tensor): name for name, tensor in reversed(outer)}
        for k in renamed:
            name, tensor = named[k]
            named[k] = further.get(id(tensor), name), tensor
    return named + outer


class _Variables:
    """Tensors, and the parameters of modules, as they stand in the variables of frames.

    A module that stands in several is read once: its pairs are the same objects.
    """

    def __init__(self) -> None:
        self._modules: dict[tuple[int, str], list[tuple[str, Tensor]]] = {}  # by id() and prefix

    def __call__(self, values: Mapping[str, Any]) -> Iterable[tuple[str, Tensor]]:
        pairs: list[tuple[str, Tensor | torch.nn.Module]] = []
        for name, value in values.items():
            kind = type(value)
            if kind in ATOMS:
                continue
            if issubclass(kind, (Tensor, torch.nn.Module)):
                pairs.append((name, value))
            elif name == "self":
                with suppress(Exception):
                    pairs.extend(
                        (f"self.{key}", part)
                        for key, part in object.__getattribute__(value, "__dict__").items()
                        if issubclass(type(part), (Tensor, torch.nn.Module))
                    )
        modules = [(name, value) for name, value in pairs if isinstance(value, torch.nn.Module)]
        if not modules:
            return pairs  # type: ignore[return-value]
        prefixes = self._prefixes(modules)
        found: list[tuple[str, Tensor]] = []
        for name, value in pairs:
            if isinstance(value, torch.nn.Module):
                found += self._of_module(value, prefixes[name])
            else:
                found.append((name, value))
        return found

    def _of_module(self, module: torch.nn.Module, prefix: str) -> list[tuple[str, Tensor]]:
        pairs = self._modules.get((id(module), prefix))
        if pairs is None:
            pairs = self._modules[id(module), prefix] = _of_module(module, prefix)
        return pairs

    def _prefixes(self, modules: list[tuple[str, torch.nn.Module]]) -> dict[str, str]:
        """For each module's variable, that name if without it a parameter's name were ambiguous."""
        prefixes = {name: "" for name, _ in modules}
        if len({id(module) for _, module in modules}) < 2:
            return prefixes
        first: dict[str, tuple[str, Tensor]] = {}
        for variable, module in modules:
            for name, tensor in self._of_module(module, ""):
                other, known = first.setdefault(name, (variable, tensor))
                if known is not tensor:
                    prefixes[variable] = variable
                    prefixes[other] = other
        return prefixes


def _of_mapping(values: Mapping[str, Any]) -> Iterable[tuple[str, Tensor]]:
    for name, value in values.items():
        if issubclass(type(value), Tensor):
            yield str(name), value
        elif issubclass(type(value), torch.nn.Module):
            yield from _of_module(value, str(name))


def _of_containers(values: Mapping[str, Any]) -> Iterable[tuple[str, Tensor]]:
    for name, value in values.items():
        if type(value) is Graph:  # thousands of parts, and no tensor
            continue
        if is_nesting(value) and length(value) <= _CONTAINED:
            with suppress(Exception):  # of a key that cannot be written
                for path, tensor in flatten(value, ask=False)[:_CONTAINED]:
                    yield f"{name}{path}" if path.startswith("[") else f"{name}.{path}", tensor


def _of_outputs(outputs: Any) -> Iterable[tuple[str, Tensor]]:
    for path, tensor in flatten(outputs):
        if path.strip("[]0123456789"):  # a position alone is not a name
            yield path, tensor


def _of_module(module: torch.nn.Module, prefix: str) -> list[tuple[str, Tensor]]:
    """As `named_parameters` and `named_buffers`, with every name of a shared tensor.

    Those look at each module's members many times over; this takes a third of the time. What a
    wrapper wraps has the wrapper's name.
    """
    found: list[tuple[str, Tensor]] = []
    stack = [(prefix, module)]
    seen = set()
    whole: dict[int, list[tuple[str, Tensor]]] = {}  # of what is divided, by id() of its owner
    while stack:
        path, module = stack.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        start = f"{path}." if path else ""
        try:
            for owner, name, tensor in unsharded_parameters(module):
                whole.setdefault(id(owner), []).append((name, tensor))
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    found.append((ParameterName(start + name), parameter))
            for name, tensor in whole.get(id(module), ()):
                found.append((ParameterName(start + name), tensor))
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    found.append((BufferName(start + name), buffer))
            for name, child in reversed(module._modules.items()):
                if child is not None:
                    stack.append((path if is_wrapped_child(module, name) else start + name, child))
        except Exception:  # one that was never initialised
            continue
    return found


# What is told of PyTorch's own modules. Of others the class alone: reading could run their code.
_SIZES: dict[type[nn.Module], tuple[str, ...]] = {
    nn.Linear: ("in_features", "out_features"),
    nn.Embedding: ("num_embeddings", "embedding_dim"),
    nn.LayerNorm: ("normalized_shape",),
    nn.Dropout: ("p",),
    nn.RNN: ("input_size", "hidden_size"),
    nn.LSTM: ("input_size", "hidden_size"),
    nn.GRU: ("input_size", "hidden_size"),
    nn.RNNCell: ("input_size", "hidden_size"),
    nn.LSTMCell: ("input_size", "hidden_size"),
    nn.GRUCell: ("input_size", "hidden_size"),
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d), ("num_features",)),
    **dict.fromkeys(
        (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d),
        ("in_channels", "out_channels", "kernel_size"),
    ),
}


def class_of(module: nn.Module) -> str:
    """The class of a module, with its sizes.

    >>> class_of(nn.Linear(4, 16)), class_of(nn.Conv2d(3, 8, 5)), class_of(nn.ReLU())
    ('Linear(4, 16)', 'Conv2d(3, 8, 5x5)', 'ReLU')
    """
    kind = type(module)
    if kind in _SIZES:
        try:
            return _sized(kind.__name__, *map(module.__dict__.__getitem__, _SIZES[kind]))
        except (LookupError, TypeError):  # never initialised, or with sizes of the user's own kind
            return kind.__name__
    return kind.__name__.replace("/", "|")


@lru_cache(typed=True)  # a model has many alike
def _sized(name: str, *sizes: object) -> str:
    return f"{name}({', '.join(map(_text, sizes))})"


def classes_along(modules: Iterable[tuple[str, nn.Module]]) -> Mapping[str, str]:
    """For each path the classes along it, outermost first, as `Node.module_class` has them.

    The root's class stands at "" alone.
    """
    own = {path: class_of(module) for path, module in modules}
    found = {"": own.get("", "")}
    for path in own:
        parent, dot, _ = path.rpartition(".")
        if path and parent in found:  # as it is in a model, where parents come first
            found[path] = f"{found[parent]}/{own[path]}" if dot else own[path]
        elif path:
            parts = path.split(".")
            found[path] = "/".join(own.get(".".join(parts[: i + 1]), "") for i in range(len(parts)))
    return found


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return "x".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
