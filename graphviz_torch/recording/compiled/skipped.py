"""Report functions that Dynamo skips, so that they run uncompiled."""

from __future__ import annotations

from ...findings.rules.meaning.compiled import SkippedFunction
from ...internals.compiler.skipped import Skipped
from ...internals.frames import OWN, CodePosition, code_owner
from ..listener import Listener
from .breaks import breaking_call, function_name, sentence


class SkippedFunctions(Listener):
    """Listener that reports the program's functions that Dynamo skips."""

    needs = ("every_call",)

    def on_function_skipped(self, event: Skipped) -> None:
        """Handle a function that Dynamo skips now, or skipped earlier."""
        code, _, reason = event
        if code_owner(code.co_filename) == OWN:
            name, why = function_name(code), sentence(reason) if reason else ""
            skipped = SkippedFunction(function=name, reason=why, call=breaking_call(reason))
            self.events.note(skipped, _place(event))


def _place(skipped: Skipped) -> CodePosition:
    code = skipped.code
    positions = [start for start, _, line in code.co_lines() if line == skipped.line]
    return code, (positions or [0])[0]
