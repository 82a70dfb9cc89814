"""Which parameters of a step learn, and the sentence above a river that says so."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Final

from ...graph import Finding, Graph, Parameter
from ...graph.text import listing
from ...graph.units import count_text
from .stream import State

LEAST_NORM: Final = 1e-12  # of a gradient from which a parameter learns
_NAMES = 1  # of parameters in the sentence
LEARN_NOTHING: Final = frozenset(  # ids of the rules that say why a parameter learns nothing
    (
        *("cut-gradient", "backward-returned-none", "never-called", "not-in-optimizer"),
        *("not-registered", "output-not-in-loss", "zero-gradient"),
    )
)


def state_of(parameter: Parameter, graph: Graph) -> State:
    """Return whether a parameter learns: an optimizer has it, and its gradient is not too small.

    A gradient whose norm is below `LEAST_NORM` changes no float32 weight of usual size.
    """
    if not parameter.requires_grad:
        return "frozen"
    norm = norm_of(parameter, graph)
    fed = parameter.got_gradient if norm is None else not norm < LEAST_NORM
    return "learns" if fed and parameter.in_optimizer is not False else "starves"


def states_of(graph: Graph) -> dict[str, State]:
    """By name: of several backwards of a step, one that feeds a parameter is enough."""
    found: dict[str, State] = {}
    for parameter in graph.parameters:
        if found.get(parameter.name) != "learns":
            found[parameter.name] = state_of(parameter, graph)
    return found


def norm_of(parameter: Parameter, graph: Graph) -> float | None:
    """The norm of a parameter's gradient; None where it got none, or that is not known."""
    stats = parameter.grad
    if parameter.node is not None:
        given = [each for each in graph.nodes[parameter.node].grad_outputs if each is not None]
        stats = given[0] if given else stats
    if stats is None:
        return None
    return math.nan if stats.nonfinite else stats.norm


def sentence_of(graph: Graph, findings: Iterable[Finding]) -> str:
    """What learns, and by which line the rest does not, or else what that is."""
    states = states_of(graph)
    parameters = [name for name, state in states.items() if state != "frozen"]
    names = [name for name in parameters if states[name] == "starves"]
    if not parameters:
        none = "No parameters were recorded: record(model) watches those of a model."
        return "All parameters are frozen." if graph.parameters else none
    if not names:
        one = len(parameters) == 1
        return "The parameter learns." if one else f"All {len(parameters):,} parameters learn."
    lines = dict.fromkeys(f.where for f in findings if f.where and _tells_of(f, {*names}, graph))
    where = listing(lines) if lines else listing(names, _NAMES)
    verb = "learns" if len(names) == 1 else "learn"
    count = f"{len(names):,} of {count_text(len(parameters), 'parameter')}"
    return f"{count} {verb} nothing: {where}"


def _tells_of(finding: Finding, names: set[str], graph: Graph) -> bool:
    """Does a finding say why one of these parameters learns nothing?

    Its nodes say so; of a parameter that the graph does not have, its name in the message.
    """
    if finding.rule not in LEARN_NOTHING:
        return False
    known = [parameter for parameter in graph.parameters if parameter.name in names]
    if any(parameter.node in finding.nodes for parameter in known):
        return True
    absent = [parameter.name for parameter in known if parameter.node is None]
    return bool(absent) and bool(_whole(absent).search(finding.message))


def _whole(names: Iterable[str]) -> re.Pattern[str]:
    """Any of the names, none as a part of a longer one."""
    return re.compile(rf"(?<![\w.])(?:{'|'.join(map(re.escape, names))})(?!\w|\.\w)")
