"""The tensors inside lists, tuples, dicts and dataclasses, with the path to each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import torch

_PLAIN = frozenset((int, float, bool, str, type(None)))  # most of what lists of figures hold


def flatten(value: Any) -> list[tuple[str, torch.Tensor]]:
    """The tensors of a nesting with the path to each: `{"loss": [t]}` -> `[("loss[0]", t)]`.

    Lists, tuples, dicts and dataclasses are entered, in order; anything else that is no tensor is
    passed over. The path of a tensor on its own is "".
    """
    found: list[tuple[str, torch.Tensor]] = []
    stack: list[tuple[str, Any]] = [("", value)]
    entered: set[int] = set()  # a nesting that contains itself ends here
    while stack:
        path, value = stack.pop()
        # By type: `isinstance` asks the value itself for its class, and may run its code.
        if issubclass(type(value), torch.Tensor):
            found.append((path, value))
        elif is_nesting(value) and id(value) not in entered:
            entered.add(id(value))
            stack.extend(reversed([(path + step, part) for step, part in _parts(value, path)]))
    return found


def is_nesting(value: Any) -> bool:
    """Does `flatten` enter the value?"""
    kind = type(value)
    return issubclass(kind, (list, tuple, dict)) or is_dataclass(kind)


def _parts(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    dot = "." if path else ""
    if isinstance(value, dict):
        for key, part in value.items():
            if type(part) not in _PLAIN:
                yield f"{dot}{key}", part
    elif isinstance(value, (list, tuple)):
        names = getattr(value, "_fields", None)
        for i, part in enumerate(value):
            if type(part) not in _PLAIN:
                yield (f"{dot}{names[i]}" if names else f"[{i}]"), part
    else:
        for field in fields(value):
            # A field that was declared and never set has no value.
            yield f"{dot}{field.name}", getattr(value, field.name, None)
