"""Show the operations inside compiled regions as nodes, as in eager mode.

The region's own node is kept. It follows the inner nodes, and has the data that was recorded for
the whole region. Cuts that no node of the region uses are removed, as in the graph of the eager
program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from operator import itemgetter
from typing import Any

from ..graph import Cut, Edge, Event, Graph, Node, Operand, TensorMeta
from ..graph.events import GraphBreak
from ..graph.ids import renumber_ids
from ..graph.immutable import NamedTuple, immutable
from ..graph.nodes import INSIDE
from ..graph.text import called_at, users_line

UNKNOWN_INSIDE = (
    "its operations are unknown: it ran before the recording, or could not be traced again"
)

FileLine = tuple[str, int]  # file and line number
END = -1  # id of the region's own node, in the fields of `Region`


class Origin(NamedTuple):
    """The source lines and modules of a node inside a compiled region."""

    place: FileLine | None  # the user's line
    library: FileLine | None  # the library's line that the user's line called
    # id(), path in the region, and class of each module around the node, outermost first
    modules: tuple[tuple[int, str, str], ...]


class RegionNode(NamedTuple):
    """An autograd node that eager mode would create for an operation inside a compiled region."""

    name: str
    operation: str
    outputs: tuple[TensorMeta | None, ...]
    origin: Origin
    attributes: tuple[str, ...] = ()
    runs: bool = True  # False if no gradient reaches the node, because it is upstream of cuts only


class RegionCut(NamedTuple):
    """A cut (a call that passes no gradient, such as `detach`) inside a compiled region.

    It is stored with the region's inputs that it depends on, and the results that depend on it.
    """

    how: str
    tensor: TensorMeta
    before: int | None
    after: tuple[int, ...]
    origin: Origin
    input: int | None  # index of the region's input that is the cut's operand, if any
    inputs: tuple[int, ...] = ()  # indices of the region's inputs upstream of the cut
    results: tuple[int, ...] = ()  # indices of the region's results computed from the cut's result
    shown: bool = True  # True if the cut is shown even if no node outside uses its result
    outside: tuple[int, ...] = ()  # ids (before inlining) of nodes outside that use the result


class RegionEvent(NamedTuple):
    """An event (a fact that rules report, such as a broadcast) inside a compiled region."""

    event: Event  # the event; its line, nodes and operands are not set
    nodes: tuple[int, ...]
    operands: tuple[tuple[TensorMeta, int | None], ...]  # (metadata, node that created the operand)
    origin: Origin


@immutable(slots=False)
class Region:
    """The operations that one compiled region runs, as the nodes and edges of a small graph.

    A node's id is its index in `nodes`, in topological order.
    """

    nodes: tuple[RegionNode, ...]
    edges: tuple[Edge, ...]
    # For each input of the region, the nodes that use it; `END` is the region's own node.
    users: tuple[tuple[int, ...], ...]
    ends: tuple[int, ...]  # nodes that compute the region's results
    cuts: tuple[RegionCut, ...] = ()
    events: tuple[RegionEvent, ...] = ()
    # For each input of the region, its input_nr at each of its `users`. If None, the input_nr of
    # `edges` is unknown as well.
    input_nrs: tuple[tuple[int, ...], ...] | None = None
    from_inputs: tuple[tuple[int, ...], ...] = ()  # for each result, the inputs it depends on


def inline_regions(
    graph: Graph,
    regions: Mapping[int, Region],
    short: Callable[[str], str],
    known: Mapping[str, str],
    path: Callable[[int, str], str | None],
) -> Graph:
    """Return the graph with the inner nodes of each compiled region, before the region's node.

    Args:
        graph: the graph, in which each region is one node.
        regions: contents of regions, by id of the region's node.
        short: returns a short name for a source file.
        known: classes along the path of each module, as in `Node.module_class`.
        path: returns the path of a module, given its id() and class; None if unknown.
    """
    first = {}  # id of a region's node -> new id of its first inner node
    ids, count = [], 0
    for i in range(len(graph.nodes)):
        if i in regions:
            first[i] = count
            count += len(regions[i].nodes)
        ids.append(count)
        count += 1
    orders = _orders(graph, regions)
    nodes: list[Node] = []
    edges: list[Edge] = []
    cuts: list[Cut] = []
    events: list[Event] = []
    inputs = graph.inputs()
    for i, node in enumerate(graph.nodes):
        if i in regions:
            origins = _Origins(short, known, path, node)
            origins = replace(origins, shared=_is_shared(graph, regions[i], inputs[i], origins))
            order = orders[i]
            left = _running(regions[i])
            for inside in regions[i].nodes:
                one = _node(len(nodes), inside, origins)
                if inside.runs and order is not None:
                    one, left = one._replace(order=order + left), left - 1
                nodes.append(one)
            edges += _rewire_edges(regions[i], inputs[i], ids, first[i])
            sources = {edge.input_nr: ids[edge.source] for edge in inputs[i]}
            cuts += [_cut(each, first[i], sources, ids, origins) for each in regions[i].cuts]
            inner = [_event(each, first[i], nodes, origins) for each in regions[i].events]
            ends = [event.where for event in inner if isinstance(event, GraphBreak) and event.where]
            notes = [node.note, *(f"ends at {at}" for at in ends)]
            node = node._replace(note="\n".join(filter(None, notes)))
            events += inner
        else:
            edges += [edge._replace(source=ids[edge.source], target=ids[i]) for edge in inputs[i]]
        nodes.append(node._replace(id=len(nodes), order=orders[i]))
    found = renumber_ids(graph, ids, nodes=tuple(nodes), edges=tuple(edges))
    found = replace(found, cuts=(*found.cuts, *cuts), events=(*found.events, *events))
    return _drop_unreached_orders(found)


def _drop_unreached_orders(graph: Graph) -> Graph:
    """Clear the position in execution order of nodes that no gradient reaches.

    Outputs depend on such nodes only through calls that pass no gradient, such as `detach`.
    """
    nodes, users = list(graph.nodes), graph.users()
    outputs = {node for node, _ in graph.outputs}
    for node in graph.nodes[::-1]:
        alive = [edge for edge in users[node.id] if nodes[edge.target].order is not None]
        if not alive and node.id not in outputs:
            nodes[node.id] = node._replace(order=None)
    return replace(graph, nodes=tuple(nodes))


def _running(region: Region) -> int:
    return sum(node.runs for node in region.nodes)


def _orders(graph: Graph, regions: Mapping[int, Region]) -> list[int | None]:
    """Return each node's position in execution order, with gaps for inner nodes of regions."""
    runs = sorted(
        (node.order, _running(regions[i]))
        for i, node in enumerate(graph.nodes)
        if i in regions and node.order is not None
    )
    return [
        None if node.order is None else node.order + sum(n for o, n in runs if o < node.order)
        for node in graph.nodes
    ]


@immutable(slots=False)
class _Origins:
    """A formatter of the source lines and module paths of nodes inside a compiled region.

    Args:
        short: returns a short name for a source file.
        known: classes along the path of each module.
        path: returns the path of a module, given its id() and class.
        region: the region's own node.
        shared: True if the modules that run the region are not those for which it was compiled.
    """

    short: Callable[[str], str]
    known: Mapping[str, str]
    path: Callable[[int, str], str | None]
    region: Node
    shared: bool = False

    def relative_path(self, origin: Origin) -> str:
        """Return the path of a node's module, relative to the module in which the region runs."""
        if not origin.modules:
            return ""
        key, text, kind = origin.modules[-1]
        path = None if self.shared else self.path(key, kind)
        above = self.region.module
        if path is None or (above and path != above and not path.startswith(above + ".")):
            return text
        return path[len(above) :].lstrip(".")

    def module(self, origin: Origin) -> tuple[str, str]:
        """Return the path of a node's module, and the classes along the path."""
        module = ".".join(filter(None, (self.region.module, self.relative_path(origin))))
        return module, self.known.get(module) or "/".join(kind for _, _, kind in origin.modules)

    def source(self, origin: Origin) -> str:
        """Return a node's source line.

        If this is a line of a library, the text includes the user's line that called it.
        """
        source, library = (
            "" if place is None else f"{self.short(place[0])}:{place[1]}"
            for place in (origin.place, origin.library)
        )
        source = source or self.region.line
        return called_at(library, source) if library and source else source


def _is_shared(graph: Graph, region: Region, inputs: list[Edge], origins: _Origins) -> bool:
    """Return True if a region runs code that was compiled for other modules.

    This happens for the repeated blocks of a model, which run the code that was compiled for the
    first block. The region then takes parameters of modules other than those named in its code.

    Args:
        graph: the graph, in which the region is one node.
        region: the contents of the region.
        inputs: edges that end at the region's node.
        origins: formats the module paths in the region's code.
    """
    found = False
    for edge in inputs:
        leaf = graph.nodes[edge.source]
        for user in region.users[edge.input_nr] if leaf.leaf == "parameter" else ():
            if user != END and leaf.module == origins.module(region.nodes[user].origin)[0]:
                return False
            found = True
    return found


def _node(number: int, inside: RegionNode, origins: _Origins) -> Node:
    module, classes = origins.module(inside.origin)
    return Node(
        number,
        inside.name,
        inside.outputs,
        operation=inside.operation,
        module=module,
        scope=".".join(filter(None, (origins.region.scope, origins.relative_path(inside.origin)))),
        module_class=classes,
        where=origins.source(inside.origin),
        attributes=inside.attributes,
        note=INSIDE,
    )


def _cut(
    cut: RegionCut, first: int, sources: Mapping[int, int], ids: list[int], origins: _Origins
) -> Cut:
    before = None if cut.input is None else sources.get(cut.input)
    return Cut(
        cut.how,
        cut.tensor,
        before if cut.before is None else first + cut.before,
        (*(first + node for node in cut.after), *(ids[node] for node in cut.outside)),
        users_line(origins.source(cut.origin)),
        origins.module(cut.origin)[0],
        in_forward=True,
    )


def _event(each: RegionEvent, first: int, nodes: list[Node], origins: _Origins) -> Event:
    ids = [None if node is None else first + node for _, node in each.operands]
    operands = tuple(
        Operand("", tensor, "" if i is None else nodes[i].where, i)
        for (tensor, _), i in zip(each.operands, ids, strict=True)
    )
    where, made = users_line(origins.source(each.origin)), tuple(first + n for n in each.nodes)
    fields: dict[str, Any] = {"where": where, "nodes": made}
    if operands:
        fields["operands"] = operands
    return replace(each.event, **fields)


def _rewire_edges(region: Region, inputs: list[Edge], ids: list[int], by: int) -> list[Edge]:
    """Return the edges that end at a region's inner nodes or at the region's own node.

    Args:
        region: the contents of the region.
        inputs: edges that end at the region's node in the graph before inlining.
        ids: new id of each node of the graph.
        by: new id of the region's first inner node.
    """
    own = by + len(region.nodes)
    known = region.input_nrs
    rows = []
    for edge in inputs:
        users = region.users[edge.input_nr]
        for user, input_nr in zip(users, known[edge.input_nr] if known else users, strict=True):
            target = own if user == END else by + user
            rows.append(Edge(ids[edge.source], target, edge.output_nr, input_nr))
    rows += [
        edge._replace(source=by + edge.source, target=by + edge.target) for edge in region.edges
    ]
    rows += [Edge(by + inside, own, 0, END) for inside in region.ends]
    counts: dict[int, int] = {}
    found = []
    # The edges of a graph are sorted by target.
    for edge in sorted(rows, key=itemgetter(1, 3) if known else itemgetter(1)):
        count = counts[edge.target] = counts.get(edge.target, -1) + 1
        nr = edge.input_nr if known and edge.target != own else count
        found.append(edge._replace(input_nr=nr))
    return found


def without_unused_cuts(region: Region) -> Region:
    """Return a compiled region without unused cuts, and without nodes that only those need.

    A cut is a call that passes no gradient, such as `detach`. It is unused if nothing uses its
    result.
    """
    inputs: dict[int, list[int]] = {}
    for edge in region.edges:
        inputs.setdefault(edge.target, []).append(edge.source)
    alive = {i for i, node in enumerate(region.nodes) if node.runs}
    cuts = list[RegionCut]()
    for cut in region.cuts[::-1]:
        if cut.shown or cut.outside or not alive.isdisjoint(cut.after):
            cuts.append(cut)
            stack = [] if cut.before is None else [cut.before]
            while stack:
                if (node := stack.pop()) not in alive:
                    alive.add(node)
                    stack += inputs.get(node, ())
    if len(cuts) == len(region.cuts):
        return region
    places = {old: new for new, old in enumerate(sorted(alive))} | {END: END}
    users = [[j for j, u in enumerate(row) if u in places] for row in region.users]
    numbers = region.input_nrs
    moved = [tuple(places[node] for node in cut.after if node in places) for cut in cuts]
    return replace(
        region,
        nodes=tuple(node for i, node in enumerate(region.nodes) if i in alive),
        edges=tuple(
            edge._replace(source=places[edge.source], target=places[edge.target])
            for edge in region.edges
            if edge.source in places and edge.target in places
        ),
        users=tuple(
            tuple(places[row[j]] for j in kept) if kept or not row else (END,)
            for row, kept in zip(region.users, users, strict=True)
        ),
        ends=tuple(places[node] for node in region.ends),
        cuts=tuple(
            cut._replace(before=places.get(cut.before, None), after=after)  # type: ignore[arg-type]
            for cut, after in zip(cuts, moved, strict=True)
        )[::-1],
        events=tuple(_renumber_event(event, places) for event in region.events),
        input_nrs=numbers
        and tuple(
            tuple(row[j] for j in kept) if kept or not row else (0,)
            for row, kept in zip(numbers, users, strict=True)
        ),
    )


def _renumber_event(event: RegionEvent, places: Mapping[int, int]) -> RegionEvent:
    return event._replace(
        nodes=tuple(places[node] for node in event.nodes if node in places),
        operands=tuple((meta, None if n is None else places.get(n)) for meta, n in event.operands),
    )
