"""Run DataLoaders and read weight files in a rehearsal, on fake tensors.

DataLoaders and thread pools run in the calling thread, the only one with fake tensors. A DataLoader
starts no worker process, and a `ThreadPoolExecutor` runs a submitted function immediately. The
order of the program's operations is kept.

Weight files are read as names and shapes, without reading the tensors, and none is written. While
fake tensors are active, `torch.load` reads no tensors anyway. Other libraries open safetensors
files with `safe_open`, which is replaced here. `torch.save` and safetensors' `save_file` are
replaced, too: a tensor without values cannot be written, and a half-written file would replace the
user's checkpoint. A module that is imported within the context may keep a replacement. After the
context, the replacement calls the original.

Uses safetensors' private table of dtypes (0.8).
"""

from __future__ import annotations

import inspect
import io
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import wraps
from importlib import import_module
from importlib.util import find_spec
from threading import get_ident
from typing import Any
from unittest.mock import patch

import torch
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, WeightedRandomSampler

from ..frames import user_frame
from .values import line_of, real_tensors

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


class WeightFiles:
    """Context manager in which tensors of files have no values, and no file is written.

    Attributes:
        unsaved: the lines that saved tensors, for which no file was written.
    """

    def __init__(self) -> None:
        self.unsaved: set[str] = set()
        self._open = ExitStack()
        self._is_inside = False

    def __enter__(self) -> WeightFiles:
        self._is_inside = True
        self._open.callback(setattr, self, "_is_inside", False)
        self._open.enter_context(patch.object(torch, "save", self._without_file(torch.save)))
        if find_spec("safetensors") is None:
            return self
        library: Any = import_module("safetensors.torch")
        real = library.safe_open

        def safe_open(filename: Any, framework: str, device: Any = "cpu", **given: Any) -> Any:
            if self._is_inside and framework in ("pt", "torch", "pytorch"):
                return _FakeWeightFile(real(filename, framework="numpy"), device, library._TYPES)
            return real(filename, framework=framework, device=device, **given)

        self._replace(real, safe_open)
        self._replace(library.save_file, self._without_file(library.save_file))
        return self

    def _replace(self, real: Any, replacement: Any) -> None:
        """Replace a function in each module that has imported it, under any name."""
        for module in list(sys.modules.values()):
            for name, value in list(getattr(module, "__dict__", {}).items()):
                if value is real:
                    self._open.enter_context(patch.object(module, name, replacement))

    def _without_file(self, save: Callable[..., Any]) -> Callable[..., Any]:
        """Return a version of `torch.save` or `save_file` that writes only to memory."""

        @wraps(save)
        def replacement(tensors: Any, file: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._is_inside or isinstance(file, io.BytesIO):
                return save(tensors, file, *args, **kwargs)
            self.unsaved.add(line_of(user_frame(sys._getframe(1))))
            return None

        return replacement

    def __exit__(self, *raised: Any) -> None:
        self._open.__exit__(*raised)


class _FakeWeightFile:
    """An open safetensors file that creates uninitialized tensors on access."""

    def __init__(self, file: Any, device: Any, types: dict[str, torch.dtype]) -> None:
        self._file, self._device, self._types = file, device, types

    def __enter__(self) -> _FakeWeightFile:
        return self

    def __exit__(self, *raised: Any) -> None:
        self._file.__exit__(*raised)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)  # methods such as `keys` and `metadata`

    def get_tensor(self, name: str) -> torch.Tensor:
        """Return an uninitialized tensor of the stored shape and dtype."""
        part = self._file.get_slice(name)
        dtype = self._types[part.get_dtype()]
        return torch.empty(part.get_shape(), dtype=dtype, device=self._device)

    def get_tensors(self) -> dict[str, torch.Tensor]:
        """Return all tensors by name."""
        return {name: self.get_tensor(name) for name in self._file.keys()}  # noqa: SIM118

    def get_slice(self, name: str) -> _FakeSlice:
        """Return an object that creates the tensor when it is indexed."""
        return _FakeSlice(self, name, self._file.get_slice(name))


class _FakeSlice:
    def __init__(self, file: _FakeWeightFile, name: str, part: Any) -> None:
        self._file, self._name, self._part = file, name, part

    def __getattr__(self, name: str) -> Any:
        return getattr(self._part, name)  # methods such as `get_shape` and `get_dtype`

    def __getitem__(self, index: Any) -> torch.Tensor:
        return self._file.get_tensor(self._name)[index].clone()
