"""What `torch.compile` did that costs time: graphs that end early, functions compiled once more."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ...graph.events import BreakingCall, GraphBreak, Recompilation
from ...internals.compiler.traces import Break, Recompiled
from ...tracing.region_reader import innermost
from ...tracing.regions import InsideEvent, Origin

_UNKNOWN = "Failed to trace builtin operator\n  Explanation: Dynamo does not know how to trace "
# What dynamo's reason begins with, and what the program did.
_CALLS: tuple[tuple[str, BreakingCall], ...] = (
    (_UNKNOWN + "builtin operator `print`", "print"),
    ("logging.Logger method", "log"),
    ("Unsupported Tensor.item()", "item"),
    ("generic_jump TensorVariable", "branch"),
    ("Data-dependent branching", "branch"),
    ("Dynamic shape operator", "shape"),
    ("Unsupported Tensor.backward()", "backward"),
)
# The program asked for these.
_MEANT = ("Call to `torch._dynamo.graph_break()`", "Skip calling `torch.compiler.disable()`d")


def compilation_events(broken: Break | None, again: Recompiled | None) -> Iterator[InsideEvent]:
    """What is told of a graph that dynamo has traced.

    Args:
        broken: why it ends before its function does.
        again: why its function was compiled once more.
    """
    if broken is not None and not broken.reason.startswith(_MEANT):
        calls: list[BreakingCall] = [what for how, what in _CALLS if broken.reason.startswith(how)]
        event = GraphBreak(reason=_sentence(broken.reason), call=(*calls, "")[0])
        yield InsideEvent(event, (), (), Origin(*innermost(broken.lines), ()))
    if again is not None:
        # "0/0: tensor 'x' size mismatch": which of what was compiled before.
        reason = (again.reason.partition(": ")[2] or again.reason).partition("  #")[0]
        # What goes on behind a break is called torch_dynamo_resume_in_forward_at_12.
        name = re.sub(r"torch_dynamo_resume_in_(\w+)_at_\d+", r"\1", again.code.co_name)
        at = again.code.co_filename, again.code.co_firstlineno
        compiled = Recompilation(function=name, reason=_sentence(reason), count=again.before)
        yield InsideEvent(compiled, (), (), Origin(*innermost((at,)), ()))


def _sentence(reason: str) -> str:
    """The first line of a reason of dynamo's, without its end."""
    if reason.strip() == "step_unsupported":  # no more is said
        return "what comes next could not be compiled"
    return reason.strip().partition("\n")[0].strip().rstrip(".")
