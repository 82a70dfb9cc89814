"""What a traced graph tells without a recording: some nodes' modules, and backward's copies.

A module is inferred only where it is certain from the parameters' names: every parameter that the
node uses, itself or transposed, viewed or cast, belongs to one module, and no other node could
have borrowed it: the node uses two parameters of the module, or is the only one that uses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from .graph import Edge, Transfer, TransferKind
from .metadata import Outputs

# Nodes that hand a parameter on: shape, order or dtype change, the values stay.
_CARRIERS = frozenset(("t", "transpose", "permute", "view", "expand", "unsqueeze", "to_copy"))
COPIES = frozenset(("ToCopyBackward0", "CopyBackwards"))  # nodes that may copy between devices


def infer_modules(
    edges: Iterable[Edge], operations: Sequence[str], owners: Mapping[int, set[str]]
) -> dict[int, str]:
    """The module of each node for which it is certain, by node id.

    Args:
        edges: all edges, in the order of their targets.
        operations: the forward's name of each node.
        owners: for each parameter's leaf, the paths of the modules that have it.
    """
    carried: dict[int, int] = {leaf: leaf for leaf in owners}  # what carries a leaf, that leaf
    uses: dict[int, set[int]] = {}  # the leaves that a node uses
    users: dict[int, set[int]] = {leaf: set() for leaf in owners}
    for source, target, _, _ in edges:
        if source in carried:
            leaf = carried[source]
            if operations[target] in _CARRIERS:
                carried[target] = leaf
            else:
                uses.setdefault(target, set()).add(leaf)
                users[leaf].add(target)
    found = {}
    for node, leaves in uses.items():
        paths = set.union(*(owners[leaf] for leaf in leaves))
        if len(paths) == 1 and (len(leaves) > 1 or users[min(leaves)] == {node}):
            found[node] = min(paths)
    for carrier, leaf in carried.items():
        # A leaf and its carriers are in the module if all that use the leaf are.
        paths = owners[leaf]
        if len(paths) == 1 and users[leaf] and all(found.get(u) in paths for u in users[leaf]):
            found[carrier] = min(paths)
    return {node: path for node, path in found.items() if path}


def backward_copies(
    edges: Iterable[Edge], names: Sequence[str], outputs: Sequence[Outputs]
) -> tuple[Transfer, ...]:
    """The copies between devices that backward will make, in the order in which it will.

    `x.to(device)` in forward copies the gradient back in backward, and so does `copy_`.
    """
    found = []
    for edge in edges:
        name = names[edge.target]
        # The gradient of copy_'s first input, which it overwrites, is not copied.
        if name == "ToCopyBackward0" or (name == "CopyBackwards" and edge.input_nr == 1):
            after = next((meta for meta in outputs[edge.target] if meta is not None), None)
            before = outputs[edge.source][edge.output_nr]
            if after is not None and before is not None and after.device != before.device:
                kind: TransferKind = "DtoD"
                if "cpu" in (after.device, before.device):
                    kind = "HtoD" if after.device == "cpu" else "DtoH"
                found.append(
                    Transfer(
                        *(kind, after.device, before.device, before, "backward", edge.target),
                        operation="to" if name == "ToCopyBackward0" else "copy_",
                    )
                )
    return tuple(reversed(found))
