"""Find calls in the program's source whose result is dropped although the call has no other effect.

`scores.masked_fill(mask, -inf)` and `Scale.apply(x)` return new tensors. As statements of their
own they change nothing. The source files of the program are parsed once; nothing is evaluated.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterable, Iterator
from functools import lru_cache
from types import CodeType
from typing import ClassVar, NamedTuple

from ...findings.rules.unused_values import IgnoredResult
from ...internals.frames import OWN, CodePosition, user_frames
from ...internals.functions import TensorBase
from ...internals.hooks.calls import Called
from ..listener import BackwardBegan
from ..program import Program
from ..program.code import codes
from ..program.log import Found, Query, RowsOf

_MAX_SOURCE = 1 << 20  # characters of a file that is parsed
# Methods that return a new tensor and are often taken for methods that change the tensor.
_METHODS = (
    *("clamp", "clip", "index_add", "index_copy", "index_fill", "masked_fill", "masked_scatter"),
    *("scatter", "scatter_add"),
)
_APPLY = ".apply()"
_MAX_CODES = 10_000  # number of functions that are searched


class IgnoredFunctionRow(NamedTuple):
    """A call of a custom Function whose result is dropped."""

    call: str
    place: CodePosition


class FunctionsRow(NamedTuple):
    """The names of the nodes of a graph."""

    nodes: frozenset[str]


def ignored_methods(event: Called, program: Program) -> Iterable[Found]:
    """Return a call whose line drops the result."""
    frame = event.frame
    if program.stack.files[frame.f_code.co_filename] == OWN:
        text = _calls(frame.f_code.co_filename).get(frame.f_lineno, "")
        if text.endswith(f".{event.func.__name__}()"):
            return (Found(IgnoredResult(call=text), program.place(frame)),)
    return ()


def ignored_functions(
    event: BackwardBegan, program: Program
) -> Iterator[IgnoredFunctionRow | FunctionsRow]:
    """Yield the calls of custom Functions whose result is dropped, in functions that are new."""
    files = program.stack.files
    own = [file for file, owner in files.items() if owner == OWN]
    if not any(text.endswith(_APPLY) for file in own for text in _calls(file).values()):
        return
    around = [frame.f_code for frame in user_frames(event.frame)]
    for code in codes(program, more=around):
        if files[code.co_filename] == OWN and program.log.admits(
            IgnoredFunctionRow, code, most=_MAX_CODES, in_run=True
        ):
            calls = _ignored_calls(code)
            yield from (IgnoredFunctionRow(*each) for each in calls if each[0].endswith(_APPLY))
    yield FunctionsRow(frozenset([fn.name() for fn in event.live.ids]))


class IgnoredResults(Query):
    """Find calls whose result the program drops."""

    functions = frozenset(getattr(TensorBase, name) for name in _METHODS)
    rows_of: ClassVar[RowsOf] = {
        "on_call_end": ignored_methods,
        "on_backward_start": ignored_functions,
    }

    def __init__(self) -> None:
        # By name of the node: calls of custom Functions, which no graph has shown so far.
        self._functions: dict[str, IgnoredFunctionRow] = {}

    def on_ignored_function(self, row: IgnoredFunctionRow) -> None:
        self._functions[f"{row.call.removesuffix(_APPLY)}Backward"] = row

    def on_functions(self, row: FunctionsRow) -> None:
        for name in row.nodes & self._functions.keys():
            del self._functions[name]

    def events_of_run(self) -> Iterator[Found]:
        for row in self._functions.values():
            yield Found(IgnoredResult(call=row.call), row.place)


def _ignored_calls(code: CodeType) -> Iterator[tuple[str, CodePosition]]:
    """Yield the calls of one function whose result is dropped, each with its position."""
    calls = _calls(code.co_filename)
    offsets = {line: start for start, _, line in reversed([*code.co_lines()]) if line is not None}
    for line, text in calls.items():
        if line in offsets and line != code.co_firstlineno:
            yield text, (code, offsets[line])


@lru_cache(maxsize=64)
def _calls(file: str) -> dict[int, str]:
    """Return the calls in a source file whose result is dropped, by line."""
    source = "".join(linecache.getlines(file))
    if len(source) > _MAX_SOURCE:
        return {}
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    found = {}
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
            continue
        call = node.value
        if not isinstance(call.func, ast.Attribute):
            continue
        owner, name = call.func.value, call.func.attr
        prefix = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
        # `model.apply(function)` calls a function; `Class.apply(...)` is a custom Function.
        if name in _METHODS or (name == "apply" and prefix[:1].isupper()):
            found[node.lineno] = f"{prefix}.{name}()" if prefix else f"{name}()"
    return found
