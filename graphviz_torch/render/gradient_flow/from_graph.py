"""Build the flow diagram of a graph: nodes, links, parameters that learn or do not, and cuts.

A node is a module, at a level of modules that fits the picture. An operation outside of modules
belongs to the previous node if the operation uses results of only this node. If the operation uses
results of several nodes, it is a node itself, at which links meet.

The gradient of a node is the gradient of its module's output, even if the node also represents
operations after the module. Autograd sums the gradients from all users of a result.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from ...graph import Finding, Graph, Parameter
from ...graph.immutable import NamedTuple
from ...graph.text import listing
from ...graph.units import count_text
from ..cuts import cut_lines
from ..drawing.drawing import Drawing
from ..drawing.steps import draw
from ..drawing.values import Open
from ..groups.groups import Group
from ..labels import program_name
from .diagram import FlowCut, FlowDiagram, FlowLink, FlowNode, ParameterFlow, State

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


_READABLE_COUNTS: Final = range(8, 67)  # numbers of nodes that are easy to read
MAX_NODES: Final = 110  # maximum number of nodes if no level has a readable count
_DEPTHS = (6, 5, 4, 3, 2, 1)
_CALL = re.compile(r"#\d+")  # call number of a module that is called several times


class FlowNodes:
    """The elements of a drawing, grouped into the nodes of a flow diagram.

    Each flow node is identified by the key of its first element.
    """

    def __init__(self, drawing: Drawing) -> None:
        self.drawing = drawing
        groups = drawing.groups.groups if drawing.groups else ()
        self._outer = {group.parent for group in groups if group.kind == "module"}
        self._modules: dict[int | None, Group | None] = {}  # group -> innermost module around it
        self.sources: dict[int, dict[int, None]] = defaultdict(dict)  # key -> keys of its sources
        for source, target in drawing.ends:
            self.sources[target][source] = None
        self.home = self._homes()

    def __len__(self) -> int:
        return len(set(self.home.values()))

    @property
    def max_nesting(self) -> int:
        """Depth of the deepest open group. Groups of backward passes are not counted."""
        groups, parts = self.drawing.groups, self.drawing.tree.parts
        if groups is None:
            return 0
        opened = (part.group for part, _, _ in parts if isinstance(part, Open))
        return max(len(groups.with_ancestors(number)) for number in opened) - bool(
            self.drawing.graph.segments
        )

    def _homes(self) -> dict[int, int]:
        drawing, sources = self.drawing, self.sources
        outputs = {drawing.key(node) for node, _ in drawing.graph.outputs}
        home: dict[int, int] = {}
        first: dict[int, int] = {}  # module -> the flow node of all operations inside
        for key in _topological_order(drawing, sources):
            before = {home[source] for source in sources[key] if source in home}
            module = self.module(key)
            joins = len(before) == 1 and key not in outputs and not _leaf(drawing, key)
            if joins and (not module or self.module(next(iter(before))) == module):
                home[key] = next(iter(before))
            elif module and key not in outputs and not _leaf(drawing, key):
                home[key] = first.get(module.id, key)
            else:
                home[key] = key
            if module:
                first.setdefault(module.id, home[key])
        return home

    def join_calls(self) -> None:
        """Merge all calls of a module into one node; outside of modules, merge equal operations."""
        first: dict[str, int] = {}
        moved: dict[int, int] = {}
        for key in dict.fromkeys(self.home.values()):
            name = strip_call_number(self.path(key)) or f" {self._kind(key)}"
            moved[key] = first.setdefault(name, key)
        self.home = {key: moved[place] for key, place in self.home.items()}

    def _kind(self, key: int) -> str:
        """Return a key for merging elements outside of modules: those with equal keys are merged.

        The key is the operation of a node, or the key of a group as text.
        """
        return self.drawing.graph.nodes[key].title if key >= 0 else str(key)

    def module(self, key: int) -> Group | None:
        """Return the module of an element; None outside of modules."""
        groups = self.drawing.groups
        if groups is None:
            return None
        number = self.group(key)
        if number not in self._modules:
            around = (groups.groups[each] for each in groups.with_ancestors(number))
            inner = next((g for g in around if g.kind in ("module", "graph")), None)
            self._modules[number] = inner if inner and inner.kind == "module" else None
        found = self._modules[number]
        # An operation directly in a module that has submodules counts as outside of modules.
        return None if found and key >= 0 and found.id in self._outer else found

    def leaves_module(self, place: int, source: int, target: int | None) -> bool:
        """Return True if a result of a flow node's module is used outside of the module.

        Args:
            place: the flow node.
            source: key of the element in the flow node that computed the result.
            target: key of the element that uses the result; None for an output of the graph.
        """
        path = strip_call_number(self.path(place))
        if not path or strip_call_number(self.path(source)) != path:
            return False
        return target is None or strip_call_number(self.path(target)) != path

    def path(self, key: int) -> str:
        """Return the path of an element's module; "" outside of modules."""
        module = self.module(key)
        return module.path if module else ""

    def group(self, key: int) -> int | None:
        """Return the id of a closed group, or of the open group that contains a node."""
        return ~key if key < 0 else self.drawing.tree.homes.get(key)


def strip_call_number(path: str) -> str:
    """Remove the call numbers from the path of a module."""
    return _CALL.sub("", path)


def flow_nodes_of(graph: Graph, findings: tuple[Finding, ...]) -> FlowNodes:
    """Return the flow nodes of a graph: its modules, at the deepest level that fits a picture.

    If no level fits, as in a loop of many steps, all calls of a module become one node.
    """
    tried: list[FlowNodes] = []
    for depth in _DEPTHS:
        if tried and depth >= tried[-1].max_nesting:
            continue  # this depth opens the same groups as the previous one
        tried.append(_at_depth(graph, findings, depth))
        if len(tried[-1]) in _READABLE_COUNTS:
            return tried[-1]
    if tried[-1].max_nesting:
        outer = _at_depth(graph, findings, 0)  # only the outermost modules are nodes
        if len(outer) in _READABLE_COUNTS:
            return outer
    fitting = (each for each in tried if len(each) <= MAX_NODES)
    found = next(fitting, None)
    if found is not None:
        return found
    for each in tried:
        each.join_calls()
        if len(each) <= MAX_NODES:
            break
    return each


def _at_depth(graph: Graph, findings: tuple[Finding, ...], depth: int) -> FlowNodes:
    options = {"depth": depth, "fold": False, "parameters": "fold", "findings": findings}
    return FlowNodes(draw(graph, options))  # type: ignore[arg-type]


def _topological_order(drawing: Drawing, sources: Mapping[int, Mapping[int, None]]) -> list[int]:
    """Return the keys in topological order, except where closed groups form a cycle."""
    keys = sorted([*drawing.nodes, *(~n for n in drawing.boxes)], key=drawing.place)
    done: dict[int, None] = {}
    for key in keys:
        stack = [key]
        opened: set[int] = set()
        while stack:
            top = stack[-1]
            rest = [s for s in sources.get(top, ()) if s not in done and s not in opened]
            if top in opened or not rest:
                stack.pop()
                done[top] = None
            opened.add(top)
            stack += sorted(rest, key=drawing.place, reverse=True) if top not in done else []
    return list(done)


def _leaf(drawing: Drawing, key: int) -> bool:
    return key >= 0 and bool(drawing.graph.nodes[key].leaf)
