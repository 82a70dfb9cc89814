"""Which numbers that were read into Python a sum adds: `loss = error + 0.1 * kl.item()`.

Python tells where in its line an operation stands (from 3.11 on), and the source what is added
there. A number is one that was read if a read stands in what is added, or a variable that holds
what a read gave. Anything else is not known, and nothing is said of it.
"""

from __future__ import annotations

import ast
import linecache
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from functools import lru_cache
from inspect import getattr_static
from itertools import islice
from types import CodeType, FrameType
from typing import Any, NamedTuple

from torch import Tensor

from ...internals.frames import Place, local_variables, user_frame
from ...internals.functions import TensorBase
from ...internals.hooks.calls import Called
from .record import Origin

ADDS: frozenset[Any] = frozenset(
    (TensorBase.add, TensorBase.sub, TensorBase.add_, TensorBase.sub_, Tensor.__rsub__)
)
_MOST = 32  # numbers that are remembered
_LONGEST = 1 << 18  # characters of a file that is looked into
_Span = tuple[int, int, int, int]  # line and column where it begins, and where it ends


class _Read(NamedTuple):
    """A number that was read."""

    value: float
    origin: weakref.ref[Origin]
    place: Place | None


class NumbersRead:
    """The last numbers that were read of tensors with a history, until `clear()`."""

    def __init__(self) -> None:
        self.reads: deque[_Read] = deque(maxlen=_MOST)

    def add(self, value: Any, origin: Origin, place: Place | None) -> None:
        """One was read."""
        if type(value) is float:
            self.reads.append(_Read(value, weakref.ref(origin), place))

    def clear(self) -> None:
        """Remember none."""
        self.reads.clear()

    def added(self, event: Called) -> Iterator[Origin]:
        """What was read to make the number that a call adds to a tensor."""
        number = event.args[1] if len(event.args) > 1 else None
        if type(number) is not float:
            return
        found = [read for read in self.reads if read.value is number]
        frame = None if found else user_frame(event.frame)
        if frame is not None:
            variables = local_variables(frame)
            addend = _addend(frame, variables)
            found = [] if addend is None else list(self._behind(addend, frame.f_code, variables))
        yield from filter(None, (read.origin() for read in found))

    def _behind(
        self, addend: ast.expr, code: CodeType, variables: Mapping[str, Any]
    ) -> Iterator[_Read]:
        """The reads that stand in an expression, or that its variables hold."""
        names = {part.id for part in ast.walk(addend) if isinstance(part, ast.Name)}
        held = {id(variables.get(name)) for name in names}
        for read in self.reads:
            there = read.place is not None and read.place[0] is code
            span = _span(*read.place) if there and read.place is not None else None
            if id(read.value) in held or (span is not None and _holds(addend, span)):
                yield read


def _addend(frame: FrameType, variables: Mapping[str, Any]) -> ast.expr | None:
    """What a frame adds just now to a tensor, if it is surely a number."""
    span = _span(frame.f_code, frame.f_lasti)
    found = None if span is None else _sums(frame.f_code.co_filename).get(span)
    if found is None:
        return None
    sides = [found.value] if isinstance(found, ast.AugAssign) else [found.left, found.right]
    return next((side for side in sides if _is_number(side, variables)), None)


def _is_number(node: ast.expr, variables: Mapping[str, Any]) -> bool:
    """Is an expression surely a number: made of numbers, and of what is read of tensors?"""
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        return name == "item" or (isinstance(node.func, ast.Name) and node.func.id == "float")
    if isinstance(node, ast.BinOp):
        return _is_number(node.left, variables) and _is_number(node.right, variables)
    if isinstance(node, ast.UnaryOp):
        return _is_number(node.operand, variables)
    if isinstance(node, ast.Constant):
        return isinstance(node.value, (int, float))
    value: Any = None
    if isinstance(node, ast.Name):
        value = variables.get(node.id)
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        value = getattr_static(variables.get(node.value.id), node.attr, None)
    return isinstance(value, (int, float))


def _span(code: CodeType, position: int) -> _Span | None:
    """Where an instruction's expression stands in its file; None where Python does not tell."""
    positions = getattr(code, "co_positions", None)  # 3.11
    found = next(islice(positions(), position // 2, None), None) if positions else None
    if found is None or None in found:
        return None
    line, end_line, column, end_column = found
    return line, column, end_line, end_column


def _holds(node: ast.expr, span: _Span) -> bool:
    start, end = (node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)
    return start <= span[:2] and span[2:] <= end


@lru_cache(maxsize=16)
def _sums(file: str) -> dict[_Span, ast.BinOp | ast.AugAssign]:
    """The sums and differences of a file, by where they stand."""
    source = "".join(linecache.getlines(file))
    try:
        tree = ast.parse(source if len(source) < _LONGEST else "")
    except (SyntaxError, ValueError, RecursionError):  # changed since it was loaded, or no Python
        return {}
    found: dict[_Span, ast.BinOp | ast.AugAssign] = {}
    for node in ast.walk(tree):
        if isinstance(node, (ast.BinOp, ast.AugAssign)) and isinstance(node.op, (ast.Add, ast.Sub)):
            end_line, end_column = node.end_lineno or 0, node.end_col_offset or 0
            found[node.lineno, node.col_offset, end_line, end_column] = node
    return found
