"""Find losses that no backward uses, and results of calls that the program drops.

Only a value whose variable has "loss", "penalty" or "aux" in its name is a loss. It must share
nodes with the graph of the loss that is used, so that a validation loss is not reported.

`scores.masked_fill(mask, -inf)` and `Scale.apply(x)` return new tensors. As statements of their
own they change nothing. The source files of the program are parsed once; nothing is evaluated.
"""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from types import CodeType
from typing import ClassVar

from torch import Tensor

from ...findings.rules.unused_values import IgnoredResult, UnusedLoss
from ...graph.immutable import NamedTuple
from ...internals.frames import OWN, CodePosition, user_frame, user_frames
from ...internals.functions import TensorBase
from ...internals.hooks.calls import Called
from ...tracing.tracer import collect_nodes
from ..listener import BackwardBegan
from ..program import Program
from ..program.code import codes
from ..program.events import NodeLine
from ..program.log import Found, Query, RowsOf
from ..program.rows import GraphRow

_LOSS = re.compile(r"loss|penalty|aux", re.IGNORECASE)
_MIN_STEPS = 2
_MAX_READS = 64  # number of reads in a step
# Prefixes of the nodes of a loss function, such as cross_entropy, of a mean of its results, and of
# leaves.
_FUNCTIONS = (
    *("LogSoftmax", "Nll", "BinaryCrossEntropy", "KlDiv", "Mse", "L1Loss", "SmoothL1", "Huber"),
    *("Mean", "Sum", "Div", "Neg", "torch::autograd::AccumulateGrad"),
)


class LossReadRow(NamedTuple):
    """A read of a scalar with a graph, through which no backward has run in this step."""

    label: str
    place: CodePosition | None
    number: int  # sequence number of the scalar's node
    upstream: Mapping[int, str]  # names of the nodes that it was computed from, by sequence number
    step: int  # number of optimizer steps before the read


def loss_reads(event: Called, program: Program) -> Iterable[LossReadRow]:
    """Return a row if a call reads the value of a loss through which no backward has run."""
    tensor = event.args[0]
    fn = tensor.grad_fn if type(tensor) is Tensor and TensorBase.dim(tensor) == 0 else None
    number = -1 if fn is None else int(fn._sequence_nr())
    if fn is None or number in program.numbers_ran:
        return ()
    label = program.label(tensor, user_frame(event.frame))
    if not _LOSS.search(label) or not program.log.admits(LossReadRow, most=_MAX_READS):
        return ()
    nodes = collect_nodes([fn])[0]
    upstream = {int(each._sequence_nr()): str(each.name()) for each in nodes}
    place, step = program.place(event.frame), program.steps.count
    return (LossReadRow(label, place, number, upstream, step),)


class UnusedLosses(Query):
    """Find losses whose value is read, and that no backward uses."""

    functions = frozenset(
        getattr(space, name)
        for space in (Tensor, TensorBase)
        for name in ("item", "tolist", "detach", "__float__", "__format__")
        if hasattr(space, name)
    )
    rows_of: ClassVar[RowsOf] = {"on_call_end": loss_reads}

    def __init__(self) -> None:
        self._reads: list[LossReadRow] = []
        # Sequence numbers of the nodes of the backwards in this step, and in the step before, whose
        # losses the program may read after its end.
        self._used: set[int] = set()
        self._before: set[int] = set()
        # Name of a loss -> number of steps in which its value was read, and no backward used it.
        self._steps: dict[str, int] = {}

    def on_loss_read(self, row: LossReadRow) -> None:
        self._reads.append(row)

    def on_graph(self, row: GraphRow) -> None:
        self._used.update(row.numbers)

    def events_of_run(self) -> Iterator[Found]:
        reads, used = self._reads, self._used | self._before
        self._reads, self._used, self._before = [], set(), self._used
        unused: dict[str, list[LossReadRow]] = {}
        for read in reads:
            if read.number in used:
                self._steps.pop(read.label, None)
            elif max(read.upstream.keys() & used, default=0) > 0:
                unused.setdefault(read.label, []).append(read)
        for label, found in unused.items():
            steps = self._steps.get(label, 0) + len({read.step for read in found})
            self._steps[label] = steps
            if steps >= _MIN_STEPS:
                made, upstream = NodeLine(found[0].number), found[0].upstream
                own = [name for number, name in upstream.items() if number not in used]
                event = UnusedLoss(label=label, compares=all(n.startswith(_FUNCTIONS) for n in own))
                yield Found(event, found[0].place, latest={"made": made, "steps": steps})


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
