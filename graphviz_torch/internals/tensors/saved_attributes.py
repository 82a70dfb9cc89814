"""What autograd keeps of an operation that is not a tensor: an exponent, a stride, a dimension.

Read from `_saved_*` (2.11 to 2.15) of C++ nodes. A tensor has `_raw_saved_*` beside it, and is left
alone: to read it would unpack it. So are shapes and options, which a graph tells otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Attributes = tuple[str, ...]  # "name=value", the value as Python writes it

_LEFT_OUT = ("sizes", "size", "numel", "strides", "options", "scalar_type", "sizes_opt")
_members: dict[type, list[tuple[str, str]]] = {}  # of PyTorch's own nodes, which live for ever
_UNSIGNED = 1 << 63  # a dimension that counts from the end is kept as an unsigned number


def attributes(fns: Sequence[Any]) -> list[Attributes]:
    """The attributes of each live node; of a custom Function none, for they are its author's."""
    known: dict[Any, Attributes] = {}
    found: list[Attributes] = []
    for fn in fns:
        wanted = _members.get(type(fn))
        if wanted is None:
            wanted = _names(type(fn))
        if not wanted:
            found.append(())
            continue
        values = [(name, getattr(fn, saved)) for saved, name in wanted]
        key = str(values)  # numbers, texts, and lists of them: 1 and 1.0 are told apart
        if key not in known:
            known[key] = tuple([f"{n}={_text(v)}" for n, v in values if v is not None])
        found.append(known[key])
    return found


def _names(kind: type) -> list[tuple[str, str]]:
    if hasattr(kind, "_raw_saved_tensors") or hasattr(kind, "_forward_cls"):
        return []  # of a custom Function, whose class may hold tensors and is not kept
    members = set(dir(kind))
    names = [(one, one.removeprefix("_saved_")) for one in members if one.startswith("_saved_")]
    _members[kind] = sorted(
        (saved, name)
        for saved, name in names
        if f"_raw{saved}" not in members and not name.endswith(_LEFT_OUT)
    )
    return _members[kind]


def _text(value: Any) -> str:
    if type(value) is int and value >= _UNSIGNED:
        value -= 1 << 64
    elif type(value) is tuple:
        inner = ", ".join(map(_text, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    return str(value)
