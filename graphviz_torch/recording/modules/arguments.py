"""The plain arguments of the user's calls: the 2 of `x + 2`, the p of a dropout.

Of a call that made one node, numbers, texts and dtypes, and short lists of numbers. Nothing of the
user's own is kept, read or written out. A call that made several nodes tells nothing: which of them
an argument belongs to is not known, but for the dropout of an attention: it is the product of a
softmax.

A sum, difference, product or quotient may have an operand that needs no gradient. Its name and
shape are an argument, too: `ratio - old` has the attribute "data=old f32[64]". A difference or a
quotient that begins with it, as `target - x` does, says nothing of it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from operator import itemgetter
from types import (
    BuiltinFunctionType,
    FrameType,
    FunctionType,
    MethodDescriptorType,
    WrapperDescriptorType,
)
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import get_testing_overrides

from ...graph import TensorMeta, short_dtype
from ...internals.hooks.calls import Called
from ...internals.tensors.metadata import tensor_meta
from ..backward import Backward
from ..listener import Columns, Listener
from ..program import Program

Attributes = tuple[str, ...]  # "name=value", as `Node.attributes` has them

_LONGEST = 8  # numbers of one list
_LETTERS = 40  # of one text
_ANSWERS = 10_000  # kinds of calls that are remembered
_FUNCTIONS = frozenset(
    (BuiltinFunctionType, FunctionType, MethodDescriptorType, WrapperDescriptorType)
)
_NUMBERS = frozenset((int, float, bool, complex))
_LISTS = frozenset((tuple, list, torch.Size))
_KINDS = _NUMBERS | _LISTS | {torch.dtype, str}
# What takes two tensors, and whether it is the same whichever comes first.
_PAIRS: dict[Any, bool] = {
    getattr(space, form.format(name)): name in ("add", "mul")
    for space in (torch, torch.Tensor)
    for name in ("add", "mul", "sub", "div", "truediv")
    for form in ("{}", "{}_", "__{}__", "__i{}__")
    if hasattr(space, form.format(name))
}
_TWO = (torch.Tensor, torch.Tensor)
_ATTENTION = torch.nn.functional.scaled_dot_product_attention
_KNOWN = _KINDS | {torch.Tensor, torch.nn.Parameter, type(None), slice, torch.device}


class Arguments(Listener):
    """The plain arguments of calls, by the sequence number of the created node."""

    needs = ("every_call",)

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        # The function, the places of what may be plain, and that: judged when it is asked for.
        self._calls: dict[int, tuple[Any, tuple[int | str, ...], tuple[Any, ...]]] = {}
        self._dropouts: list[tuple[int, int, float]] = []  # of attentions: their nodes, and p
        self._data: dict[int, tuple[str, TensorMeta]] = {}  # operands without a gradient, and names

    def on_call_end(self, event: Called) -> None:
        func, args, kwargs, _, frame, number, end = event
        if end - number != 1:
            if func is _ATTENTION:
                p = args[4] if len(args) > 4 else (kwargs or {}).get("dropout_p")
                if type(p) is float and p:
                    self._dropouts.append((number, end, p))
            return
        kinds = tuple(map(type, args))
        if kinds == _TWO and func in _PAIRS:
            self._look_at_pair(number, args, frame, either=_PAIRS[func])
            return
        plain = _PLACES[kinds]
        if not (plain.places or kwargs) or type(func) not in _FUNCTIONS:
            return
        if not (plain.lists or kwargs):
            self._calls[number] = func, plain.places, plain.take(args)
            return
        places: list[int | str] = list(plain.places)
        values = [args[i] for i in plain.places]
        for key, value in kwargs.items() if kwargs else ():
            if type(value) in _KINDS:
                places.append(key)
                values.append(value)
        if places:  # a list may hold a tensor, and may be changed
            found = [_numbers(value) if type(value) in _LISTS else value for value in values]
            self._calls[number] = func, tuple(places), tuple(found)

    def _look_at_pair(
        self, number: int, pair: tuple[Tensor, Tensor], frame: FrameType, *, either: bool
    ) -> None:
        """Note the operand without a gradient; `either`: it may be the first operand.

        Note the operand that needs no gradient; `either`: may it be the first.
        """
        one, other = pair
        if other.requires_grad:
            if not either or one.requires_grad:
                return
            other = one
        self._data[number] = self.program.label(other, frame), tensor_meta(other)

    def on_step_end(self, event: None) -> None:
        self._calls, self._dropouts, self._data = {}, [], {}

    def node_columns(self, backward: Backward) -> Columns:
        """Return the attributes of nodes, those that autograd keeps first."""
        known: Sequence[Attributes] = backward.reading.columns["attributes"]
        names: dict[Any, list[str]] = {}
        texts: dict[Any, Attributes] = {}
        found: dict[int, Attributes] = {}
        for i, number in enumerate(backward.numbers):
            if number in self._calls:
                func, places, values = self._calls[number]
                key = func, places, repr(values), known[i]  # as text: 1, 1.0 and True are equal
                if key not in texts:
                    if func not in names:
                        names[func] = _positional(func)
                    pairs = zip(places, values, strict=True)
                    plain = [(place, value) for place, value in pairs if _is_short(value)]
                    texts[key] = known[i] + _texts(names[func], plain, known[i])
                found[i] = texts[key]
            elif number in self._data:
                name, meta = self._data[number]
                text = f"{name} {short_dtype(meta.dtype)}{list(meta.shape)}".lstrip()
                found[i] = (*known[i], f"data={text}")
        for i, p in self._products(backward):
            found[i] = (*known[i], f"p={p}")
        return {"attributes": found}

    def _products(self, backward: Backward) -> Iterator[tuple[int, float]]:
        """Yield the products with an attention's softmax: its dropouts on the CPU, with their p."""
        if not self._dropouts:
            return
        names, numbers = backward.reading.columns["name"], backward.numbers
        for edge in backward.reading.edges:
            product = names[edge.target].startswith("Mul") and "Softmax" in names[edge.source]
            for first, end, p in self._dropouts if product else ():
                if first <= numbers[edge.source] and numbers[edge.target] < end:
                    yield edge.target, p


class _Plain(NamedTuple):
    """Positions of arguments that may be plain."""

    places: tuple[int, ...]
    lists: bool  # is one of them a list
    take: Callable[[Any], tuple[Any, ...]]  # them, of all arguments


class _Places(dict[tuple[type, ...], _Plain]):
    """Plain positions by argument types."""

    def __missing__(self, kinds: tuple[type, ...]) -> _Plain:
        places = tuple(i for i, kind in enumerate(kinds) if kind in _KINDS)
        first = places[0] if places else 0
        take: Any = itemgetter(*places) if len(places) > 1 else itemgetter(slice(first, first + 1))
        found = _Plain(places, not _LISTS.isdisjoint(kinds), take)
        if _KNOWN.issuperset(kinds) and len(self) < _ANSWERS:  # a class of the user's is not kept
            self[kinds] = found
        return found


_PLACES = _Places()


def _numbers(values: Any) -> tuple[Any, ...] | None:
    """Return a short list of numbers; None for other values."""
    short = len(values) <= _LONGEST and _NUMBERS.issuperset(map(type, values))
    return tuple(values) if short else None


def _is_short(value: Any) -> bool:
    kind: type = type(value)
    if kind is int:
        return bool(-(1 << 63) <= value < 1 << 63)
    if kind is str:
        return len(value) <= _LETTERS and value.isprintable()
    return value is not None


def _texts(
    names: Sequence[str], plain: Iterable[tuple[int | str, Any]], known: Attributes
) -> Attributes:
    """Return the plain arguments as attributes, without the known ones."""
    found: dict[str, Any] = {}
    for place, value in plain:
        if isinstance(place, str):
            found[place] = value
        elif place < len(names):
            found[names[place]] = value
        elif names:  # the sizes of view(2, 3)
            before = found.get(names[-1], ())
            found[names[-1]] = (*(before if type(before) is tuple else (before,)), value)
    for attribute in known:
        found.pop(attribute.partition("=")[0], None)
    return tuple(f"{name}={value}" for name, value in found.items() if name[0] != "_")


_of_pytorch: dict[Any, list[str]] = {}  # names, by a function of PyTorch's


def _positional(func: Any) -> list[str]:
    """Return the names of a function's positional arguments; [] if unknown."""
    if func in _of_pytorch:
        return _of_pytorch[func]
    # PyTorch's C functions have no signature of their own.
    stand_in = get_testing_overrides().get(func)
    if stand_in is None:  # the user's own, which is not kept
        return _parameters(func)
    return _of_pytorch.setdefault(func, _parameters(stand_in))


def _parameters(function: Any) -> list[str]:
    with suppress(TypeError, ValueError):
        return list(inspect.signature(function).parameters)
    return []
