"""The seams of internals/ that tell a session of the program, each of what its listeners want."""

from __future__ import annotations

from typing import Any

from ..internals.compiler.stance import EagerStance
from ..internals.hooks.calls import CallWatch
from ..internals.hooks.collectives.watch import CollectiveWatch
from ..internals.hooks.dispatch import OperatorWatch
from ..internals.hooks.engine import EngineWatch
from ..internals.hooks.modules import ModuleWatch
from ..internals.hooks.optimizers import StepWatch
from ..internals.hooks.regions import RegionWatch
from ..internals.tensors.weak import Uncounted
from ..internals.warning_lines import WarningLines
from .compiled.regions import Regions
from .compiled.trace import OperationTrace
from .session import Session


def seams_of(session: Session) -> list[Any]:
    """What tells a session of the program, in the order in which it is opened."""
    program, telling, telling_any = session.program, session.telling, session.telling_any
    regions = Regions(program, telling("region_ran"))
    found: list[Any] = [
        Uncounted(session.release),
        program,
        RegionWatch(OperationTrace, regions, telling("function_skipped")),
        WarningLines(CallWatch.__torch_function__),
        ModuleWatch(telling("module_began"), telling("module_ended")),
        EngineWatch(session.begin, session.end),
        StepWatch(telling("stepping"), telling("stepped")),
        session.checkpoints,
    ]
    own = {event: watch for each in session.listeners for event, watch in each.watches.items()}
    found += [watch(telling(event)) for event, watch in own.items()]
    if program.options.compiled == "eager":
        found.append(EagerStance(program.remarks.ran_eager, program.remarks.miss))
    for listener in session.listeners:
        if listener.operators:
            # The engine's threads for devices work for this program too: whose operator one is, the
            # listener finds out.
            hand_on = telling_any("dispatched", (listener,))
            found.append(OperatorWatch(listener.operators, hand_on, everywhere=listener.everywhere))
    if any(hasattr(listener, "sent") for listener in session.listeners):
        sent, waited = telling_any("sent"), telling_any("waited")
        found.append(CollectiveWatch(sent=sent, waited=waited))
    listening = (*program.services, *session.listeners)
    return [*found, CallWatch(listening, program.key, program.remarks.miss)]
