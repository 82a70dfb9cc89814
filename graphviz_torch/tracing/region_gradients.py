"""Which values of a region's backward graph are the gradients that the nodes inside receive.

Autograd numbers the nodes of the program in the order in which they are made. AOTAutograd runs what
dynamo traced once more, so its numbers and dynamo's differ by one constant: the one for which most
operations stand at a node of their own call. Those that do not are nobody's. A value that a node
takes, and did not make, is its gradient, if it has the shape of the node's result.

An addition has no operation: it hands its gradient on, as a clone does. So it receives what a node
before it does whose result nobody else uses, or what the node behind it hands on. A custom
`autograd.Function` receives what its operations take from others'.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ..graph import Edge, TensorMeta
from ..internals.tensors.metadata import tensor_meta
from .regions import END, Region

# Operations, and which of their operands gets the gradient as it is where shapes are the same.
_WHOLE = {("add", 0), ("add", 1), ("sub", 0), ("clone", 0), ("expand", 0), ("alias", 0)}

Taken = tuple[int, int]  # a node inside, and which of its outputs the gradient is of


def received(graph: Any, region: Region) -> dict[str, list[Taken]]:
    """The nodes inside that receive a value, by its name in the graph of the region's backward."""
    owners = _owners(graph, region.calls)
    insides = {node.number: i for i, node in enumerate(region.nodes)}
    makers: dict[Any, int | None] = {}  # of what depends on a gradient: the node inside, if known
    taken: dict[int, list[Any]] = {}
    for op in graph.nodes:
        given = [source for source in op.all_input_nodes if source in makers]
        if op.op == "placeholder" and "tangents" in op.name:
            makers[op] = END
        elif op.op == "call_function" and given:
            owner = insides.get(owners.get(op, -1))
            makers[op] = owner
            if owner is None:
                continue
            for source in given:
                if makers[source] != owner and source not in taken.setdefault(owner, []):
                    taken[owner].append(source)
    for node, value in _of_functions(graph, region, makers).items():
        taken.setdefault(node, [value])
    found = {}
    for node, values in taken.items():
        outputs = region.nodes[node].outputs
        for value in values:
            fits = [nr for nr, meta in enumerate(outputs) if _fits(meta, value)]
            if len(fits) == 1 and len(values) == 1:
                found[node] = value, fits[0]
    for node, value in _handed_on(graph, region, found).items():
        found[node] = value, 0
    by_value: dict[str, list[Taken]] = {}
    for node, (value, output_nr) in found.items():
        by_value.setdefault(value.name, []).append((node, output_nr))
    return by_value


def call_of(meta: Mapping[str, Any]) -> str:
    """The name of the call of the program's that an operation belongs to, in dynamo's graph."""
    stack = meta.get("fwd_source_fn_stack") or meta.get("source_fn_stack") or ()
    return stack[-1][0] if stack else ""


def _owners(graph: Any, calls: Sequence[str]) -> dict[Any, int]:
    """The number of the program's node that each operation of the backward belongs to."""
    places: dict[str, list[int]] = {}
    for number, call in enumerate(calls):
        places.setdefault(call, []).append(number)
    named = {
        op: (op.meta["seq_nr"], call_of(op.meta))
        for op in graph.nodes
        if op.op == "call_function" and "seq_nr" in op.meta and "from_node" not in op.meta
    }
    apart = Counter(
        place - number for number, call in set(named.values()) for place in places.get(call, ())
    )
    if not apart:
        return {}
    [(by, _)] = apart.most_common(1)
    return {
        op: number + by
        for op, (number, call) in named.items()
        if 0 <= number + by < len(calls) and calls[number + by] == call != ""
    }


def _of_functions(graph: Any, region: Region, makers: Mapping[Any, int | None]) -> dict[int, Any]:
    """What custom Functions receive: the value that their operations take from others'.

    Where there are several, it is the one whose result the maker of the value has used.
    """
    own = {i for i, node in enumerate(region.nodes) if node.custom}
    inside = {op for op in makers if "autograd.function" in str(op.meta.get("source_fn_stack"))}
    found: dict[int, set[Any]] = {}
    for op in graph.nodes if own else ():
        for source in op.all_input_nodes if op in inside else ():
            if source in makers and source not in inside:
                before = {e.source for e in region.edges if e.target == makers[source]}
                before = set(region.ends) if makers[source] == END else before
                nodes = own if len(own) == 1 else before & own
                for node in nodes if len(nodes) == 1 else ():
                    found.setdefault(node, set()).add(source)
    return {node: min(values) for node, values in found.items() if len(values) == 1}


def _handed_on(graph: Any, region: Region, found: Mapping[int, tuple[Any, int]]) -> dict[int, Any]:
    """What those receive that have no operation in the backward.

    The node behind hands on what it receives, or the node itself does so to the one before it.
    """
    users = Counter([*(edge.source for edge in region.edges), *region.ends])
    known = {node: value for node, (value, _) in found.items()}
    whole = [edge for edge in region.edges if _hands_on(region, edge)]
    for edge in whole:  # inputs before users
        if edge.source in known and users[edge.source] == 1:
            known.setdefault(edge.target, known[edge.source])
    given = [op for op in graph.find_nodes(op="placeholder") if "tangents" in op.name]
    for node in region.ends if len(given) == len(region.ends) == 1 else ():
        if users[node] == 1 and _fits(region.nodes[node].outputs[0], given[0]):
            known.setdefault(node, given[0])
    for edge in reversed(whole):
        if edge.target in known and users[edge.source] == 1:
            known.setdefault(edge.source, known[edge.target])
    single = {i for i, node in enumerate(region.nodes) if len(node.outputs) == 1}
    return {i: value for i, value in known.items() if i in single and i not in found}


def _hands_on(region: Region, edge: Edge) -> bool:
    """Does a node give this operand the gradient that it receives, as it is."""
    node, source = region.nodes[edge.target], region.nodes[edge.source]
    alpha = [each for each in node.attributes if each.startswith("alpha=") and edge.input_nr]
    return (
        (node.operation, edge.input_nr) in _WHOLE
        and set(alpha) <= {"alpha=1"}
        and source.outputs == node.outputs
    )


def _fits(meta: TensorMeta | None, value: Any) -> bool:
    if meta is None or "val" not in value.meta:
        return False
    shape = tensor_meta(value.meta["val"]).shape
    return len(meta.shape) == len(shape) and all(
        a == b or a < 0 or b < 0 for a, b in zip(meta.shape, shape, strict=True)
    )
