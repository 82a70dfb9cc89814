"""The schedulers of learning rates that a program's variables hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from types import ModuleType
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

_ITEMS = 16  # of a list that are looked at


def schedulers(values: Mapping[str, Any]) -> Iterator[tuple[str, LRScheduler]]:
    """Those among some variables, in lists of them, and in the attributes of objects."""
    for name, value in values.items():
        if issubclass(type(value), LRScheduler):
            yield name, value
        elif type(value) in (list, tuple):
            items = ((f"{name}[{i}]", item) for i, item in enumerate(value[:_ITEMS]))
            yield from ((n, item) for n, item in items if issubclass(type(item), LRScheduler))
        elif not isinstance(value, (torch.nn.Module, ModuleType, type)):
            with suppress(AttributeError):
                for key, part in object.__getattribute__(value, "__dict__").items():
                    if issubclass(type(part), LRScheduler):
                        yield f"{name}.{key}", part
