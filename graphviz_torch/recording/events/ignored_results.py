"""Find calls in the program's source whose result is dropped although the call has no other effect.

`scores.masked_fill(mask, -inf)` and `Scale.apply(x)` return new tensors. As statements of their
own they change nothing. The source files of the program are parsed once; nothing is evaluated.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator, Sequence
from functools import lru_cache
from types import CodeType

from ...findings.rules.meaning.results import IgnoredResult
from ...graph import Graph
from ...internals.frames import OWN, CodePosition, user_frames
from ...internals.functions import TensorBase
from ...internals.hooks.calls import Called
from ..backward import Backward
from ..listener import BackwardBegan, Listener
from ..program import Program
from ..program.code import codes

_MAX_SOURCE = 1 << 20  # characters of a file that is parsed
# Methods that return a new tensor and are often taken for methods that change the tensor.
_METHODS = (
    *("clamp", "clip", "index_add", "index_copy", "index_fill", "masked_fill", "masked_scatter"),
    *("scatter", "scatter_add"),
)


class IgnoredResults(Listener):
    """Listener that reports calls whose result the program drops."""

    needs = ("every_call",)
    functions = frozenset(getattr(TensorBase, name) for name in _METHODS)

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._seen: set[CodeType] = set()
        self._around: list[CodeType] = []  # code of the frames around the first backward
        # Calls of custom Functions, by class; they are reported if no graph has such a node.
        self._functions: dict[str, tuple[str, CodePosition]] = {}

    def on_call_end(self, event: Called) -> None:
        frame = event.frame
        if self.program.stack.files[frame.f_code.co_filename] == OWN:
            text = _calls(frame.f_code.co_filename).get(frame.f_lineno, "")
            if text.endswith(f".{event.func.__name__}()"):
                self.events.note(IgnoredResult(call=text), self.program.place(frame))

    def on_backward_start(self, event: BackwardBegan) -> None:
        if not self._around:
            self._around = [frame.f_code for frame in user_frames(event.frame)]

    def on_graphs_built(self, backwards: Sequence[Backward], graphs: Sequence[Graph]) -> None:
        own = [file for file, owner in self.program.stack.files.items() if owner == OWN]
        if any(text.endswith(".apply()") for file in own for text in _calls(file).values()):
            self._find_functions()
        if self._functions and backwards:
            for name in {node.name for graph in graphs for node in graph.nodes}:
                self._functions.pop(name, None)
            for text, place in self._functions.values():
                self.events.note(IgnoredResult(call=text), place)

    def _find_functions(self) -> None:
        """Find calls of custom Functions whose result is not used, in functions that are new."""
        files = self.program.stack.files
        for code in codes(self.program, more=self._around):
            if code not in self._seen and files[code.co_filename] == OWN:
                self._seen.add(code)
                for text, place in _ignored_calls(code):
                    if text.endswith(".apply()"):
                        self._functions[f"{text.removesuffix('.apply()')}Backward"] = text, place


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
