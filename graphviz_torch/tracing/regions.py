"""What a compiled region does inside: a node for each operation of its forward, as eager has it.

Read from the graph of its backward. There each operation says which node of autograd it belongs to,
by the number that eager's nodes have too; those of one number are one node here. Data flows between
two nodes where a gradient flows back. Not there: operations whose backward computes nothing, such
as an addition, and what the loss does not depend on.

The region's own node stays, behind those inside: it has what was recorded of the whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from operator import itemgetter
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from ..graph import Edge, Graph, Node, TensorMeta
from ..graph.ids import renumbered
from ..graph.text import called_at
from ..internals.compiled import backward_graph
from ..internals.frames import LIBRARY, OWN, owner
from ..internals.tensors.metadata import tensor_meta

INSIDE = "inside torch.compile"
CLOSED = (
    "what is inside is known only where its first backward is recorded, and it is not from a cache"
)

Place = tuple[str, int]  # file and line
_END = -1  # stands for the region's own node
# What autograd calls a function of Python's, and an operation that another stands for.
_NAMES = {
    "truediv": "div",
    "iadd": "add",
    "imul": "mul",
    "getitem": "select",
    "threshold": "relu",
    "embedding_dense": "embedding",
    "nll_loss_forward": "nll_loss",
    "nll_loss2d_forward": "nll_loss2d",
    "_native_batch_norm_legit_functional": "native_batch_norm",
}
# Operations that undo themselves or each other: by the backward's, the forward's.
_INVERSE = {"sum": "expand", "expand": "sum"}
_MOVES = frozenset(
    ("t", "transpose", "permute", "view", "_unsafe_view", "squeeze", "unsqueeze", "clone")
)


class Inside(NamedTuple):
    """A node inside a region."""

    operation: str
    outputs: tuple[TensorMeta | None, ...]
    place: Place | None  # the user's line
    library: Place | None  # the library's, where the user's called into one
    modules: tuple[tuple[int, str, str], ...]  # around it: id(), path in the region, class


@dataclass(frozen=True)
class Region:
    """What is inside one region; node ids are positions in `nodes`, inputs before users."""

    nodes: tuple[Inside, ...]
    edges: tuple[Edge, ...]
    users: tuple[tuple[int, ...], ...]  # of each input, the nodes that use it; -1 is the region's
    ends: tuple[int, ...]  # nodes that give the region's results


_regions: WeakKeyDictionary[Any, Region] = WeakKeyDictionary()  # by the class of the node


def region_of(fn: Any) -> Region | None:
    """What is inside the region of this live node; None where that is not known."""
    kind = type(fn)
    known = _regions.get(kind)
    if known is None:
        graph = backward_graph(kind)
        known = None if graph is None else _read(graph)
        if known is not None:
            _regions[kind] = known
    return known if known is not None and len(known.users) == len(fn.next_functions) else None


def _read(graph: Any) -> Region | None:
    """What is inside, from the graph of the backward."""
    makers: dict[Any, frozenset[int]] = {}  # of what depends on a gradient, which nodes gave it
    groups: dict[int, list[Any]] = {}  # operations by the number of their node
    flows: dict[int, dict[Any, frozenset[int]]] = {}  # gradients that a node takes, from whom
    numbered = [op for op in graph.nodes if "seq_nr" in op.meta and _aten(op) not in ("", "detach")]
    # Of the forward, kept or computed again.
    forward = {op.meta["seq_nr"]: op for op in numbered if "from_node" in op.meta}
    backward = {op.meta["seq_nr"] for op in numbered if "from_node" not in op.meta}
    for op in graph.nodes:
        number = op.meta.get("seq_nr")
        given = {source: makers[source] for source in op.all_input_nodes if source in makers}
        if op.op == "placeholder" and "tangents" in op.name:
            makers[op] = frozenset((_END,))
        elif op.op != "call_function" or not given:
            continue
        elif op.meta.get("is_gradient_acc"):
            makers[op] = frozenset().union(*given.values())
        elif number is None or not _aten(op):
            return None
        else:
            groups.setdefault(number, []).append(op)
            makers[op] = frozenset((number,))
            taken = flows.setdefault(number, {})
            taken.update({value: by for value, by in given.items() if by != {number}})
        if (added := _sum(op, forward)) is not None and added not in backward:
            groups[added], flows[added] = [forward[added]], {op: makers[op]}
            makers[op] = frozenset((added,))
    try:
        order = [*TopologicalSorter(_inputs(groups, flows)).static_order()]
    except CycleError:
        return None
    ids = {number: i for i, number in enumerate(order)} | {_END: _END}
    edges, ends = [], []
    for number in order:
        for output_nr, by in enumerate(flows[number].values()):
            for user in sorted(ids[one] for one in by - {number}):
                if user == _END:
                    ends.append(ids[number])
                else:
                    edges.append(Edge(ids[number], user, output_nr))
    nodes = tuple(_inside(groups[n], flows[n], forward.get(n)) for n in order)
    results = graph.output_node().args[0]
    users = tuple(
        tuple(sorted(ids[maker] for maker in makers.get(result, ()))) for result in results
    )
    return Region(nodes, tuple(edges), users, tuple(dict.fromkeys(ends)))


def _sum(gradient: Any, forward: Mapping[int, Any]) -> int | None:
    """The number of the addition whose operands both get this gradient; None where none is known.

    It computes nothing backward, so it is known where its result is kept. Autograd's number for it
    is the next after the later operand's.
    """
    users = {
        op.meta.get("seq_nr") if op.op == "call_function" else -1
        for op in gradient.users
        if not op.meta.get("is_gradient_acc")
    } - {None, gradient.meta.get("seq_nr")}
    others = sum(1 for op in gradient.users if op.meta.get("is_gradient_acc"))
    number = max(users, default=-1) + 1
    made = forward.get(number)
    if number == 0 or len(users) + others < 2 or made is None or _aten(made) not in ("add", "add_"):
        return None
    alike = made.meta["val"].shape == gradient.meta["val"].shape
    return number if alike else None


def _inputs(
    groups: Mapping[int, Any], flows: Mapping[int, Mapping[Any, frozenset[int]]]
) -> dict[int, list[int]]:
    """For each node those that it takes data from."""
    found: dict[int, list[int]] = {number: [] for number in sorted(groups)}
    for number in sorted(groups):
        for by in flows[number].values():
            for user in by - {_END}:
                found[user].append(number)
    return found


def _inside(ops: Sequence[Any], taken: Mapping[Any, Any], forward: Any) -> Inside:
    first = ops[0].meta
    place, library = _places(first.get("fwd_stack_trace") or first.get("stack_trace") or "")
    stack = first.get("fwd_nn_module_stack") or first.get("nn_module_stack") or {}
    modules = tuple(
        (int(str(key).partition("@")[0]), _path(path), _class_name(kind))
        for key, (path, kind) in stack.items()
        if str(key).partition("@")[0].isdigit()
    )
    outputs = tuple(tensor_meta(v.meta["val"]) if "val" in v.meta else None for v in taken)
    source = first.get("fwd_source_fn_stack") or first.get("source_fn_stack") or ()
    called = re.sub(r"_\d+$", "", source[-1][0]) if source else ""
    operation = _operation(ops, "" if forward is None else _aten(forward), called).lstrip("_")
    return Inside(operation, outputs, place, library, modules)


def _operation(ops: Sequence[Any], forward: str, called: str) -> str:
    """What the forward did.

    Args:
        ops: the operations of its backward.
        forward: of its forward, where that is in the graph too.
        called: what Python called: "linear", which may be several operations.
    """
    names = list(dict.fromkeys(_aten(op) for op in ops))
    for name in names:
        if match := re.fullmatch(r"(\w+?)_backward(_data)?", name):
            return _NAMES.get(match[1], match[1])
    if forward:
        return _NAMES.get(forward, forward)
    if "mm" in names:
        return "addmm" if "sum" in names else "mm"
    if "bmm" in names:
        return "bmm"
    if len(names) == 1 and (names[0] in _MOVES or not called):
        return _INVERSE.get(names[0], names[0])
    return _NAMES.get(called, called) or names[0]


def _aten(op: Any) -> str:
    """The operation that the program's became, before it was taken apart: "addmm"."""
    target = op.meta.get("original_aten")
    packet = getattr(target, "overloadpacket", None)
    return "" if packet is None else str(packet).rpartition(".")[2]


def _class_name(kind: Any) -> str:
    return str(kind if isinstance(kind, str) else kind.__name__).rpartition(".")[2]


def _path(source: str) -> str:
    """The path of a module in the region, from the way by which dynamo found it."""
    path = re.sub(r"\._modules\['([^']+)'\]", r".\1", source)
    path = re.sub(r"^[A-Z]\['[^']*'\]", "", path).replace("._orig_mod", "")
    return re.sub(r"\[['\"]?([^'\"\]]+)['\"]?\]", r".\1", path).strip(".")


def _places(trace: str) -> tuple[Place | None, Place | None]:
    """The user's line in the text of a stack, and a library's that it led to."""
    library = None
    for file, line in reversed(re.findall(r'File "([^"]+)", line (\d+)', trace)):
        kind = owner(file)
        if kind == OWN:
            return (file, int(line)), library
        if kind == LIBRARY and library is None:
            library = file, int(line)
    return None, library


def opened(
    graph: Graph,
    regions: Mapping[int, Region],
    short: Callable[[str], str],
    known: Mapping[str, str],
) -> Graph:
    """The graph with the nodes inside its regions, each before the region's own.

    Args:
        graph: as autograd has it.
        regions: by the id of the region's node.
        short: what a file is called.
        known: classes along the path of each module, as `Node.module_class` has them.
    """
    if not regions:
        return graph
    first = {}  # the id of the first node inside
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
    inputs = graph.inputs()
    for i, node in enumerate(graph.nodes):
        if i in regions:
            for k, inside in enumerate(regions[i].nodes, 1):
                one = _node(len(nodes), inside, node, short, known)
                began = orders[i]
                order = None if began is None else began + 1 + len(regions[i].nodes) - k
                nodes.append(one._replace(order=order))
            edges += _rewired(regions[i], inputs[i], ids, first[i])
        else:
            edges += [edge._replace(source=ids[edge.source], target=ids[i]) for edge in inputs[i]]
        nodes.append(node._replace(id=len(nodes), order=orders[i]))
    return renumbered(graph, ids, nodes=tuple(nodes), edges=tuple(edges))


def _orders(graph: Graph, regions: Mapping[int, Region]) -> list[int | None]:
    """When each node ran, if a region's run after its own: those of the gradients first."""
    runs = sorted(
        (node.order, len(regions[i].nodes))
        for i, node in enumerate(graph.nodes)
        if i in regions and node.order is not None
    )
    return [
        None if node.order is None else node.order + sum(n for o, n in runs if o < node.order)
        for node in graph.nodes
    ]


def _node(
    number: int, inside: Inside, region: Node, short: Callable[[str], str], known: Mapping[str, str]
) -> Node:
    path = inside.modules[-1][1] if inside.modules else ""
    module = ".".join(filter(None, (region.module, path)))
    source, library = (
        "" if place is None else f"{short(place[0])}:{place[1]}"
        for place in (inside.place, inside.library)
    )
    return Node(
        number,
        "".join(part.capitalize() for part in inside.operation.split("_")) + "Backward0",
        inside.outputs,
        operation=inside.operation,
        module=module,
        scope=".".join(filter(None, (region.scope, path))),
        module_class=known.get(module) or "/".join(kind for _, _, kind in inside.modules),
        source=called_at(library, source) if library else source,
        note=INSIDE,
    )


def _rewired(region: Region, inputs: list[Edge], ids: list[int], by: int) -> list[Edge]:
    """The edges into the region, which lead to the nodes inside, those inside, and to its own."""
    own = by + len(region.nodes)
    rows = [
        (ids[edge.source], own if user == _END else by + user, edge.output_nr)
        for edge in inputs
        for user in region.users[edge.input_nr] or (_END,)
    ]
    rows += [(by + edge.source, by + edge.target, edge.output_nr) for edge in region.edges]
    rows += [(by + inside, own, 0) for inside in region.ends]
    counts: dict[int, int] = {}
    found = []
    for source, target, output_nr in sorted(rows, key=itemgetter(1)):  # as autograd's: by target
        input_nr = counts[target] = counts.get(target, -1) + 1
        found.append(Edge(source, target, output_nr, input_nr))
    return found
