"""Find the tensors inside lists, tuples, dicts and dataclasses, with the path to each.

Uses the private `torch.utils._pytree` for the containers that PyTorch supports (2.13).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from ..exceptions import ignore_exceptions

_TENSORS = frozenset((torch.Tensor, torch.nn.Parameter))
# Types of the elements of most lists that contain no tensors.
_PLAIN: frozenset[type] = frozenset((int, float, bool, str, type(None)))
# Types of most variables that are neither containers nor tensors nor modules.
ATOMS: frozenset[type] = _PLAIN.union((type, ModuleType, FunctionType, BuiltinFunctionType))
_FLAT = _TENSORS | _PLAIN
_LEAVES = _PLAIN | {torch.dtype, torch.device, torch.layout, torch.memory_format}


def flatten(value: Any, *, ask: bool = True) -> list[tuple[str, torch.Tensor]]:
    """Return (path, tensor) of each tensor in nested containers.

    For example, the result for `{"loss": [t]}` is `[("loss[0]", t)]`.

    Lists, tuples, dicts and dataclasses are searched in order. Other values are skipped. The path
    of a tensor that is not in a container is "".

    Args:
        value: the nested containers.
        ask: True to call the iteration methods of container subclasses, as is needed if a subclass
            loads its items on access. False: the built-in container is read, and no code of a
            subclass runs.
    """
    found: list[tuple[str, torch.Tensor]] = []
    stack: list[tuple[str, Any]] = [("", value)]
    entered: set[int] = set()  # id() of entered containers: one may contain itself
    while stack:
        path, value = stack.pop()
        # `isinstance` is not used, because it may run code of the value (`__class__`).
        if issubclass(type(value), torch.Tensor):
            found.append((path, value))
        elif is_nesting(value) and id(value) not in entered:
            entered.add(id(value))
            stack.extend(reversed([(path + step, part) for step, part in _parts(value, path, ask)]))
    return found


def is_nesting(value: Any) -> bool:
    """Return True if `flatten` searches inside the value."""
    kind = type(value)
    if kind in ATOMS or kind in _TENSORS:
        return False
    return issubclass(kind, (list, tuple, dict)) or is_dataclass(kind)


def length(value: Any) -> int:
    """Return the length of a list, tuple or dict, or 0 for other values."""
    for base in (list, tuple, dict):
        if issubclass(type(value), base):
            return base.__len__(value)
    return 0


def _parts(value: Any, path: str, ask: bool) -> Iterator[tuple[str, Any]]:
    dot = "." if path else ""
    kind = type(value)
    if issubclass(kind, dict):
        for key, part in value.items() if ask else dict.items(value):
            if type(part) not in _PLAIN:
                yield f"{dot}{key}", part
    elif issubclass(kind, (list, tuple)):
        names = getattr(kind, "_fields", None)
        base: Any = list if issubclass(kind, list) else tuple
        for i, part in enumerate(value if ask else base.__iter__(value)):
            if type(part) not in _PLAIN:
                yield (f"{dot}{names[i]}" if names else f"[{i}]"), part
    else:
        for field in fields(kind):
            # A declared field of a dataclass may not have been set.
            read = getattr if ask else _own_attribute
            yield f"{dot}{field.name}", read(value, field.name, None)


def _own_attribute(value: Any, name: str, default: Any) -> Any:
    """Return an attribute like `getattr`, without calling `__getattr__` of the class.

    Args:
        value: the object.
        name: name of the attribute.
        default: the result if the attribute does not exist.
    """
    try:
        return object.__getattribute__(value, name)
    except AttributeError:
        return default


def own_attributes(value: Any) -> dict[str, Any]:
    """Return the `__dict__` of an object without calling `__getattribute__` of its class.

    Args:
        value: any object of the program.

    Returns:
        The attributes by name; an empty dict if the object has no `__dict__` that can be read.
    """
    with ignore_exceptions():
        found = object.__getattribute__(value, "__dict__")
        if type(found) is dict:
            return found
    return {}


def tensors(*values: Any) -> list[torch.Tensor]:
    """Return the tensors among the arguments of a call, also inside lists, tuples and dicts."""
    if _FLAT.issuperset(map(type, values)):  # the common case
        return [value for value in values if type(value) in _TENSORS]
    found = []
    stack = [*reversed(values)]
    while stack:
        value = stack.pop()
        # The methods of built-in types are called: those of a subclass may have side effects.
        kind = type(value)
        if kind in _TENSORS:
            found.append(value)
        elif kind in _PLAIN:
            continue
        elif kind is tuple:
            stack.extend(value[::-1])
        elif issubclass(kind, torch.Tensor):
            found.append(value)
        elif issubclass(kind, tuple):
            stack.extend(tuple.__getitem__(value, slice(None, None, -1)))
        elif issubclass(kind, list):
            stack.extend(list.__reversed__(value))
        elif issubclass(kind, dict):
            stack.extend(dict.values(value))
    return found


def map_tensors(function: Callable[[torch.Tensor], Any], nesting: Any) -> Any:
    """Return a copy of a nested value in which `function` has been applied to each tensor.

    >>> map_tensors(torch.neg, {"a": torch.ones(1), "b": 2})
    {'a': tensor([-1.]), 'b': 2}
    """
    kind = type(nesting)
    if kind in _TENSORS:
        return function(nesting)
    if kind in _LEAVES:
        return nesting
    if kind in (tuple, list):  # the common case for arguments of an operator
        return kind(map_tensors(function, value) for value in nesting)
    return tree_map_only(torch.Tensor, function, nesting)
