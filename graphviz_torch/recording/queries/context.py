"""Find custom Functions whose context keeps the Function's own result as an attribute.

The context of a Function is the node of its result. A result that is an attribute of its own node
is a reference cycle: it is freed only when Python's garbage collector runs.
"""

from __future__ import annotations

import dis
from collections.abc import Iterator
from types import CodeType
from typing import Any, ClassVar

from torch import Tensor

from ...findings.rules.custom_functions import ResultOnContext
from ...internals.frames import CodePosition
from ...internals.tensors.metadata import is_custom
from ...tracing.nodes import grad_fn_of
from ..live import LiveGraph
from ..program import Program
from ..program.log import Found, Query, RowsOf


def context_results(live: LiveGraph, program: Program) -> Iterator[Found]:
    """Yield the results that custom Functions keep as attributes of `ctx`."""
    kinds = {kind for kind in set(map(type, live.own)) if is_custom(kind)}
    for fn in live.own if kinds else ():
        for name, value in vars(fn).items() if type(fn) in kinds else ():
            if isinstance(value, Tensor) and grad_fn_of(value) is fn:
                function = fn._forward_cls
                place = _assignment(function, name)
                if place is not None:
                    _ = program.stack.files[place[0].co_filename]
                event = ResultOnContext(function=function.__name__, attribute=name)
                yield Found(event, place, (int(fn._sequence_nr()),))


class ContextTensors(Query):
    """Find results that a custom Function keeps as attributes of `ctx`."""

    rows_of: ClassVar[RowsOf] = {"on_graph_read": context_results}


def _assignment(function: Any, attribute: str) -> CodePosition | None:
    """Return the position at which a Function assigns to an attribute; None if it is unknown."""
    for method in (function.forward, function.setup_context):
        code: CodeType | None = getattr(method, "__code__", None)
        for step in dis.get_instructions(code) if code is not None else ():
            if step.opname == "STORE_ATTR" and step.argval == attribute and code is not None:
                return code, step.offset
    return None
