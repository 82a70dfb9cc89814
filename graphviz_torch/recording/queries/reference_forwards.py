"""Find calls of a module without gradients that repeat its calls with gradients.

If each step repeats them, a reference or target model is probably the model itself.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ...findings.rules.meaning.shared_weights import ReferenceForward
from ...graph.immutable import NamedTuple, mutable
from ...internals.functions import TensorBase
from ...internals.probes import Probe, probe
from ...internals.tensors.memory import has_memory
from ...internals.tensors.pytree import tensors
from ..program import Program
from ..program.events import UserLine
from ..program.log import Found, Query
from ..program.rows import ResumeRow
from ..program.source_lines import Lines, first_difference

_MAX_CALLS, _MAX_LINES = 64, 256
_MIN_STEPS = 3  # number of steps that repeat calls, for a line to be reported
_MAX_NORM = 4096  # number of elements whose norm is compared
_PLAIN = (bool, int, float, str, type(None))  # types of arguments that are compared by value


class OutermostCallRow(NamedTuple):
    """A call of an outermost module, with or without gradients."""

    module: str
    key: tuple[Any, ...]  # equal for calls with the same arguments
    steps: int  # number of optimizer steps before the call
    lines: Lines
    has_gradients: bool  # True if gradients were enabled
    norm: Probe  # norm of a part of the result


def append_call(program: Program, key: tuple[Any, ...], lines: Lines, output: Any) -> None:
    """Append the row of an outermost module's call, if its arguments and result can be compared.

    Args:
        program: the recorded program, in which the call has just returned.
        key: the `argument_key` at the start of the call. Hooks may replace the arguments later.
        lines: the call stack of the call.
        output: the result of the call.
    """
    result = next(iter(tensors(output)), None)
    norm = None if result is None or not key else probe(_norm, result)
    if norm is not None:
        row = program.module, key, program.steps.count, lines, torch.is_grad_enabled(), norm
        program.log.append(OutermostCallRow(*row))


def argument_key(args: Any, kwargs: Any, program: Program) -> tuple[Any, ...]:
    """Return a key of a call's arguments, which contains each tensor's memory and version.

    The key is () if no argument is a tensor, or if a tensor has no memory.

    Args:
        args: the positional arguments.
        kwargs: the keyword arguments, or None.
        program: the recorded program, which numbers the memory of tensors.
    """
    key: list[Any] = []
    has_tensors = False
    for value in (*args, *(kwargs or {}).items()):
        for part in value if isinstance(value, tuple) else (value,):
            if not isinstance(part, Tensor):
                key.append(part if isinstance(part, _PLAIN) else id(part))
                continue
            if not has_memory(part):
                return ()
            has_tensors = True
            memory = program.identities.memory_number(part)
            key += [memory, TensorBase.storage_offset(part), part._version]
            key += [tuple(part.shape), TensorBase.stride(part)]
    return tuple(key) if has_tensors else ()


def _norm(result: Tensor) -> Tensor:
    """Return the norm of up to about 4,096 elements of a tensor."""
    flat = TensorBase.reshape(result, (-1,))
    step = 1 + TensorBase.numel(flat) // _MAX_NORM
    part = TensorBase.__getitem__(flat, slice(None, None, step))
    if TensorBase.is_complex(part):
        part = torch.abs(part)  # a conversion to a real dtype would warn
    found: Tensor = torch.linalg.vector_norm(TensorBase.double(part))
    return found


@mutable
class _RepeatedCalls:
    """The calls of two lines with the same arguments, with and without gradients."""

    steps: Counter[int]  # number of pairs of calls, by the number of optimizer steps before them
    are_equal: bool = True  # True if the results of all pairs are equal


class ReferenceForwards(Query):
    """Find calls without gradients that repeat all calls of a line with gradients."""

    def __init__(self) -> None:
        self._calls: deque[OutermostCallRow] = deque(maxlen=_MAX_CALLS)
        self._counts: Counter[Lines] = Counter()  # number of calls with gradients
        # By module, and by the lines of the calls with gradients and of those without.
        self._repeats: dict[tuple[str, Lines, Lines], _RepeatedCalls] = {}

    def on_outermost_call(self, row: OutermostCallRow) -> None:
        for other in self._calls:
            if row[:3] != other[:3] or row.has_gradients is other.has_gradients:
                continue
            first, second = (row, other) if row.has_gradients else (other, row)
            if len(self._repeats) < _MAX_LINES:
                pair = row.module, first.lines, second.lines
                known = self._repeats.setdefault(pair, _RepeatedCalls(Counter()))
                known.steps[row.steps] += 1
                known.are_equal = known.are_equal and row.norm.values == other.norm.values
        self._calls.append(row)
        if row.has_gradients and len(self._counts) < _MAX_LINES:
            self._counts[row.lines] += 1

    def on_resume(self, row: ResumeRow) -> None:
        self._calls.clear()

    def events_of_run(self) -> Iterator[Found]:
        for (module, first, second), known in self._repeats.items():
            if len(known.steps) < _MIN_STEPS or known.steps.total() < self._counts[first]:
                continue
            if known.are_equal:
                at = first_difference(first, second)
                latest = {"first": UserLine(first[at]), "steps": len(known.steps)}
                yield Found(ReferenceForward(module=module), second[at], latest=latest)
