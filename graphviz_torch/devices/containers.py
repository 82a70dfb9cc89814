"""Walk and rebuild Python containers that contain tensors.

The supported containers are dicts, lists, tuples, named tuples, sets, deques, dataclasses and
namespaces. Some items of a dict are skipped, because the dict may be `globals()`: names that begin
with two underscores, modules, classes and functions.
"""

from __future__ import annotations

import argparse
import copy
import types
from collections import deque
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import torch

_NAMESPACES = (types.SimpleNamespace, argparse.Namespace)
_SKIPPED = (types.ModuleType, type, types.FunctionType, types.BuiltinFunctionType)


def join(path: str, name: str) -> str:
    """Return `path` and `name` joined by a dot; only `name` if `path` is empty."""
    return f"{path}.{name}" if path else name


def children(thing: Any) -> list[tuple[str, Any]] | None:
    """Return (name, value) of each item of a container; None if `thing` is not a container."""
    if isinstance(thing, dict):
        return [(str(key), value) for key, value in _entries(thing)]
    if isinstance(thing, tuple) and hasattr(thing, "_fields"):
        return list(zip(thing._fields, thing, strict=True))
    if isinstance(thing, (list, tuple, deque, set, frozenset)):
        return [(str(i), value) for i, value in enumerate(thing)]
    if isinstance(thing, _NAMESPACES):
        return list(vars(thing).items())
    if is_dataclass(thing) and not isinstance(thing, type):
        return [(f.name, getattr(thing, f.name)) for f in fields(thing) if hasattr(thing, f.name)]
    return None


def rebuild(thing: Any, values: list[Any]) -> Any:
    """Return a copy of a container whose items are `values`, in the order of `children`."""
    if isinstance(thing, dict):
        new = copy.copy(thing)
        for (key, _), value in zip(_entries(thing), values, strict=True):
            new[key] = value
        return new
    if isinstance(thing, tuple):
        return type(thing)(*values) if hasattr(thing, "_fields") else type(thing)(values)
    if isinstance(thing, (set, frozenset)):
        return type(thing)(values)
    new = copy.copy(thing)
    if isinstance(thing, (list, deque)):
        for i, value in enumerate(values):
            new[i] = value
        return new
    for (name, _), value in zip(children(thing) or [], values, strict=True):
        object.__setattr__(new, name, value)  # frozen dataclasses refuse assignment
    return new


def walk_structure(tree: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (path, value) of each object in nested containers that is not a container itself.

    A container that occurs twice, or that contains itself, is visited only once.
    """
    stack = [(name, tree)]
    entered: set[int] = set()
    while stack:
        path, thing = stack.pop()
        parts = None if isinstance(thing, torch.Tensor) else children(thing)
        if parts is None:
            yield path, thing
        elif id(thing) not in entered:
            entered.add(id(thing))
            stack.extend((join(path, key), value) for key, value in reversed(parts))


def tensors_in(thing: Any) -> list[tuple[str, torch.Tensor]]:
    """Return (path, tensor) of each tensor in a container or in an object's attributes."""
    parts = children(thing)
    if parts is None:
        parts = list(getattr(thing, "__dict__", {}).items())
    return [
        (path, value)
        for key, part in parts
        for path, value in walk_structure(part, key)
        if isinstance(value, torch.Tensor)
    ]


def unmovable_reason(thing: Any) -> str:
    """Return why `to_device` cannot move an object; "" if the object has no tensors."""
    kind = type(thing)
    if isinstance(thing, _SKIPPED):
        return ""
    if kind.__module__ == "numpy" and kind.__name__ == "ndarray":
        return "a NumPy array is always on the CPU; convert it with torch.from_numpy"
    if isinstance(thing, types.GeneratorType):
        return "a generator; move what it yields"
    names = [name for name, _ in tensors_in(thing)]
    if names:
        return f"an object of class {kind.__name__}; pass vars() of it for {', '.join(names[:5])}"
    return ""


def _entries(mapping: dict[Any, Any]) -> list[tuple[Any, Any]]:
    return [
        (key, value)
        for key, value in list(mapping.items())
        if not (isinstance(key, str) and key.startswith("__")) and not isinstance(value, _SKIPPED)
    ]
