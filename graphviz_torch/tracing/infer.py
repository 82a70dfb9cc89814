"""Infer modules and backward's device copies for a graph that was traced without recording.

The module of a node is inferred only if the names of parameters make it certain. All parameters
that the node uses, directly or after a transpose, view or cast, have to belong to one module. And
the node has to use two parameters of this module, or to be the only user of its parameter, since
otherwise another module might use the parameter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..graph import Edge, Transfer, TransferKind
from ..internals.tensors.metadata import Outputs

# Operations whose result has the values of their operand, in another shape, order or dtype.
_CARRIERS = frozenset(("t", "transpose", "permute", "view", "expand", "unsqueeze", "to_copy"))
COPIES = frozenset(("ToCopyBackward0", "CopyBackwards"))  # nodes that may copy between devices


def infer_modules(
    edges: Iterable[Edge], operations: Sequence[str], owners: Mapping[int, set[str]]
) -> dict[int, str]:
    """Return the module path by node id, for those nodes of which the module is certain.

    Args:
        edges: all edges, in order of their targets.
        operations: name of the forward operation of each node.
        owners: paths of the modules that have each parameter, by id of the parameter's leaf.
    """
    # The leaf whose values a node has, by node id. It contains the leaves themselves.
    carried = {leaf: leaf for leaf in owners}
    users: dict[int, set[int]] = {leaf: set() for leaf in owners}  # nodes that use each leaf
    uses: dict[int, list[int]] = {}  # leaves that each node uses
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
    # If all users of a leaf are in its module, the leaf is in the module, too, and so are the nodes
    # that have the leaf's values.
    inside = {leaf for leaf in owners if {found.get(user) for user in users[leaf]} == owners[leaf]}
    for carrier, leaf in carried.items():
        if leaf in inside:
            (found[carrier],) = owners[leaf]
    return {node: path for node, path in found.items() if path}


def backward_copies(
    edges: Iterable[Edge], names: Sequence[str], outputs: Sequence[Outputs]
) -> tuple[Transfer, ...]:
    """Return the copies between devices that backward will make, in execution order.

    `x.to(device)` in forward copies the gradient back in backward, and so does `copy_`.
    """
    found = []
    for edge in edges:
        name = names[edge.target]
        # `copy_` overwrites its first input, so only the gradient of the second input is copied.
        if name == "ToCopyBackward0" or (name == "CopyBackwards" and edge.input_nr == 1):
            after = next((meta for meta in outputs[edge.target] if meta is not None), None)
            before = outputs[edge.source][edge.output_nr]
            if after is not None and before is not None and after.device != before.device:
                kind: TransferKind = "DtoD"
                if "cpu" in (after.device, before.device):
                    kind = "HtoD" if after.device == "cpu" else "DtoH"
                # A cast of the gradient runs on the CPU, so the CPU's dtype is copied.
                moved = before if kind == "HtoD" else before._replace(dtype=after.dtype)
                found.append(
                    Transfer(
                        *(kind, after.device, before.device, moved, "backward", edge.target),
                        operation="to" if name == "ToCopyBackward0" else "copy_",
                    )
                )
    return tuple(reversed(found))
