"""Decide which parameters of a step learn, and summarize this in the title of a flow diagram."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Final

from ...graph import Finding, Graph, Parameter
from ...graph.text import listing
from ...graph.units import count_text
from .diagram import State

MIN_LEARNING_NORM: Final = 1e-12  # smallest gradient norm of a parameter that learns
_MAX_NAMES = 1  # maximum number of parameters named in the title of a diagram
LEARN_NOTHING: Final = frozenset(  # ids of rules that explain why a parameter learns nothing
    (
        *("cut-gradient", "backward-returned-none", "never-called", "not-in-optimizer"),
        *("not-registered", "output-not-in-loss", "zero-gradient"),
    )
)


def state_of(parameter: Parameter, graph: Graph) -> State:
    """Return whether a parameter learns, is frozen, or learns nothing.

    A parameter learns if it is in an optimizer, and if its gradient norm is at least
    `MIN_LEARNING_NORM`. With a smaller gradient, a step does not change a float32 weight of usual
    size.
    """
    if not parameter.requires_grad:
        return "frozen"
    norm = gradient_norm(parameter, graph)
    fed = parameter.got_gradient if norm is None else not norm < MIN_LEARNING_NORM
    return "learns" if fed and parameter.in_optimizer is not False else "learns_nothing"


def states_of(graph: Graph) -> dict[str, State]:
    """Return parameter name -> state, over all backward passes of the step."""
    found: dict[str, State] = {}
    for parameter in graph.parameters:
        if found.get(parameter.name) != "learns":
            found[parameter.name] = state_of(parameter, graph)
    return found


def gradient_norm(parameter: Parameter, graph: Graph) -> float | None:
    """Return the gradient norm of a parameter; None if no gradient or norm was recorded."""
    stats = parameter.grad
    if parameter.node is not None:
        given = [each for each in graph.nodes[parameter.node].grad_outputs if each is not None]
        stats = given[0] if given else stats
    if stats is None:
        return None
    return math.nan if stats.nonfinite else stats.norm


def sentence_of(graph: Graph, findings: Iterable[Finding]) -> str:
    """Return the title of a flow diagram: the number of parameters that learn nothing, and why."""
    states = states_of(graph)
    parameters = [name for name, state in states.items() if state != "frozen"]
    names = [name for name in parameters if states[name] == "learns_nothing"]
    if not parameters:
        none = "No parameters were recorded: record(model) records a model's parameters."
        return "All parameters are frozen." if graph.parameters else none
    if not names:
        one = len(parameters) == 1
        return "The parameter learns." if one else f"All {len(parameters):,} parameters learn."
    lines = dict.fromkeys(f.where for f in findings if f.where and _explains(f, {*names}, graph))
    where = listing(lines) if lines else listing(names, _MAX_NAMES)
    verb = "learns" if len(names) == 1 else "learn"
    count = f"{len(names):,} of {count_text(len(parameters), 'parameter')}"
    return f"{count} {verb} nothing: {where}"


def _explains(finding: Finding, names: set[str], graph: Graph) -> bool:
    """Return True if a finding explains why one of the parameters `names` learns nothing.

    Such a finding lists the parameter's node. For a parameter without a node, the finding's message
    contains the parameter's name.
    """
    if finding.rule not in LEARN_NOTHING:
        return False
    known = [parameter for parameter in graph.parameters if parameter.name in names]
    if any(parameter.node in finding.nodes for parameter in known):
        return True
    absent = [parameter.name for parameter in known if parameter.node is None]
    return bool(absent) and bool(_any_name_pattern(absent).search(finding.message))


def _any_name_pattern(names: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern that matches any of the names, but not as part of a longer name."""
    return re.compile(rf"(?<![\w.])(?:{'|'.join(map(re.escape, names))})(?!\w|\.\w)")
