"""Read names, shapes and attributes of live autograd nodes, and build a `Graph` from them.

Attributes of PyTorch's nodes are read correctly even if a custom Function has attributes with the
same names.

For a graph that was not recorded, the modules of nodes and the copies in backward are inferred.
The module of a node is inferred only if the names of parameters make it certain. All parameters
that the node uses, directly or after a transpose, view or cast, have to belong to one module. The
node also has to use two parameters of this module, or to be the only user of its parameter.
Otherwise another module might use the parameter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import repeat
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor

from ..graph import Edge, Graph, LeafKind, Node, Transfer, TransferKind
from ..graph.gc import with_gc_disabled
from ..graph.immutable import immutable
from ..graph.nodes import REGION
from ..internals.compiled import is_region
from ..internals.functions import TensorBase
from ..internals.hooks.modes import unseen_calls
from ..internals.tensors.metadata import (
    Outputs,
    accumulator,
    all_outputs,
    attributes,
    defined_outputs,
    is_custom,
)
from .names import BufferName, ParameterName
from .region_reader import region_of
from .regions import UNKNOWN_INSIDE, Region

# A live node. PyTorch's node classes in C++ and Python have no common public base class.
GradFn = Any
Ids = dict[GradFn, int]  # live node -> node id, in order of ids
GradientEdge = tuple[GradFn, int]  # a live node and the index of its output

_new: Any = tuple.__new__  # creates a Node without a Python-level call
_ACCUMULATE = "AccumulateGrad"
_FIELDS = frozenset(Node._fields)


@lru_cache(maxsize=4096)
def operation(name: str) -> str:
    """Return the name of the forward operation of an autograd node: "addmm" for "AddmmBackward0".

    For a leaf it is "".
    """
    if name == _ACCUMULATE:
        return ""
    stem = re.sub(r"Backward\d*$", "", name)
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z0-9])(?=[A-Z][a-z])", "_", stem).lower()


def _kind(kind: type) -> tuple[str, str, str]:
    """Return the name, operation and note that all autograd nodes of class `kind` share."""
    name = kind.__name__
    if not is_custom(kind):
        return name, operation(name), ""
    forward: Any = kind._forward_cls  # type: ignore[attr-defined]
    if forward is torch.utils.checkpoint.CheckpointFunction:
        return name, "checkpoint", "checkpoint: backward runs this part's forward again"
    if is_region(kind):
        return name, "compiled", REGION
    return name, name.removesuffix("Backward"), ""


def _name_cpp(fns: list[GradFn], names: list[str], operations: list[str]) -> None:
    """Replace the names and operations of nodes whose Python class is the generic "CppFunction"."""
    for i, name in enumerate(names):
        if name == "CppFunction":
            names[i] = str(type(fns[i]).name(fns[i])).rpartition("::")[2].rstrip(">")
            operations[i] = operation(names[i])


@immutable
class NodeData:
    """Data read from autograd nodes, without references to these nodes."""

    columns: dict[str, Sequence[Any]]  # field of `Node` -> one value per node
    edges: tuple[Edge, ...]
    ends: tuple[tuple[int, int], ...]  # (node id, output_nr) of each output
    leaves: dict[int, int]  # id() of a leaf -> id of its node
    owners: dict[int, set[str]]  # node id of a parameter -> paths of the modules that have it
    regions: dict[int, Region]  # id of a compiled region's node -> contents of the region

    def graph(self, **columns: Iterable[Any]) -> Graph:
        """Return the graph, with additional or replaced columns.

        Raises:
            ValueError: if a column is not a field of Node, or has not one value per node.
        """
        names, outputs = self.columns["name"], self.columns["outputs"]
        count = len(names)
        known = {**self.columns, **columns}
        defaults = Node._field_defaults
        if unknown := known.keys() - _FIELDS:
            raise ValueError(f"{min(unknown)!r} is not a field of Node.")
        rows = (known[k] if k in known else repeat(defaults[k], count) for k in Node._fields)
        nodes = tuple(map(_new, repeat(Node), zip(*rows, strict=True)))
        copies = not COPIES.isdisjoint(names)
        transfers = backward_copies(self.edges, names, outputs) if copies else ()
        return Graph(nodes, self.edges, self.ends, transfers)

    def modules(self) -> list[str]:
        """Return the module path of each node; "" if the names of parameters do not show it."""
        found = [""] * len(self.columns["id"])
        if self.owners:
            operations = self.columns["operation"]
            for i, path in infer_modules(self.edges, operations, self.owners).items():
                found[i] = path
        return found


@with_gc_disabled
def read_nodes(
    ids: Ids,
    edges: tuple[Edge, ...],
    ends: list[tuple[GradFn, int]],
    named: Iterable[tuple[str, Tensor]],
) -> NodeData:
    """Read autograd nodes, and return their data.

    Args:
        ids, edges: the two values that `collect_nodes` returned.
        ends: node and output_nr of each output.
        named: (name, tensor) pairs. The first name of a tensor is used.
    """
    # Hides the reads from function modes and tensor subclasses.
    with unseen_calls():
        fns = list(ids)
        roots = tuple((ids[fn], output_nr) for fn, output_nr in ends)
        types = list(map(type, fns))
        kinds = {kind: _kind(kind) for kind in set(types)}
        names, operations, notes = (
            list(map({kind: row[k] for kind, row in kinds.items()}.__getitem__, types))
            for k in range(3)
        )
        if "CppFunction" in names:
            _name_cpp(fns, names, operations)
        variables = {i: fns[i].variable for i, name in enumerate(names) if name == _ACCUMULATE}
        outputs = _outputs(fns, edges, roots)
        leaves = dict(zip(map(id, variables.values()), variables, strict=True))
        labels, owners, kept = _labels(ids, leaves, named)
        kept_attributes = attributes(fns)
        if "convolution" in operations:
            for source, target, output_nr, input_nr in edges:
                if input_nr == 1 and operations[target] == "convolution":
                    weight = outputs[source][output_nr]
                    if weight is not None:
                        kept_attributes[target] += _kernel_size(weight.shape)
        leaf = [""] * len(fns)
        for i, variable in variables.items():
            plain = type(variable) is torch.nn.Parameter  # the common case
            leaf[i] = "buffer" if i in kept else "parameter" if plain else _leaf_kind(variable)
        owners = {i: paths for i, paths in owners.items() if leaf[i] == "parameter"}
        compiled = [i for i, note in enumerate(notes) if note == REGION]
        regions = {i: inside for i in compiled if (inside := region_of(fns[i])) is not None}
        for i in compiled:
            notes[i] = REGION if i in regions else f"{REGION}: {UNKNOWN_INSIDE}"
    columns = {
        "id": range(len(fns)),
        "name": names,
        "outputs": outputs,
        "label": labels,
        "operation": operations,
        "leaf": leaf,
        "note": notes,
        "attributes": kept_attributes,
    }
    return NodeData(columns, edges, roots, leaves, owners, regions)


@lru_cache(maxsize=256)
def _kernel_size(weight: tuple[int, ...]) -> tuple[str, ...]:
    """Return the kernel_size attribute of a convolution, from the shape of its weight."""
    return (f"kernel_size={weight[2:]}",)


def _outputs(
    fns: list[GradFn], edges: tuple[Edge, ...], roots: tuple[tuple[int, int], ...]
) -> list[Outputs]:
    """Return shape, dtype and device of each node's outputs; None for undefined outputs.

    Args:
        fns: the live nodes.
        edges: all edges of the graph.
        roots: (node id, output_nr) of each output of the graph.
    """
    outputs, doubtful = all_outputs(fns)
    if doubtful:
        used = {i: {nr for node, nr in roots if node == i} for i in doubtful}
        for source, _, output_nr, _ in edges:
            if source in used:
                used[source].add(output_nr)
        for i in doubtful:
            outputs[i] = defined_outputs(fns[i], outputs[i], used[i])
    return outputs


def _labels(
    ids: Ids,
    leaves: dict[int, int],
    named: Iterable[tuple[str, Tensor]],
) -> tuple[list[str], dict[int, set[str]], set[int]]:
    """Label the nodes, and find out which leaves are parameters and buffers.

    The first name of an output is used. The label of a node with several named outputs contains all
    of their names.

    Args:
        ids: ids of the nodes.
        leaves: ids of the leaves' nodes, by id() of the leaf.
        named: (name, tensor) pairs.

    Returns:
        The label of each node; for each leaf that is a parameter or buffer the paths of the modules
        that have it; and the leaves that are buffers.
    """
    labels = [""] * len(ids)
    several: dict[int, dict[int, str]] = {}  # node id -> output_nr -> name
    owners: dict[int, set[str]] = {}
    buffers: set[int] = set()
    for name, tensor in named:
        i = leaves.get(id(tensor))
        if i is not None:
            labels[i] = labels[i] or str(name)
            if isinstance(name, ParameterName):
                owners.setdefault(i, set()).add(name.rpartition(".")[0])
                if isinstance(name, BufferName):
                    buffers.add(i)
        elif tensor.requires_grad and not is_stale(tensor) and tensor.grad_fn in ids:
            i = ids[tensor.grad_fn]
            several.setdefault(i, {}).setdefault(tensor.output_nr, str(name))
    for i, by_output in several.items():
        labels[i] = ", ".join(by_output[nr] for nr in sorted(by_output))
    return labels, owners, buffers


def is_stale(tensor: Tensor) -> bool:
    """Return True if reading the tensor's `grad_fn` may create a node.

    PyTorch creates one for a view that is read after an in-place change of its base.
    """
    try:
        return TensorBase._is_view(tensor) and tensor._version > 0
    except Exception:  # a tensor subclass may raise any exception
        return True


def _leaf_kind(variable: Tensor) -> LeafKind:
    if isinstance(variable, torch.nn.Parameter):
        return "parameter"
    return "buffer" if isinstance(variable, torch.nn.Buffer) else "tensor"


def is_alive(fn: GradFn) -> bool:
    """Return True if an autograd node still exists.

    Up to PyTorch 2.12, the Python object of a custom Function's node may outlive the node.
    """
    try:
        return fn.next_functions is not None
    except (AttributeError, RuntimeError):  # the node was freed
        return False


def grad_fn_of(tensor: Tensor) -> Any:
    """Return the autograd node that created a tensor, or a leaf's own node; None without one.

    Tensors that require no gradient and tensors inside a compiled region have no node.
    """
    with unseen_calls():
        fn = tensor.grad_fn
        if fn is None and type(tensor) is Tensor and not tensor.requires_grad:
            return None
    return accumulator(tensor) if fn is None else fn


def sources_of(fn: GradFn) -> list[GradFn]:
    """Return the nodes to which the node `fn` passes gradients in backward."""
    return [source for source, _ in fn.next_functions if source is not None]


def gradient_edges_of(output: Any) -> list[GradientEdge]:
    """Return [(node, output_nr)] of a tensor or a gradient edge, or [] if it has no node."""
    if isinstance(output, Tensor):
        fn = grad_fn_of(output)
        with unseen_calls():
            return [] if fn is None else [(fn, output.output_nr)]
    return [(output.node, output.output_nr)]


# Operations that change only the shape, the order or the dtype of their operand's values.
_CARRIERS = frozenset(("t", "transpose", "permute", "view", "expand", "unsqueeze", "to_copy"))
COPIES = frozenset(("ToCopyBackward0", "CopyBackwards"))  # nodes that may copy between devices


def infer_modules(
    edges: Iterable[Edge], operations: Sequence[str], owners: Mapping[int, set[str]]
) -> dict[int, str]:
    """Return module paths by node id, for the nodes whose module is certain.

    Args:
        edges: all edges, in order of their targets.
        operations: name of the forward operation of each node.
        owners: id of the leaf of each parameter -> paths of the modules that have the parameter.
    """
    # Node that has the values of a leaf -> the leaf. The leaves themselves are included.
    carried = {leaf: leaf for leaf in owners}
    users: dict[int, set[int]] = {leaf: set() for leaf in owners}  # leaf -> nodes that use it
    uses: dict[int, list[int]] = {}  # node -> leaves that it uses
    for source, target, _, _ in edges:
        leaf = carried.get(source)
        if leaf is None:
            continue
        if operations[target] in _CARRIERS:
            carried[target] = leaf
        else:
            users[leaf].add(target)
            uses.setdefault(target, []).append(leaf)
    found = {}
    for node, leaves in uses.items():
        paths = owners[leaves[0]]
        if len(paths) != 1 or any(owners[leaf] != paths for leaf in leaves):
            continue
        if len(set(leaves)) > 1 or len(users[leaves[0]]) == 1:
            (found[node],) = paths
    # If all users of a leaf are in the module that has the parameter, then so are the leaf and the
    # nodes that have the leaf's values.
    inside = {leaf for leaf in owners if {found.get(user) for user in users[leaf]} == owners[leaf]}
    for carrier, leaf in carried.items():
        if leaf in inside:
            (found[carrier],) = owners[leaf]
    return {node: path for node, path in found.items() if path}


def backward_copies(
    edges: Iterable[Edge], names: Sequence[str], outputs: Sequence[Outputs]
) -> tuple[Transfer, ...]:
    """Return the copies between devices that backward will make, in execution order.

    If forward copied a tensor by `x.to(device)` or `copy_`, backward copies the gradient back.

    Args:
        edges: all edges, in order of their targets.
        names: name of each node, such as "ToCopyBackward0".
        outputs: metadata of each node's outputs.
    """
    found = []
    for edge in edges:
        name = names[edge.target]
        # `copy_` overwrites its first input, so backward copies only the second input's gradient.
        if name == "ToCopyBackward0" or (name == "CopyBackwards" and edge.input_nr == 1):
            after = next((meta for meta in outputs[edge.target] if meta is not None), None)
            before = outputs[edge.source][edge.output_nr]
            if after is not None and before is not None and after.device != before.device:
                kind: TransferKind = "DtoD"
                if "cpu" in (after.device, before.device):
                    kind = "HtoD" if after.device == "cpu" else "DtoH"
                # Casts run on the CPU, so the gradient is copied in the dtype that it has on the
                # other device.
                moved = before if kind == "HtoD" else before._replace(dtype=after.dtype)
                found.append(
                    Transfer(
                        *(kind, after.device, before.device, moved, "backward", edge.target),
                        operation="to" if name == "ToCopyBackward0" else "copy_",
                    )
                )
    return tuple(reversed(found))
