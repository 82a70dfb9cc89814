"""What autograd keeps of an operation that is not a tensor: an exponent, a stride, a dimension.

Read from `_saved_*` (2.11 to 2.15) of C++ nodes. A tensor has `_raw_saved_*` beside it, and is left
alone: to read it would unpack it. So are shapes and options, which a graph tells otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from marshal import dumps
from operator import attrgetter
from typing import Any, NamedTuple

Attributes = tuple[str, ...]  # "name=value", the value as Python writes it


class _Members(NamedTuple):
    """What the nodes of a class keep that is not a tensor."""

    names: list[str]
    get: Callable[[Any], Any] | None  # gives their values: several as a tuple, one as itself


_NOTHING = _Members([], None)
_LEFT_OUT = ("sizes", "size", "numel", "strides", "options", "scalar_type", "sizes_opt")
_members: dict[type, _Members] = {}  # of PyTorch's own nodes, which live for ever
_UNSIGNED = 1 << 63  # a dimension that counts from the end is kept as an unsigned number


def attributes(fns: Sequence[Any]) -> list[Attributes]:
    """The attributes of each live node; of a custom Function none, for they are its author's."""
    known: dict[Any, Attributes] = {}
    found: list[Attributes] = [()] * len(fns)
    types = list(map(type, fns))
    kinds = {kind: _members.get(kind) or _read(kind) for kind in set(types)}
    keeping = {kind: (names, get) for kind, (names, get) in kinds.items() if get is not None}
    for i, kind in enumerate(types):
        if kind in keeping:
            names, get = keeping[kind]
            values = get(fns[i])
            key = kind, _key(values)
            if key not in known:
                row = values if len(names) > 1 else (values,)
                pairs = zip(names, row, strict=True)
                known[key] = tuple([f"{name}={_text(v)}" for name, v in pairs if v is not None])
            found[i] = known[key]
    return found


def _key(values: Any) -> bytes | str:
    """What tells numbers, texts, and lists of them apart, 1 and 1.0 too."""
    try:
        return dumps(values, 2)  # a quarter of the time of repr
    except ValueError:  # a size that is not known yet
        return repr(values)


def _read(kind: type) -> _Members:
    if hasattr(kind, "_raw_saved_tensors") or hasattr(kind, "_forward_cls"):
        return _NOTHING  # of a custom Function, whose class may hold tensors and is not kept
    members = set(dir(kind))
    names = sorted(one.removeprefix("_saved_") for one in members if one.startswith("_saved_"))
    plain = [
        name
        for name in names
        if f"_raw_saved_{name}" not in members and not name.endswith(_LEFT_OUT)
    ]
    get = attrgetter(*(f"_saved_{name}" for name in plain)) if plain else None
    _members[kind] = _Members(plain, get)
    return _members[kind]


def _text(value: Any) -> str:
    if type(value) is int and value >= _UNSIGNED:
        value -= 1 << 64
    elif type(value) is tuple:
        inner = ", ".join(map(_text, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    return str(value)
