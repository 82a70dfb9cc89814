"""Infer the modules of nodes, and the copies in backward, for a graph that was not recorded.

The module of a node is inferred only if the names of parameters make it certain. All parameters
that the node uses, directly or after a transpose, view or cast, have to belong to one module. The
node also has to use two parameters of this module, or to be the only user of its parameter.
Otherwise another module might use the parameter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..graph import Edge, Transfer, TransferKind
from ..internals.tensors.metadata import Outputs

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
