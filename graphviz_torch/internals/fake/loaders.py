"""Data loaders of a program with fake tensors: in this process, in the order that they would have.

Private: nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import ExitStack
from functools import wraps
from typing import Any
from unittest.mock import patch

from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, WeightedRandomSampler

from .values import real

_ALONE = {
    "num_workers": 0,
    "pin_memory": False,
    "persistent_workers": False,
    "prefetch_factor": None,
    "multiprocessing_context": None,
    "timeout": 0,
}


class LoadersHere:
    """A context in which a DataLoader starts no process, and its order is a real one."""

    def __init__(self) -> None:
        self._open = ExitStack()

    def __enter__(self) -> LoadersHere:
        with ExitStack() as opened:
            opened.enter_context(patch.object(DataLoader, "__init__", _alone(DataLoader.__init__)))
            for sampler in (RandomSampler, DistributedSampler, WeightedRandomSampler):
                order = _order(sampler.__iter__)
                opened.enter_context(patch.object(sampler, "__iter__", order))
            self._open = opened.pop_all()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._open.__exit__(*raised)


def _alone(init: Any) -> Any:
    signature = inspect.signature(init)

    @wraps(init)
    def __init__(*args: Any, **kwargs: Any) -> None:
        given = signature.bind(*args, **kwargs)
        given.arguments.update({k: v for k, v in _ALONE.items() if k in given.arguments})
        init(*given.args, **given.kwargs)

    return __init__


def _order(iterate: Any) -> Any:
    @wraps(iterate)
    def __iter__(self: Any) -> Iterator[int]:
        with real():
            return iter(list(iterate(self)))

    return __iter__
