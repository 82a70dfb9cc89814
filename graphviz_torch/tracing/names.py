"""Find names of tensors in the caller's variables, a dict or a module, and class names of modules.

Class names contain sizes, as in "Linear(4, 16)". The caller's objects are read without running
their code. A lazy container therefore loads nothing, and an object that raises an exception when it
is read gets no names.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from functools import lru_cache
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from ..graph import Graph
from ..graph.text import type_text
from ..internals.exceptions import ignore_exceptions
from ..internals.frames import caller_frame, local_variables, parameter_names, user_frames
from ..internals.tensors.pytree import ATOMS, flatten, is_nesting, length, own_attributes
from ..internals.wrappers import is_wrapped_child, unsharded_parameters

Names = Mapping[str, Any] | torch.nn.Module | None

_MAX_PER_CONTAINER = 1000  # number of tensors of a list or dict that get a name


class ParameterName(str):
    """A parameter's name, which begins with its module's path, such as "encoder.fc1.weight"."""

    __slots__ = ()


class BufferName(ParameterName):
    """A buffer's name, which begins with the path of the buffer's module."""

    __slots__ = ()


def caller_names(
    names: Names, outputs: Any = None, leaves: Iterable[Tensor] = ()
) -> list[tuple[str, Tensor]]:
    """Return (name, tensor) pairs; for a tensor with several names, the preferred one comes first.

    Args:
        names: a dict of tensors and modules by name, a module, or `{}` for no names. The parameters
            of a module in the dict get names such as "key.weight". If `names` is None, the
            variables of the first caller outside this package are read, in the order in which they
            were bound, and then those of the user's outer frames. An argument gets the name that
            the caller used for it.
        outputs: the traced outputs. Keys of dicts and fields of dataclasses in them are used as
            names, too, after the other names.
        leaves: leaves of the graph. If `names` is None, the caller's modules are read only if a
            leaf is a parameter or not a variable, because reading a large model takes milliseconds.

    Raises:
        TypeError: if `names` is none of these, or a dict without tensors and modules.
    """
    if names is None:
        frames = user_frames(caller_frame())
        variables, inside = _outwards_names(frames, _tensor_names, _container_names)
        known = {id(tensor) for _, tensor in variables}
        if any(isinstance(leaf, nn.Parameter) or id(leaf) not in known for leaf in leaves):
            [variables] = _outwards_names(frames, _Variables())
        # A model that was passed to a function is a variable in several frames.
        once = {id(pair): pair for pair in variables}
        return [*once.values(), *_output_names(outputs), *inside]
    if isinstance(names, torch.nn.Module):
        return [*_module_names(names, ""), *_output_names(outputs)]
    if isinstance(names, Mapping):
        if not names:
            return []
        found = [*_mapping_names(names), *_container_names(names)]
        if not found and not any(is_nesting(value) for value in names.values()):
            raise TypeError(
                f"names has no tensor and no module among its {len(names)} values. Pass tensors by "
                'name, as in {"x": x}, or {} for no names.'
            )
        return [*found, *_output_names(outputs)]
    raise TypeError(
        f"names is {type_text(names)}; pass a dict of tensors by name, an nn.Module, "
        "{} for no names, or None to read the caller's variables."
    )


def _outwards_names(
    frames: list[FrameType], *readers: Callable[[Mapping[str, Any]], Iterable[tuple[str, Tensor]]]
) -> list[list[tuple[str, Tensor]]]:
    """Return (name, tensor) pairs found in the variables of several frames, one list per reader.

    Args:
        frames: the frames, innermost first.
        readers: functions that return (name, tensor) pairs, given the variables of a frame.
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
    """Return the (name, tensor) pairs of a frame, followed by those of the outer frames.

    Args:
        named: pairs of the frame.
        outer: pairs of the outer frames.
        given: names of the frame's arguments. If an outer frame has a name for an argument, the
            argument gets this name.
    """
    renamed = [k for k, (name, _) in enumerate(named) if name in given] if outer else []
    if renamed:
        further = {id(tensor): name for name, tensor in reversed(outer)}
        for k in renamed:
            name, tensor = named[k]
            named[k] = further.get(id(tensor), name), tensor
    return named + outer


def _tensors_and_modules(values: Mapping[str, Any]) -> list[tuple[str, Tensor | nn.Module]]:
    """Return the tensors and modules among a frame's variables and the attributes of `self`."""
    pairs: list[tuple[str, Tensor | nn.Module]] = []
    for name, value in values.items():
        kind = type(value)
        if kind in ATOMS:
            continue
        if issubclass(kind, (Tensor, nn.Module)):
            pairs.append((name, value))
        elif name == "self":
            pairs.extend(
                (f"self.{key}", part)
                for key, part in own_attributes(value).items()
                if issubclass(type(part), (Tensor, nn.Module))
            )
    return pairs


def _tensor_names(values: Mapping[str, Any]) -> list[tuple[str, Tensor]]:
    pairs = _tensors_and_modules(values)
    return [(name, value) for name, value in pairs if isinstance(value, Tensor)]


class _Variables:
    """A reader of the tensors in frames' variables, and of the parameters of modules in them.

    Both are returned as (name, tensor) pairs. A module that is in several variables is read only
    once, and the same pair objects are returned for each variable.
    """

    def __init__(self) -> None:
        # (id() of a module, prefix of its names) -> the module's (name, tensor) pairs
        self._modules: dict[tuple[int, str], list[tuple[str, Tensor]]] = {}

    def __call__(self, values: Mapping[str, Any]) -> Iterable[tuple[str, Tensor]]:
        pairs = _tensors_and_modules(values)
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
            pairs = self._modules[id(module), prefix] = _module_names(module, prefix)
        return pairs

    def _prefixes(self, modules: list[tuple[str, torch.nn.Module]]) -> dict[str, str]:
        """Return for each variable the prefix of the names of its module's parameters.

        The prefix is the variable's name if another module has a parameter of the same name. For
        other modules it is "".
        """
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


def _mapping_names(values: Mapping[str, Any]) -> Iterable[tuple[str, Tensor]]:
    for name, value in values.items():
        if issubclass(type(value), Tensor):
            yield str(name), value
        elif issubclass(type(value), torch.nn.Module):
            yield from _module_names(value, str(name))


def _container_names(values: Mapping[str, Any]) -> Iterable[tuple[str, Tensor]]:
    for name, value in values.items():
        if type(value) is Graph:  # skipped for speed, because a Graph contains no tensors
            continue
        if is_nesting(value) and length(value) <= _MAX_PER_CONTAINER:
            with ignore_exceptions():  # formatting a key may raise any exception
                for path, tensor in flatten(value, ask=False)[:_MAX_PER_CONTAINER]:
                    yield f"{name}{path}" if path.startswith("[") else f"{name}.{path}", tensor


def _output_names(outputs: Any) -> Iterable[tuple[str, Tensor]]:
    for path, tensor in flatten(outputs):
        if path.strip("[]0123456789"):  # a path such as "[0][1]" is not used as a name
            yield path, tensor


def _module_names(module: torch.nn.Module, prefix: str) -> list[tuple[str, Tensor]]:
    """Return (name, tensor) of each parameter and buffer in a module and its submodules.

    A tied parameter occurs once for each of its names. A wrapped module has the name of its
    wrapper. This is three times as fast as `named_parameters` and `named_buffers`, which visit each
    module several times.
    """
    found: list[tuple[str, Tensor]] = []
    stack = [(prefix, module)]
    seen = set()
    whole: dict[int, list[tuple[str, Tensor]]] = {}  # id() of a module -> unsharded parameters
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
        except Exception:  # the module's __init__ did not run
            continue
    return found


# Module class of PyTorch -> names of the attributes that are shown. For other modules only the
# class is shown, because reading their attributes could run user code.
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
    """Return the class of a module, with its sizes if they are known, as text.

    >>> class_of(nn.Linear(4, 16)), class_of(nn.Conv2d(3, 8, 5)), class_of(nn.ReLU())
    ('Linear(4, 16)', 'Conv2d(3, 8, 5x5)', 'ReLU')
    """
    kind = type(module)
    if kind in _SIZES:
        try:
            return _with_sizes(kind.__name__, *map(module.__dict__.__getitem__, _SIZES[kind]))
        except (LookupError, TypeError):  # __init__ did not run, or a size has another type
            return kind.__name__
    return kind.__name__.replace("/", "|")


@lru_cache(typed=True)  # a model has many modules of equal class and sizes
def _with_sizes(name: str, *sizes: object) -> str:
    return f"{name}({', '.join(map(_text, sizes))})"


def classes_along(modules: Iterable[tuple[str, nn.Module]]) -> Mapping[str, str]:
    """Return for each module path the classes along the path, as in `Node.module_class`.

    The outermost class comes first. The class of the root is only given for the path "".
    """
    own = {path: class_of(module) for path, module in modules}
    found = {"": own.get("", "")}
    for path in own:
        parent, dot, _ = path.rpartition(".")
        if path and parent in found:  # the usual case, in which a parent precedes its children
            found[path] = f"{found[parent]}/{own[path]}" if dot else own[path]
        elif path:
            parts = path.split(".")
            found[path] = "/".join(own.get(".".join(parts[: i + 1]), "") for i in range(len(parts)))
    return found


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return "x".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
