"""Read safetensors files as names and shapes, without reading the tensors.

While fake tensors are active, `torch.load` reads no tensors anyway. Other libraries open
safetensors files with `safe_open`, which is replaced here. A module that is imported within the
context may keep the replacement. After the context, the replacement calls the original.

Uses safetensors' private table of dtypes (0.8).
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from importlib import import_module
from importlib.util import find_spec
from typing import Any
from unittest.mock import patch

import torch


class WeightFiles:
    """Context manager in which tensors of safetensors files have shapes but no values."""

    def __init__(self) -> None:
        self._open = ExitStack()

    def __enter__(self) -> WeightFiles:
        if find_spec("safetensors") is None:
            return self
        library: Any = import_module("safetensors.torch")
        real = library.safe_open
        inside = [True]

        def safe_open(filename: Any, framework: str, device: Any = "cpu", **given: Any) -> Any:
            if inside and framework in ("pt", "torch", "pytorch"):
                return _FakeWeightFile(real(filename, framework="numpy"), device, library._TYPES)
            return real(filename, framework=framework, device=device, **given)

        with ExitStack() as opened:
            for module in list(sys.modules.values()):
                if getattr(module, "__dict__", {}).get("safe_open") is real:
                    opened.enter_context(patch.object(module, "safe_open", safe_open))
            opened.callback(inside.clear)
            self._open = opened.pop_all()
        return self

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
