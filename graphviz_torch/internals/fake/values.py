"""Tensors that have shapes and no values, and what a program is told where it asks for a value.

Every tensor that is made inside is one of PyTorch's fake tensors, on the CPU as PyTorch's C++ sees
it. A value that PyTorch's own optimizers and scalers ask for has no influence on a shape: they are
told 1 and 0. A value that the program asks for is the one that was given for its line; 0 in a line
that prints or logs it; or else an error which says what to give.

Private: fake tensors, their table of operators, their memo of converted tensors, which makes
`swap_tensors` refuse, their errors, and the classes whose tensors optimizers step at once (2.13).
"""

from __future__ import annotations

import linecache
import os
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses import fake_impls, fake_tensor

from ..frames import user_frame

_ASKS = torch.ops.aten._local_scalar_dense.default
_TORCH = os.path.join(os.path.dirname(torch.__file__), "")
_OURS = (_TORCH, os.path.join(str(Path(__file__).parents[2]), ""))
# What parts of PyTorch are told: the number of a step, that all is finite, a seed, that no random
# number lies outside its bounds, that all stages know the shapes that they get and give.
_TOLD = {
    os.path.join(_TORCH, *path): value
    for path, value in {
        ("optim", ""): 1,
        ("amp", ""): 0,
        ("cuda", "amp", ""): 0,
        ("utils", "data", ""): 0,
        ("nn", "init.py"): 0,
        ("distributed", "pipelining", ""): 1,
    }.items()
}
# Libraries that are told 0, by what their path ends with: a seed; that a loss is finite.
_SEEDED = os.path.join("accelerate", "data_loader.py"), os.path.join("transformers", "trainer.py")
# A line that prints or logs, and does nothing else with what it is given.
_PRINTS = re.compile(r"(print|(\w+\.)*(log|logger|logging|writer|wandb|pbar|progress)(\.\w+)*)\(")
_real: Any = fake_tensor.unset_fake_temporarily
_impls: Any = fake_impls
_Mode: Any = fake_tensor.FakeTensorMode
_UNKNOWN = (
    fake_tensor.DataDependentOutputException,
    fake_tensor.DynamicOutputShapeException,
    fake_tensor.UnsupportedOperatorException,
    fake_tensor.UnsupportedFakeTensorException,
)


class Unknown(RuntimeError):
    """What a program needs is not known without values."""


class FakeTensors:
    """A context in which every new tensor is fake.

    Args:
        values: what `.item()` gives, by line ("train.py:30", "30"); by "" at every other.
    """

    def __init__(self, values: Mapping[str, float]) -> None:
        self.values = dict(values)
        self.printed: set[str] = set()  # lines that print a value, and were told 0
        self.mode: Any = _Mode(allow_non_fake_inputs=True)
        self._open = ExitStack()

    def __enter__(self) -> FakeTensors:
        swap: Any = torch.utils.swap_tensors

        def swap_tensors(one: Any, other: Any) -> None:
            self.mode.fake_tensor_converter.meta_converter.tensor_memo.clear()
            swap(one, other)

        with ExitStack() as opened:
            opened.enter_context(patch.object(torch.utils, "swap_tensors", swap_tensors))
            table = _impls.op_implementations_dict
            opened.enter_context(patch.dict(table, {_ASKS: self._value}))
            for owner in (import_module("torch.optim.optimizer"), torch.utils._foreach_utils):
                plain = [*owner._foreach_supported_types, fake_tensor.FakeTensor]
                opened.enter_context(patch.object(owner, "_foreach_supported_types", plain))
            opened.enter_context(self.mode)
            self._open = opened.pop_all()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._open.__exit__(*raised)

    def _value(self, mode: Any, operator: Any, tensor: Any) -> Any:
        kind: Callable[[float], Any] = float
        if tensor.dtype == torch.bool:
            kind = bool
        elif not tensor.dtype.is_floating_point and not tensor.dtype.is_complex:
            kind = int
        answer = _asking()
        if answer is not None:
            return kind(answer)
        frame = user_frame(sys._getframe(1))
        for name in (*_names(frame), ""):
            if name in self.values:
                return kind(self.values[name])
        if frame is not None and _prints(frame):
            self.printed.add(line_of(frame))
            return kind(0)
        raise Unknown(
            f"{line_of(frame)} asks for a value of a tensor, which a rehearsal does not compute. "
            f"Give one: --value {line_of(frame).rpartition(':')[2]}=0.5, or values={{...}}."
        )


def real() -> Any:
    """A context in which tensors are real again."""
    return _real()


def unknown(error: BaseException) -> Unknown | None:
    """What an error says that a fake tensor raised; None for any other."""
    if isinstance(error, Unknown):
        return error
    if not isinstance(error, _UNKNOWN):
        return None
    frame, trace = None, error.__traceback__
    line = ""
    while trace is not None:
        if user_frame(trace.tb_frame) is trace.tb_frame:
            frame = trace.tb_frame
            line = f"{os.path.basename(frame.f_code.co_filename)}:{trace.tb_lineno}"
        trace = trace.tb_next
    operator = getattr(error, "func", None) or (error.args[0] if error.args else "")
    if isinstance(error, fake_tensor.UnsupportedOperatorException):
        return Unknown(
            f"{line or 'the program'} calls {operator}, which cannot run without values. Register "
            "a fake of it: torch.library.register_fake."
        )
    return Unknown(
        f"{line or 'the program'} calls {operator}, whose result depends on values, which a "
        "rehearsal does not compute. Rehearse the program without it, or with a fixed shape."
    )


def line_of(frame: FrameType | None) -> str:
    """ "train.py:30"."""
    if frame is None:
        return "the program"
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def _prints(frame: FrameType) -> bool:
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno, frame.f_globals)
    return _PRINTS.match(line.strip()) is not None


def _names(frame: FrameType | None) -> tuple[str, ...]:
    return () if frame is None else (line_of(frame), str(frame.f_lineno))


def _asking() -> float | None:
    """What PyTorch or a library is told that asks for a value; None where the program asks."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith(_OURS):
        for path, value in _TOLD.items():
            if frame.f_code.co_filename.startswith(path):
                return value
        frame = frame.f_back
    return 0 if frame is not None and frame.f_code.co_filename.endswith(_SEEDED) else None
