"""Save and restore the state of Python objects: attributes, containers and random generators.

Lists, tuples, dicts, sets, deques, objects with attributes, and the objects of bound methods (such
as hooks) are searched for state. Classes, functions, tensors, and instances of classes of the
standard library, of PyTorch (except modules) and of this package are not searched. Objects that
have a lock or a thread are left out, because another thread may change them at any time.
"""

from __future__ import annotations

import io
import random
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from types import MethodType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

_MAX_OBJECTS = 20_000  # maximum number of objects to search
_KNOWN = ("torch", __name__.partition(".")[0])
_LOCKS: tuple[type, ...] = (
    *(threading.Thread, threading.Event, threading.Condition),
    *(type(make()) for make in (threading.Lock, threading.RLock)),
)
_CONTAINERS = (list, dict, set, deque)
_ATOMS = frozenset((int, float, bool, str, bytes, type(None), Tensor, torch.nn.Parameter))


class Snapshot:
    """The saved state of some objects and of all objects that they refer to."""

    def __init__(self, *values: Any) -> None:
        self._inside: list[tuple[Any, Any]] = []  # (container, copy of it)
        # (`__dict__` of an object, copy of it)
        self._attributes: list[tuple[dict[str, Any], dict[str, Any]]] = []
        # Functions that each restore the state of a random generator.
        self.generators: list[Callable[[], object]] = []
        self._walk(values)

    def restore(self) -> None:
        """Restore attributes, containers and random generators to their saved state."""
        for now, before in self._attributes:
            _restore_dict(now, before)
        for value, inside in self._inside:
            _restore_container(value, inside)
        for put_state in self.generators:
            put_state()

    def files(self) -> Iterator[tuple[Any, Any]]:
        """Yield the dict or list that contains a file open for writing, and its key or index."""
        for container in [now for now, _ in self._attributes] + [now for now, _ in self._inside]:
            pairs: Any = ()
            if isinstance(container, dict):
                pairs = list(container.items())
            elif isinstance(container, list):
                pairs = list(enumerate(container))
            for key, value in pairs:
                if isinstance(value, io.IOBase) and not value.closed and value.writable():
                    yield container, key

    def _walk(self, values: Any) -> None:
        waiting, entered = list(values), set[int]()
        while waiting and len(entered) < _MAX_OBJECTS:
            value = waiting.pop()
            kind = type(value)
            if kind in _ATOMS or id(value) in entered:
                continue
            entered.add(id(value))
            if isinstance(value, _CONTAINERS):
                self._inside.append((value, value.copy()))
                waiting += value.values() if isinstance(value, dict) else value
            elif isinstance(value, (tuple, frozenset)):
                waiting += value
            elif isinstance(value, MethodType):
                waiting.append(value.__self__)
            elif (put := _generator(value)) is not None:
                self.generators.append(put)
            elif (attributes := _attributes(value)) is not None:
                if any(isinstance(each, _LOCKS) for each in attributes.values()):
                    continue
                self._attributes.append((attributes, dict(attributes)))
                waiting += attributes.values()


def _attributes(value: Any) -> dict[str, Any] | None:
    """Return the `__dict__` of an object, or None if the object is not searched."""
    kind = type(value)
    if issubclass(kind, (type, Tensor)):
        return None
    root = kind.__module__.partition(".")[0]
    known = root in _KNOWN or root in sys.stdlib_module_names
    if known and not issubclass(kind, (Module, SimpleNamespace)):
        return None
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return found if type(found) is dict else None


def _generator(value: Any) -> Callable[[], object] | None:
    """Return a function that restores the state of a random generator; None for other objects."""
    if isinstance(value, torch.Generator):
        state = value.get_state()
        return lambda: value.set_state(state)
    if isinstance(value, random.Random):
        if isinstance(value, random.SystemRandom):
            return None
        of_python = value.getstate()
        return lambda: value.setstate(of_python)
    if type(value).__module__.startswith("numpy.random"):
        bits = getattr(value, "bit_generator", None) or getattr(value, "_bit_generator", None)
        if bits is not None:
            of_numpy = bits.state
            return lambda: setattr(bits, "state", of_numpy)
    return None


def _restore_dict(now: dict[str, Any], before: dict[str, Any]) -> None:
    for name in now.keys() - before.keys():
        del now[name]
    for name, value in before.items():
        if name not in now or now[name] is not value:
            now[name] = value


def _restore_container(value: Any, before: Any) -> None:
    """Restore the content of a container.

    Args:
        value: the container, a list, dict, set or the like.
        before: a copy of its earlier content.
    """
    if isinstance(value, dict):
        if list(value) != list(before) or any(value[k] is not before[k] for k in before):
            value.clear()
            value.update(before)
    elif isinstance(value, set):
        if value != before:
            value.clear()
            value.update(before)
    elif len(value) != len(before) or any(a is not b for a, b in zip(value, before, strict=True)):
        value.clear()
        value.extend(before)
