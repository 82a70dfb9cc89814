"""Record plain arguments of calls as attributes of nodes, such as the 2 of `x + 2`.

Plain arguments are numbers, strings, dtypes, and short lists of numbers. They are recorded if the
call created exactly one node, because otherwise it is unknown to which node an argument belongs. An
exception is the dropout probability of attention, which belongs to a product of the softmax. No
object of the user is kept or printed.

If one operand of a sum, difference, product or quotient requires no gradient, the operand's name
and shape are recorded, too: the node of `ratio - old` gets the attribute "data=old f32[64]". The
attribute is missing if this operand is the first one of a difference or quotient, as in
`target - x`.
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
from typing import Any

import torch
from torch import Tensor
from torch.overrides import get_testing_overrides

from ...graph import TensorMeta, short_dtype
from ...graph.immutable import NamedTuple
from ...internals.hooks.calls import Called
from ...internals.tensors.metadata import tensor_meta, values_key
from ..backward import Backward
from ..listener import Listener
from ..program import Program
from ..recorder import Columns

Attributes = tuple[str, ...]  # of the form "name=value", as in `Node.attributes`

_MAX_LIST = 8  # longer lists are not recorded
_MAX_TEXT = 40  # longer strings are not recorded
_MAX_CACHED = 10_000  # number of cached combinations of argument types
_FUNCTIONS = frozenset(
    (BuiltinFunctionType, FunctionType, MethodDescriptorType, WrapperDescriptorType)
)
_NUMBERS = frozenset((int, float, bool, complex))
_LISTS = frozenset((tuple, list, torch.Size))
_KINDS = _NUMBERS | _LISTS | {torch.dtype, str}
# Function of two operands -> True if the function is commutative.
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


class CallArguments(Listener):
    """Listener that records arguments such as numbers and flags as attributes of nodes."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        # Sequence number of a node -> the called function, and the positions (or keywords) and
        # values of its plain arguments.
        self._calls: dict[int, tuple[Any, tuple[int | str, ...], tuple[Any, ...]]] = {}
        # (start, end, p): attention with dropout p; its nodes have start <= sequence number < end.
        self._dropouts: list[tuple[int, int, float]] = []
        # Sequence number of a node -> name and metadata of the operand that requires no gradient.
        self._data: dict[int, tuple[str, TensorMeta]] = {}

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
        plain = _find_plain(kinds)
        if not (plain.places or kwargs) or type(func) not in _FUNCTIONS:
            return
        if not (plain.lists or kwargs):
            self._calls[number] = func, plain.places, plain.take(args)
            return
        places: tuple[int | str, ...] = plain.places
        values = plain.take(args) if places else ()
        if kwargs:
            named = {key: value for key, value in kwargs.items() if type(value) in _KINDS}
            places, values = (*places, *named), (*values, *named.values())
        if places:  # lists are copied, because the program may change them later
            found = [_numbers(value) if type(value) in _LISTS else value for value in values]
            self._calls[number] = func, places, tuple(found)

    def _look_at_pair(
        self, number: int, pair: tuple[Tensor, Tensor], frame: FrameType, *, either: bool
    ) -> None:
        """Record the operand that requires no gradient, if there is one.

        Args:
            number: sequence number of the node.
            pair: the two operands.
            frame: the frame of the call, in which the operand is named.
            either: True if either operand may be recorded, False if only the second one may.
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
        """Return the attributes of nodes: first the node's own, then arguments of the call."""
        known: Sequence[Attributes] = backward.reading.columns["attributes"]
        names: dict[Any, list[str]] = {}
        texts: dict[Any, Attributes] = {}
        found: dict[int, Attributes] = {}
        for i, number in enumerate(backward.numbers):
            if number in self._calls:
                func, places, values = self._calls[number]
                key = func, places, values_key(values), known[i]
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
        """Yield the nodes at which attention applies dropout, each with the probability p.

        Only attention on the CPU creates such a node, which multiplies the softmax by a mask.
        """
        if not self._dropouts:
            return
        names, numbers = backward.reading.columns["name"], backward.numbers
        for edge in backward.reading.edges:
            product = names[edge.target].startswith("Mul") and "Softmax" in names[edge.source]
            for first, end, p in self._dropouts if product else ():
                if first <= numbers[edge.source] and numbers[edge.target] < end:
                    yield edge.target, p


class _Plain(NamedTuple):
    """The positions of numbers, flags and the like in calls with certain argument types."""

    places: tuple[int, ...]  # positions of the plain arguments
    lists: bool  # True if any plain argument is a list
    take: Callable[[Any], tuple[Any, ...]]  # selects the plain arguments from all arguments


class _Places(dict[tuple[type, ...], _Plain]):
    """A cache of `_Plain` by argument types."""

    def __missing__(self, kinds: tuple[type, ...]) -> _Plain:
        places = tuple(i for i, kind in enumerate(kinds) if kind in _KINDS)
        first = places[0] if places else 0
        take: Any = itemgetter(*places) if len(places) > 1 else itemgetter(slice(first, first + 1))
        found = _Plain(places, not _LISTS.isdisjoint(kinds), take)
        # Types of the user are not cached, so that the cache keeps no class of the user alive.
        if _KNOWN.issuperset(kinds) and len(self) < _MAX_CACHED:
            self[kinds] = found
        return found


_find_plain = _Places().__getitem__  # faster than an index


def _numbers(values: Any) -> tuple[Any, ...] | None:
    """Return a short list of numbers as a tuple; None for other values."""
    short = len(values) <= _MAX_LIST and _NUMBERS.issuperset(map(type, values))
    return tuple(values) if short else None


def _is_short(value: Any) -> bool:
    kind: type = type(value)
    if kind is int:
        return bool(-(1 << 63) <= value < 1 << 63)
    if kind is str:
        return len(value) <= _MAX_TEXT and value.isprintable()
    return value is not None


def _texts(
    names: Sequence[str], plain: Iterable[tuple[int | str, Any]], known: Attributes
) -> Attributes:
    """Return numbers, flags and the like among a call's arguments as "name=value".

    Args:
        names: names of the function's positional arguments.
        plain: position or keyword of each argument, and the argument's value.
        known: attributes that the node already has. Arguments of these names are left out.
    """
    found: dict[str, Any] = {}
    for place, value in plain:
        if isinstance(place, str):
            found[place] = value
        elif place < len(names):
            found[names[place]] = value
        elif names:  # there are more values than names, as for the sizes of view(2, 3)
            before = found.get(names[-1], ())
            found[names[-1]] = (*(before if type(before) is tuple else (before,)), value)
    for attribute in known:
        found.pop(attribute.partition("=")[0], None)
    return tuple(f"{name}={value}" for name, value in found.items() if name[0] != "_")


_torch_names: dict[Any, list[str]] = {}  # function of PyTorch -> names of its arguments


def _positional(func: Any) -> list[str]:
    """Return the names of a function's positional arguments; [] if unknown."""
    if func in _torch_names:
        return _torch_names[func]
    # C functions have no signature. PyTorch has a Python function of the same signature for each.
    stand_in = get_testing_overrides().get(func)
    if stand_in is None:  # a function of the user, which is not cached and so not kept alive
        return _parameters(func)
    return _torch_names.setdefault(func, _parameters(stand_in))


def _parameters(function: Any) -> list[str]:
    with suppress(TypeError, ValueError):
        return list(inspect.signature(function).parameters)
    return []
