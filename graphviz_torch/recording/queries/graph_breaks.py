"""Report graph breaks, recompilations and skipped functions of `torch.compile` as events."""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import CodeType

from ...findings.rules.meaning.compiled import Recompilation, SkippedFunction
from ...graph.events import BreakingCall, GraphBreak
from ...internals.compiler.dynamo_trace import Break, Recompiled
from ...internals.compiler.skipped import Skipped
from ...internals.frames import OWN, code_owner
from ...tracing.region_reader import innermost
from ...tracing.regions import Origin, RegionEvent
from ..program.log import Found, Query
from ..program.rows import ObservedRow

# Reasons for graph breaks that the program requested.
_MEANT = ("Call to `torch._dynamo.graph_break()`", "Skip calling `torch.compiler.disable()`d")
_UNKNOWN = "Failed to trace builtin operator\n  Explanation: Dynamo does not know how to trace "
# The beginning of Dynamo's reason -> the kind of code that caused the graph break.
_CALLS: tuple[tuple[str, BreakingCall], ...] = (
    (_UNKNOWN + "builtin operator `print`", "print"),
    ("logging.Logger method", "log"),
    ("Unsupported Tensor.item()", "item"),
    ("generic_jump TensorVariable", "branch"),
    ("Data-dependent branching", "branch"),
    ("Dynamic shape operator", "shape"),
    ("Unsupported Tensor.backward()", "backward"),
    ("Attempted to wrap RNN, GRU, or LSTM", "recurrent"),
    ("Dynamo recompile limit exceeded", "limit"),
    *((asked, "asked") for asked in _MEANT),
)


def compilation_events(broken: Break | None, again: Recompiled | None) -> Iterator[RegionEvent]:
    """Yield the events to report about a graph that Dynamo traced: a break, a recompilation.

    Args:
        broken: the graph break that ends the graph, if any.
        again: the recompilation that created the graph, if any.
    """
    call = "asked" if broken is None else breaking_call(broken.reason)
    if broken is not None and call != "asked":
        event = GraphBreak(reason=sentence(broken.reason), call=call)
        yield RegionEvent(event, (), (), Origin(*innermost(broken.lines), ()))
    if again is not None:
        # Dynamo's reason begins with a compile id, as in "0/0: tensor 'x' size mismatch".
        reason = (again.reason.partition(": ")[2] or again.reason).partition("  #")[0]
        name = function_name(again.code)
        at = again.code.co_filename, again.code.co_firstlineno
        compiled = Recompilation(function=name, reason=sentence(reason), count=again.before)
        yield RegionEvent(compiled, (), (), Origin(*innermost((at,)), ()))


def breaking_call(reason: str) -> BreakingCall:
    """Return the kind of code that Dynamo could not compile, from its reason; "" if unknown."""
    calls: list[BreakingCall] = [what for how, what in _CALLS if reason.startswith(how)]
    return (*calls, "")[0]


def function_name(code: CodeType) -> str:
    """Return a function's name as in the source, without the prefix that Dynamo adds."""
    # Dynamo renames code after a graph break to "torch_dynamo_resume_in_forward_at_12".
    return re.sub(r"torch_dynamo_resume_in_(\w+)_at_\d+", r"\1", code.co_name)


def sentence(reason: str) -> str:
    """Return the first line of Dynamo's reason, without its full stop."""
    if reason.strip() == "step_unsupported":  # Dynamo names no cause
        return "what comes next could not be compiled"
    return reason.strip().partition("\n")[0].strip().rstrip(".")


class SkippedFunctions(Query):
    """Find the program's functions that Dynamo skips now, or skipped earlier."""

    def on_observed(self, row: ObservedRow) -> Iterator[Found]:
        match row.event:
            case Skipped(code, line, reason) if code_owner(code.co_filename) == OWN:
                name, why = function_name(code), sentence(reason) if reason else ""
                skipped = SkippedFunction(function=name, reason=why, call=breaking_call(reason))
                starts = [start for start, _, number in code.co_lines() if number == line]
                yield Found(skipped, (code, (starts or [0])[0]))
