"""Find functions that Dynamo skips, so that they run uncompiled."""

from __future__ import annotations

from collections.abc import Iterator

from ...findings.rules.meaning.compiled import SkippedFunction
from ...internals.compiler.skipped import Skipped
from ...internals.frames import OWN, code_owner
from ..program.graph_breaks import breaking_call, function_name, sentence
from ..program.log import Found, Query
from ..program.rows import ObservedRow


class SkippedFunctions(Query):
    """Find the program's functions that Dynamo skips now, or skipped earlier."""

    def on_observed(self, row: ObservedRow) -> Iterator[Found]:
        match row.event:
            case Skipped(code, line, reason) if code_owner(code.co_filename) == OWN:
                name, why = function_name(code), sentence(reason) if reason else ""
                skipped = SkippedFunction(function=name, reason=why, call=breaking_call(reason))
                starts = [start for start, _, number in code.co_lines() if number == line]
                yield Found(skipped, (code, (starts or [0])[0]))
