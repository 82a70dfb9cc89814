"""Run DataLoaders and thread pools in the calling thread, the only one with fake tensors.

A DataLoader starts no worker process, and a `ThreadPoolExecutor` runs a submitted function
immediately. The order of the program's operations is kept.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import wraps
from threading import get_ident
from typing import Any
from unittest.mock import patch

from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, WeightedRandomSampler

from .values import real_tensors

_NO_WORKERS = {
    "num_workers": 0,
    "pin_memory": False,
    "persistent_workers": False,
    "prefetch_factor": None,
    "multiprocessing_context": None,
    "timeout": 0,
}


class SingleThreadedLoaders:
    """Context manager in which loaders and pools run in this thread.

    A sampler computes its order on real tensors, since the order decides which data is loaded.
    """

    def __init__(self) -> None:
        self._open = ExitStack()

    def __enter__(self) -> SingleThreadedLoaders:
        with ExitStack() as opened:
            opened.enter_context(
                patch.object(DataLoader, "__init__", _without_workers(DataLoader.__init__))
            )
            opened.enter_context(
                patch.object(ThreadPoolExecutor, "submit", _submit_of(get_ident()))
            )
            for sampler in (RandomSampler, DistributedSampler, WeightedRandomSampler):
                order = _on_real_tensors(sampler.__iter__)
                opened.enter_context(patch.object(sampler, "__iter__", order))
            self._open = opened.pop_all()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._open.__exit__(*raised)


def _submit_of(thread: int) -> Any:
    """Return a replacement of `ThreadPoolExecutor.submit`, which runs the function immediately.

    Calls from other threads than `thread` go to the original method.
    """
    submit: Any = ThreadPoolExecutor.submit

    def submit_here(pool: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        if get_ident() != thread:
            return submit(pool, function, *args, **kwargs)
        future: Future[Any] = Future()
        try:
            future.set_result(function(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future

    return submit_here


def _without_workers(init: Any) -> Any:
    signature = inspect.signature(init)

    @wraps(init)
    def __init__(*args: Any, **kwargs: Any) -> None:
        given = signature.bind(*args, **kwargs)
        given.arguments.update({k: v for k, v in _NO_WORKERS.items() if k in given.arguments})
        init(*given.args, **given.kwargs)

    return __init__


def _on_real_tensors(iterate: Any) -> Any:
    @wraps(iterate)
    def __iter__(self: Any) -> Iterator[int]:
        with real_tensors():
            return iter(list(iterate(self)))

    return __iter__
