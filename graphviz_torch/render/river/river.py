"""From the graph of a step to its river: places, the streams between them, parameters and dams.

The gradient of a module is the gradient that arrives at the output of that module, and not that of
an operation outside of modules which is drawn at the same place. Autograd adds up what comes from
all users of a result.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from ...graph import Finding, Graph
from ..cuts import cut_lines
from .learning import norm_of, sentence_of, state_of, states_of
from .module_places import Places, places_of, without_call
from .stream import Dam, Place, River, Stream, Tributary

_AGAIN: Final = re.compile(r"'+(?=[.#]|$)")  # of a module that an earlier backward has, too
_MOST_DAMS = 12
_MOST_DRY = 8  # places of parameters that the graph does not have


class _Flow(NamedTuple):
    """The gradient of a result; of several, the largest norm."""

    norm: float | None
    nonfinite: bool = False

    def with_(self, other: _Flow) -> _Flow:
        known = [norm for norm in (self.norm, other.norm) if norm is not None]
        return _Flow(max(known, default=None), self.nonfinite or other.nonfinite)


_NONE: Final = _Flow(None)


def river_of(graph: Graph, findings: tuple[Finding, ...]) -> River:
    """The places, streams and dams of a graph."""
    places = places_of(graph, findings)
    drawing, home = places.drawing, places.home
    order = [key for key, first in home.items() if key == first]
    tributaries, above = _tributaries(places)
    number = {key: len(above) + i for i, key in enumerate(order)}
    flows: dict[tuple[int, int], _Flow] = {}  # between two places
    results: dict[int, _Flow] = defaultdict(lambda: _NONE)  # of a place
    own: dict[int, _Flow] = defaultdict(lambda: _NONE)  # of the output of a place's module
    reached = graph.reached()
    for line in drawing.all_edges:
        source, target = home[line.source], home[line.target]
        leaves = places.leaves_module(source, line.source, line.target)
        if source != target or leaves:
            closed = drawing.contents[~line.target].nodes if line.target < 0 else (line.target,)
            dry = reached.isdisjoint(closed)  # what reads it is behind a dam
            flow = _NONE if dry else _flow_of(graph, line.edge.source, line.edge.output_nr)
            if leaves:
                own[source] = own[source].with_(flow)
            if source == target:
                continue
            flows[source, target] = flows.get((source, target), _NONE).with_(flow)
            results[source] = results[source].with_(flow)
    outputs: dict[int, list[int]] = defaultdict(list)  # nodes, by place
    for node in sorted({node for node, _ in graph.outputs}):
        key = drawing.key(node)
        place = home[key]
        outputs[place].append(node)
        flow = _flow_of(graph, node, 0)
        results[place] = results[place].with_(flow)
        if places.leaves_module(place, key, None):
            own[place] = own[place].with_(flow)
    made = [
        _place(places, key, flow.norm, tributaries.get(key, []), outputs.get(key, []))
        for key in order
        for flow in (own.get(key, results[key]),)
    ]
    streams = (Stream(number[one], number[other], *flow) for (one, other), flow in flows.items())
    states = [*states_of(graph).values()]
    frozen = states.count("frozen")
    return River(
        (*above, *made),
        tuple(sorted(streams)),
        tuple(_dams(places, number)),
        sentence_of(graph, findings),
        frozen if frozen < len(states) else 0,
        "starves" in states,
    )


def _place(
    places: Places,
    key: int,
    norm: float | None,
    tributaries: list[Tributary],
    outputs: list[int],
) -> Place:
    drawing = places.drawing
    part, module = _part(places, key), places.module(key)
    if module is not None:
        path = module.path
        name = _AGAIN.sub("", path.removeprefix(f"{part}.")) if part else path
        kind = module.module_class
    elif not outputs and key < 0:
        name, kind = drawing.title(~key), ""
    else:
        node = drawing.graph.nodes[outputs[0] if outputs else key]
        meets = len(places.sources.get(key, ())) > 1
        name = node.label or ("" if meets and not tributaries else node.title)
        kind = node.title
    return Place(name, kind, norm, part, tuple(tributaries), bool(outputs))


def _part(places: Places, key: int) -> str:
    """The title of the backward around a key, where a step has several."""
    groups = places.drawing.groups
    if groups is None or not places.drawing.graph.segments:
        return ""
    around = groups.with_ancestors(places.group(key))
    return groups.groups[around[-1]].name if around else ""


def _tributaries(places: Places) -> tuple[dict[int, list[Tributary]], tuple[Place, ...]]:
    """The parameters by place, and places for those that the graph does not have."""
    found: dict[int, list[Tributary]] = defaultdict(list)
    home = places.home
    firsts = reversed(dict.fromkeys(home.values()))
    paths = {without_call(places.path(first)): first for first in firsts}
    dry: dict[str, list[Tributary]] = defaultdict(list)
    graph = places.drawing.graph
    for p in graph.parameters:
        state, norm = state_of(p, graph), norm_of(p, graph)
        key = None if p.node is None else places.drawing.key(p.node)
        path, _, name = p.name.rpartition(".")
        if key not in home:  # beside others of its module
            key = paths.get(path) if path else None
        if key in home:
            found[home[key]].append(Tributary(name, state, norm))
        else:
            dry[path or p.name].append(Tributary(name, state, norm))
    return found, _dry(dry)


def _dry(parameters: Mapping[str, list[Tributary]]) -> tuple[Place, ...]:
    """Places for the parameters of modules, as few as a sheet has room for: by shorter paths."""
    for parts in (8, 4, 3, 2, 1):
        merged: dict[str, list[Tributary]] = defaultdict(list)
        for path, some in parameters.items():
            merged[".".join(path.split(".")[:parts])] += some
        if len(merged) <= _MOST_DRY:
            break
    dry = (Place(name, "", None, "", tuple(some)) for name, some in merged.items())
    return tuple(dry)[:_MOST_DRY]


def _dams(places: Places, number: Mapping[int, int]) -> Iterator[Dam]:
    lines, _ = cut_lines(places.drawing, _MOST_DAMS)
    known = set()
    for line in lines:
        ends = [
            None if key is None or key not in places.home else number[places.home[key]]
            for key in (line.source, line.target)
        ]
        if ends[0] == ends[1] or (*ends, line.text) in known:
            continue
        known.add((*ends, line.text))
        yield Dam(ends[0], ends[1], line.text, line.color in ("error", "warning"))


def _flow_of(graph: Graph, node: int, output_nr: int) -> _Flow:
    stats = graph.nodes[node].grad_outputs
    given = stats[output_nr] if output_nr < len(stats) else None
    return _NONE if given is None else _Flow(given.norm, bool(given.nonfinite))
