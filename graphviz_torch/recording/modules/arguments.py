"""The plain arguments of the user's calls: the 2 of `x + 2`, the p of a dropout.

Of a call that made one node, numbers, texts and dtypes, and short lists of numbers. Nothing of the
user's own is kept, read or written out. A call that made several nodes tells nothing: which of them
an argument belongs to is not known.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import (
    BuiltinFunctionType,
    FunctionType,
    MethodDescriptorType,
    WrapperDescriptorType,
)
from typing import Any

import torch
from torch.overrides import get_testing_overrides

Attributes = tuple[str, ...]  # "name=value", as `Node.attributes` has them
Plain = tuple[Any, ...]

_LONGEST = 8  # numbers of one list
_LETTERS = 40  # of one text
_FUNCTIONS = frozenset(
    (BuiltinFunctionType, FunctionType, MethodDescriptorType, WrapperDescriptorType)
)
_NUMBERS = frozenset((int, float, bool, complex))
_LISTS = frozenset((tuple, list, torch.Size))
_KINDS = _NUMBERS | _LISTS | {torch.dtype, str}


class Arguments:
    """By the sequence number of a node: what was called, and its plain arguments."""

    def __init__(self) -> None:
        self._calls: dict[int, tuple[Any, Plain]] = {}

    def see(self, number: int, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """A call has made the node with this number."""
        if type(func) not in _FUNCTIONS:
            return
        found: list[tuple[Any, Any]] = [(i, v) for i, v in enumerate(args) if type(v) in _KINDS]
        found += [(i, v) for i, v in kwargs.items() if type(v) in _KINDS]
        if found and (plain := [(i, _plain(v)) for i, v in found if _is_short(v)]):
            self._calls[number] = func, tuple(plain)

    def column(self, numbers: Sequence[int], known: Sequence[Attributes]) -> list[Attributes]:
        """The attributes of the nodes with these numbers: those that autograd tells come first."""
        names: dict[Any, list[str]] = {}
        texts: dict[Any, Attributes] = {}
        found = list(known)
        for i, number in enumerate(numbers):
            if number in self._calls:
                func, plain = self._calls[number]
                key = func, repr(plain), known[i]  # as text: 1, 1.0 and True are equal
                if key not in texts:
                    if func not in names:
                        names[func] = _positional(func)
                    texts[key] = known[i] + _texts(names[func], plain, known[i])
                found[i] = texts[key]
        return found


def _is_short(value: Any) -> bool:
    kind: type = type(value)
    if kind in _LISTS:
        return len(value) <= _LONGEST and all(type(each) in _NUMBERS for each in value)
    if kind is int:
        return bool(-(1 << 63) <= value < 1 << 63)
    return kind is not str or (len(value) <= _LETTERS and value.isprintable())


def _plain(value: Any) -> Any:
    return tuple(value) if type(value) in _LISTS else value


def _texts(names: Sequence[str], plain: Plain, known: Attributes) -> Attributes:
    """Those arguments as attributes that are not among the known ones."""
    found: dict[str, Any] = {}
    for place, value in plain:
        if type(place) is str:
            found[place] = value
        elif place < len(names):
            found[names[place]] = value
        elif names:  # the sizes of view(2, 3)
            before = found.get(names[-1], ())
            found[names[-1]] = (*(before if type(before) is tuple else (before,)), value)
    for attribute in known:
        found.pop(attribute.partition("=")[0], None)
    return tuple(f"{name}={value}" for name, value in found.items() if name[0] != "_")


def _positional(func: Any) -> list[str]:
    """The names of a function's positional arguments; none where they are not known."""
    # PyTorch's C functions have no signature of their own.
    stand_in = get_testing_overrides().get(func, func)
    with suppress(TypeError, ValueError):
        return list(inspect.signature(stand_in).parameters)
    return []
