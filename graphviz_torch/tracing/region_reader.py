"""Read the nodes inside a compiled region, given the class of the region's autograd node.

If the region was compiled during a recording, its nodes were read while Dynamo traced it. Otherwise
they are read from the FX graph of the region's backward. Each operation in this graph has the
sequence number of the autograd node to which it would belong in eager mode. Operations with the
same number form one node, and an edge connects two nodes if a gradient flows between them.

The graph of backward lacks operations whose backward computes nothing, such as additions. It also
lacks operations on which the loss does not depend, and detached operations.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any
from weakref import WeakKeyDictionary

from ..graph import Edge
from ..internals.compiled import backward_graph
from ..internals.frames import LIBRARY, OWN, code_owner
from ..internals.tensors.metadata import tensor_meta
from .regions import END, FileLine, Origin, Region, RegionNode

# Name of a Python function, or of an operation that PyTorch uses instead -> name of the operation.
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
# Operation in backward -> the forward operation to which it belongs, if the names differ.
_INVERSE = {"sum": "expand", "expand": "sum"}
_MOVES = frozenset(
    ("t", "transpose", "permute", "view", "_unsafe_view", "squeeze", "unsqueeze", "clone")
)

# (start, end, region): a region whose node has start <= sequence number < end. The class
# of this node is not known yet.
_expected: deque[tuple[int, int, Region]] = deque(maxlen=100)
_regions: WeakKeyDictionary[Any, Region] = WeakKeyDictionary()  # class of a node -> region


def set_region(kind: Any, region: Region) -> None:
    """Store the compiled region to which all autograd nodes of class `kind` belong."""
    _regions[kind] = region


def expect_region(start: int, end: int, region: Region) -> None:
    """Store a compiled region whose autograd node has start <= sequence number < end."""
    _expected.append((start, end, region))


def region_of(fn: Any) -> Region | None:
    """Return the contents of the compiled region that an autograd node runs; None if unknown."""
    kind = type(fn)
    known = _regions.get(kind)
    if known is None and (found := _expected_region(fn)) is not None:
        known = _regions[kind] = found
    if known is None:
        graph = backward_graph(kind)
        known = None if graph is None else _read_region(graph)
        if known is not None:
            _regions[kind] = known
    return known if known is not None and len(known.users) == len(fn.next_functions) else None


def _expected_region(fn: Any) -> Region | None:
    """Return the last region that `expect_region` stored for a node's number; None if none."""
    number, count = fn._sequence_nr(), len(fn.next_functions)
    for start, end, region in reversed(_expected):
        if start <= number < end and len(region.users) == count:
            return region
    return None


def _read_region(graph: Any) -> Region | None:
    """Return a compiled region's contents, read from its backward FX graph; None if impossible."""
    # Value that depends on a gradient -> sequence numbers of the nodes that computed the value.
    makers: dict[Any, frozenset[int]] = {}
    groups: dict[int, list[Any]] = {}  # sequence number of a node -> its operations in backward
    # Sequence number of a node -> gradient that it uses -> nodes that computed the gradient.
    flows: dict[int, dict[Any, frozenset[int]]] = {}
    numbered = [
        op for op in graph.nodes if "seq_nr" in op.meta and _aten_name(op) not in ("", "detach")
    ]
    # Sequence number -> forward operation, for operations that backward computes again.
    forward = {op.meta["seq_nr"]: op for op in numbered if "from_node" in op.meta}
    backward = {op.meta["seq_nr"] for op in numbered if "from_node" not in op.meta}
    for op in graph.nodes:
        number = op.meta.get("seq_nr")
        given = {source: makers[source] for source in op.all_input_nodes if source in makers}
        if op.op == "placeholder" and "tangents" in op.name:
            makers[op] = frozenset((END,))
        elif op.op != "call_function" or not given:
            continue
        elif op.meta.get("is_gradient_acc"):
            makers[op] = frozenset().union(*given.values())
        elif number is None or not _aten_name(op):
            return None
        else:
            groups.setdefault(number, []).append(op)
            makers[op] = frozenset((number,))
            taken = flows.setdefault(number, {})
            taken.update({value: by for value, by in given.items() if by != {number}})
        if (added := _addition_number(op, forward)) is not None and added not in backward:
            groups[added], flows[added] = [forward[added]], {op: makers[op]}
            makers[op] = frozenset((added,))
    try:
        order = [*TopologicalSorter(_inputs(groups, flows)).static_order()]
    except CycleError:
        return None
    ids = {number: i for i, number in enumerate(order)} | {END: END}
    edges, ends = [], []
    for number in order:
        for output_nr, by in enumerate(flows[number].values()):
            for user in sorted(ids[one] for one in by - {number}):
                if user == END:
                    ends.append(ids[number])
                else:
                    edges.append(Edge(ids[number], user, output_nr))
    nodes = tuple(_region_node(groups[n], flows[n], forward.get(n)) for n in order)
    results = graph.output_node().args[0]
    users = tuple(
        tuple(sorted(ids[maker] for maker in makers.get(result, ()))) or (END,)
        for result in results
    )
    return Region(nodes, tuple(edges), users, tuple(dict.fromkeys(ends)))


def _addition_number(gradient: Any, forward: Mapping[int, Any]) -> int | None:
    """Return the sequence number of an addition whose two operands get this gradient.

    The backward of an addition contains no operation. The addition is found only if the graph of
    backward contains its forward operation. Its sequence number is that of its later operand plus
    one. Returns None if there is no such addition.

    Args:
        gradient: the fx node of the gradient, in the graph of backward.
        forward: the forward operations in this graph, by sequence number.
    """
    users = {
        op.meta.get("seq_nr") if op.op == "call_function" else -1
        for op in gradient.users
        if not op.meta.get("is_gradient_acc")
    } - {None, gradient.meta.get("seq_nr")}
    others = sum(1 for op in gradient.users if op.meta.get("is_gradient_acc"))
    number = max(users, default=-1) + 1
    made = forward.get(number)
    if (
        number == 0
        or len(users) + others < 2
        or made is None
        or _aten_name(made) not in ("add", "add_")
    ):
        return None
    alike = made.meta["val"].shape == gradient.meta["val"].shape
    return number if alike else None


def _inputs(
    groups: Mapping[int, Any], flows: Mapping[int, Mapping[Any, frozenset[int]]]
) -> dict[int, list[int]]:
    """Return, for each node of a region, the nodes that compute its inputs.

    Both are given by sequence number.

    Args:
        groups: the backward operations of each node, by the node's sequence number.
        flows: for each node, the gradients that it uses, with the nodes that computed them.
    """
    found: dict[int, list[int]] = {number: [] for number in sorted(groups)}
    for number in sorted(groups):
        for by in flows[number].values():
            for user in by - {END}:
                found[user].append(number)
    return found


def _region_node(ops: Sequence[Any], taken: Mapping[Any, Any], forward: Any) -> RegionNode:
    first = ops[0].meta
    outputs = tuple(tensor_meta(v.meta["val"]) if "val" in v.meta else None for v in taken)
    source = first.get("fwd_source_fn_stack") or first.get("source_fn_stack") or ()
    called = re.sub(r"_\d+$", "", source[-1][0]) if source else ""
    operation = _operation(ops, "" if forward is None else _aten_name(forward), called).lstrip("_")
    name = "".join(part.capitalize() for part in operation.split("_")) + "Backward0"
    return RegionNode(name, operation, outputs, origin(first))


def origin(meta: Mapping[str, Any]) -> Origin:
    """Return the source lines and modules of an operation, from its `meta` in an fx graph."""
    place, library = _source_lines(meta.get("fwd_stack_trace") or meta.get("stack_trace") or "")
    modules = tuple((int(key), path, kind) for key, path, kind in modules_of(meta) if key.isdigit())
    return Origin(place, library, modules)


def modules_of(meta: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return (key, path, class) of the modules around an fx operation, outermost first."""
    stack = meta.get("fwd_nn_module_stack") or meta.get("nn_module_stack") or {}
    return [
        (str(key).partition("@")[0], _path(path), _class_name(kind))
        for key, (path, kind) in stack.items()
    ]


def _operation(ops: Sequence[Any], forward: str, called: str) -> str:
    """Return the name of the forward operation of a node inside a compiled region.

    Args:
        ops: the operations of the node's backward.
        forward: ATen's name of the forward operation; "" if the graph does not contain it.
        called: name of the called Python function, such as "linear". Such a function may consist of
            several operations.
    """
    names = list(dict.fromkeys(_aten_name(op) for op in ops))
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


def _aten_name(op: Any) -> str:
    """Return the ATen name of an fx node before decomposition, such as "addmm"; "" if unknown."""
    target = op.meta.get("original_aten")
    packet = getattr(target, "overloadpacket", None)
    return "" if packet is None else str(packet).rpartition(".")[2]


def _class_name(kind: Any) -> str:
    return str(kind if isinstance(kind, str) else kind.__name__).rpartition(".")[2]


def _path(source: str) -> str:
    """Return the path of a module in a compiled region, given Dynamo's name for the module."""
    path = re.sub(r"\._modules\['([^']+)'\]", r".\1", source)
    path = re.sub(r"^[A-Z]\['[^']*'\]", "", path).replace("._orig_mod", "")
    return re.sub(r"\[['\"]?([^'\"\]]+)['\"]?\]", r".\1", path).strip(".")


def _source_lines(trace: str) -> tuple[FileLine | None, FileLine | None]:
    """Return the user's innermost line in a stack trace, and the library's line that it called."""
    lines = re.findall(r'File "([^"]+)", line (\d+)', trace)
    return innermost([(file, int(line)) for file, line in lines])


def innermost(lines: Sequence[FileLine]) -> tuple[FileLine | None, FileLine | None]:
    """Return the user's innermost line, and the innermost line of a library that it called.

    Either is None if there is no such line.

    Args:
        lines: the lines of a call stack, outermost first.
    """
    library = None
    for file, line in reversed(lines):
        kind = code_owner(file)
        if kind == OWN:
            return (file, line), library
        if kind == LIBRARY and library is None:
            library = file, line
    return None, library
