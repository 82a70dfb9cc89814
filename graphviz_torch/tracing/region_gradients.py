"""Match values in a region's backward graph with the inner nodes whose gradients they are.

Autograd numbers nodes in order of creation. AOTAutograd runs the graph that Dynamo traced once
more, so its numbers differ from Dynamo's by a constant. That constant is chosen so that most
operations belong to a node created by the same call; the remaining operations are not matched. A
value that is used but not computed by a node's operations is the node's gradient, if it has the
shape of the node's output.

An addition has no backward operation; like a clone, it passes its gradient on. Its gradient is
therefore the one of an input that nothing else uses, or the one that its user passes on. The
gradient of a custom `autograd.Function` is the value that its operations take from others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ..graph import Edge, TensorMeta
from ..internals.tensors.metadata import tensor_meta
from .regions import END, Region

# (operation, input_nr) whose operand gets the gradient unchanged if it has the shape of the result.
_GRADIENT_COPIES = {("add", 0), ("add", 1), ("sub", 0), ("clone", 0), ("expand", 0), ("alias", 0)}

GradientOutput = tuple[
    int, int
]  # position of a node in the region, and the output_nr of the gradient


def received_gradients(graph: Any, region: Region) -> dict[str, list[GradientOutput]]:
    """Return the inner nodes that receive a value, by its name in the backward graph."""
    owners = _owners(graph, region.calls)
    insides = {node.number: i for i, node in enumerate(region.nodes)}
    # Inner node (None if unknown) that computed each value that depends on a gradient.
    makers: dict[Any, int | None] = {}
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
    for node, value in _custom_function_gradients(graph, region, makers).items():
        taken.setdefault(node, [value])
    found = {}
    for node, values in taken.items():
        outputs = region.nodes[node].outputs
        for value in values:
            fits = [nr for nr, meta in enumerate(outputs) if _fits(meta, value)]
            if len(fits) == 1 and len(values) == 1:
                found[node] = value, fits[0]
    for node, value in _passed_on_gradients(graph, region, found).items():
        found[node] = value, 0
    by_value: dict[str, list[GradientOutput]] = {}
    for node, (value, output_nr) in found.items():
        by_value.setdefault(value.name, []).append((node, output_nr))
    return by_value


def call_of(meta: Mapping[str, Any]) -> str:
    """Return the name of the program's call that an operation belongs to, in Dynamo's graph."""
    stack = meta.get("fwd_source_fn_stack") or meta.get("source_fn_stack") or ()
    return stack[-1][0] if stack else ""


def _owners(graph: Any, calls: Sequence[str]) -> dict[Any, int]:
    """Return the number of the node that each backward operation belongs to."""
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


def _custom_function_gradients(
    graph: Any, region: Region, makers: Mapping[Any, int | None]
) -> dict[int, Any]:
    """Return the gradient of each custom Function: the value its operations take from others.

    If there are several custom Functions, it is the one that feeds the node which computed the
    value.
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


def _passed_on_gradients(
    graph: Any, region: Region, found: Mapping[int, tuple[Any, int]]
) -> dict[int, Any]:
    """Return the gradients of nodes that have no operation in the backward graph.

    Such a node gets the gradient that its user passes on, or has the one that it passes to an
    input.
    """
    users = Counter([*(edge.source for edge in region.edges), *region.ends])
    known = {node: value for node, (value, _) in found.items()}
    whole = [edge for edge in region.edges if _passes_on(region, edge)]
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


def _passes_on(region: Region, edge: Edge) -> bool:
    """Return True if a node passes its gradient on to this operand unchanged."""
    node, source = region.nodes[edge.target], region.nodes[edge.source]
    alpha = [each for each in node.attributes if each.startswith("alpha=") and edge.input_nr]
    return (
        (node.operation, edge.input_nr) in _GRADIENT_COPIES
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
