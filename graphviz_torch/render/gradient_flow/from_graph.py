"""Build the flow diagram of a graph: nodes, links, parameters that learn or do not, and cuts.

The gradient of a node is the gradient of its module's output, even if the node also represents
operations after the module. Autograd sums the gradients from all users of a result.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from ...graph import Finding, Graph, Parameter
from ...graph.text import listing
from ...graph.units import count_text
from ..cuts import cut_lines
from ..labels import program_name
from .diagram import FlowCut, FlowDiagram, FlowLink, FlowNode, ParameterFlow, State
from .flow_nodes import FlowNodes, flow_nodes_of, strip_call_number

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


# Matches apostrophes at the end of a module's path, which an earlier backward pass also has.
_REPEAT_MARK: Final = re.compile(r"'+(?=[.#]|$)")
_MAX_CUTS = 12
_MAX_UNREACHED = 8  # maximum number of nodes for parameters that are not in the graph


class _Gradient(NamedTuple):
    """The norm of a gradient, or the largest norm of several gradients."""

    norm: float | None
    nonfinite: bool = False

    def merge(self, other: _Gradient) -> _Gradient:
        known = [norm for norm in (self.norm, other.norm) if norm is not None]
        return _Gradient(max(known, default=None), self.nonfinite or other.nonfinite)


_NO_GRADIENT: Final = _Gradient(None)


def flow_diagram(graph: Graph, findings: tuple[Finding, ...]) -> FlowDiagram:
    """Return the flow diagram of a graph."""
    flow_nodes = flow_nodes_of(graph, findings)
    drawing, home = flow_nodes.drawing, flow_nodes.home
    order = [key for key, first in home.items() if key == first]
    parameters, above = _parameter_flows(flow_nodes)
    number = {key: len(above) + i for i, key in enumerate(order)}
    # (source flow node, target flow node) -> gradient of the link between them
    flows: dict[tuple[int, int], _Gradient] = {}
    # flow node -> gradient of the results that other flow nodes use
    results: dict[int, _Gradient] = defaultdict(lambda: _NO_GRADIENT)
    # flow node -> gradient of its module's output
    own: dict[int, _Gradient] = defaultdict(lambda: _NO_GRADIENT)
    reached = graph.reached()
    for line in drawing.all_edges:
        source, target = home[line.source], home[line.target]
        leaves = flow_nodes.leaves_module(source, line.source, line.target)
        if source != target or leaves:
            closed = drawing.contents[~line.target].nodes if line.target < 0 else (line.target,)
            # True if no gradient arrives over this edge, because all paths from its target are cut
            dry = reached.isdisjoint(closed)
            flow = (
                _NO_GRADIENT if dry else _gradient_of(graph, line.edge.source, line.edge.output_nr)
            )
            if leaves:
                own[source] = own[source].merge(flow)
            if source == target:
                continue
            flows[source, target] = flows.get((source, target), _NO_GRADIENT).merge(flow)
            results[source] = results[source].merge(flow)
    # flow node -> ids of the graph's outputs that it computes
    outputs: dict[int, list[int]] = defaultdict(list)
    for node in sorted({node for node, _ in graph.outputs}):
        key = drawing.key(node)
        place = home[key]
        outputs[place].append(node)
        flow = _gradient_of(graph, node, 0)
        results[place] = results[place].merge(flow)
        if flow_nodes.leaves_module(place, key, None):
            own[place] = own[place].merge(flow)
    made = [
        _flow_node(flow_nodes, key, flow.norm, parameters.get(key, []), outputs.get(key, []))
        for key in order
        for flow in (own.get(key, results[key]),)
    ]
    links = (FlowLink(number[one], number[other], *flow) for (one, other), flow in flows.items())
    states = [*states_of(graph).values()]
    frozen = states.count("frozen")
    return FlowDiagram(
        (*above, *made),
        tuple(sorted(links)),
        tuple(_cuts(flow_nodes, number)),
        sentence_of(graph, findings),
        frozen if frozen < len(states) else 0,
        "learns_nothing" in states,
    )


def _flow_node(
    flow_nodes: FlowNodes,
    key: int,
    norm: float | None,
    parameters: list[ParameterFlow],
    outputs: list[int],
) -> FlowNode:
    drawing = flow_nodes.drawing
    segment, module = _segment_title(flow_nodes, key), flow_nodes.module(key)
    if module is not None:
        path = module.path
        name = _REPEAT_MARK.sub("", path.removeprefix(f"{segment}.")) if segment else path
        kind = module.module_class
    elif not outputs and key < 0:
        name, kind = drawing.title(~key), ""
    else:
        node = drawing.graph.nodes[outputs[0] if outputs else key]
        meets = len(flow_nodes.sources.get(key, ())) > 1
        kind = program_name(node.title, node.call)
        name = node.label or ("" if meets and not parameters else kind)
    return FlowNode(name, kind, norm, segment, tuple(parameters), bool(outputs))


def _segment_title(flow_nodes: FlowNodes, key: int) -> str:
    """Return the title of an element's backward pass; "" if the step has only one pass."""
    groups = flow_nodes.drawing.groups
    if groups is None or not flow_nodes.drawing.graph.segments:
        return ""
    around = groups.with_ancestors(flow_nodes.group(key))
    return groups.groups[around[-1]].name if around else ""


def _parameter_flows(
    flow_nodes: FlowNodes,
) -> tuple[dict[int, list[ParameterFlow]], tuple[FlowNode, ...]]:
    """Return (flow node -> parameters drawn beside it, new nodes for all other parameters)."""
    found: dict[int, list[ParameterFlow]] = defaultdict(list)
    home = flow_nodes.home
    firsts = reversed(dict.fromkeys(home.values()))
    paths = {strip_call_number(flow_nodes.path(first)): first for first in firsts}
    dry: dict[str, list[ParameterFlow]] = defaultdict(list)
    graph = flow_nodes.drawing.graph
    for p in graph.parameters:
        state, norm = state_of(p, graph), gradient_norm(p, graph)
        key = None if p.node is None else flow_nodes.drawing.key(p.node)
        path, _, name = p.name.rpartition(".")
        if key not in home:  # the parameter is drawn beside another flow node of its module
            key = paths.get(path) if path else None
        if key in home:
            found[home[key]].append(ParameterFlow(name, state, norm))
        else:
            dry[path or p.name].append(ParameterFlow(name, state, norm))
    return found, _unreached_nodes(dry)


def _unreached_nodes(parameters: Mapping[str, list[ParameterFlow]]) -> tuple[FlowNode, ...]:
    """Return nodes for the modules that have parameters but are not in the graph.

    If there are too many modules, their paths are shortened, and modules with equal shortened paths
    share a node.

    Args:
        parameters: path of a module -> its parameters.
    """
    for parts in (8, 4, 3, 2, 1):
        merged: dict[str, list[ParameterFlow]] = defaultdict(list)
        for path, some in parameters.items():
            merged[".".join(path.split(".")[:parts])] += some
        if len(merged) <= _MAX_UNREACHED:
            break
    dry = (FlowNode(name, "", None, "", tuple(some)) for name, some in merged.items())
    return tuple(dry)[:_MAX_UNREACHED]


def _cuts(flow_nodes: FlowNodes, number: Mapping[int, int]) -> Iterator[FlowCut]:
    lines, _ = cut_lines(flow_nodes.drawing, _MAX_CUTS)
    known = set()
    for line in lines:
        ends = [
            None if key is None or key not in flow_nodes.home else number[flow_nodes.home[key]]
            for key in (line.source, line.target)
        ]
        if ends[0] == ends[1] or (*ends, line.text) in known:
            continue
        known.add((*ends, line.text))
        yield FlowCut(ends[0], ends[1], line.text, line.color in ("error", "warning"))


def _gradient_of(graph: Graph, node: int, output_nr: int) -> _Gradient:
    stats = graph.nodes[node].grad_outputs
    given = stats[output_nr] if output_nr < len(stats) else None
    return _NO_GRADIENT if given is None else _Gradient(given.norm, bool(given.nonfinite))
