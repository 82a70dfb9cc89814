"""What a drawing writes inside the operation that uses it, in place of a node of its own.

These are leaves, and carriers: operations that only hand one such leaf on, as the `t` of a linear
module's weight does. A carrier that a reader must see stays a node: one that was named, that has
several users, or that copies to another device.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from ...graph import Edge, Graph, Node
from ..groups.groups import by_target

Parameters = Literal["fold", "nodes"]

# More leaves than this are written inside the operation that uses them: as nodes of their own they
# would stand in a staircase of which nobody can read the steps.
_MOST_LEAVES = 20
# A leaf with more users than this is written inside each, and its own node stands alone: with all
# these edges it would pull the whole drawing out of shape.
_MOST_USERS = 8
# Forwards that hand on all elements of their one input, and nothing else.
_CARRYING = {
    *("alias", "clone", "expand", "permute", "reshape_alias", "squeeze", "t", "to_copy"),
    *("transpose", "unsafe_view", "unsqueeze", "view"),
}


@dataclass(slots=True)
class Inner:
    """What is written inside, and where."""

    folded: set[int]  # leaves and carriers that have no node of their own
    edges: list[Edge]  # all others
    inside: dict[int, list[Edge]] = field(default_factory=dict)  # user -> edges from folded nodes
    carried: dict[int, int] = field(default_factory=dict)  # carrier -> the folded node it hands on
    user: dict[int, int] = field(default_factory=dict)  # folded node -> its first user
    many: dict[int, int] = field(default_factory=dict)  # leaf -> number of its users, where many

    def host(self, node: int) -> int:
        """The node in which a folded node is written first; any other node itself."""
        while node in self.folded:
            node = self.user[node]
        return node

    def chain(self, node: int) -> list[int]:
        """The folded nodes behind one, from itself to the leaf."""
        found = [node]
        while found[-1] in self.carried:
            found.append(self.carried[found[-1]])
        return found


def written_inside(graph: Graph, parameters: Parameters | None, scoped: bool) -> Inner:
    """What of a graph is written inside its users.

    Args:
        parameters: "fold", "nodes", or None to decide by their number and by `scoped`.
        scoped: whether modules were recorded.
    """
    nodes = graph.nodes
    leaves = [node for node in nodes if node.leaf]
    uses = Counter(edge.source for edge in graph.edges)
    folded = set() if parameters == "nodes" else _leaves(leaves, uses, parameters, scoped)
    folded.difference_update([node for node, _ in graph.outputs])
    many = {leaf.id: uses[leaf.id] for leaf in leaves if uses[leaf.id] > _MOST_USERS}
    if not folded and not many:
        return Inner(folded, list(graph.edges))
    found = Inner(folded, [], many=many)
    inside, rest, user = found.inside, found.edges, found.user
    inner = folded.union(many)
    fed = Counter(edge.target for edge in graph.edges)
    for edge in by_target(graph):  # so the edge into a carrier comes before the one out of it
        source, target = edge.source, edge.target
        if source not in inner:
            rest.append(edge)
            continue
        if source not in user:
            user[source] = target
        if (
            nodes[target][4] in _CARRYING
            and fed[target] == uses[target] == 1
            and source in folded
            and _only_carries(graph, target, nodes[source].device)
        ):
            folded.add(target)
            inner.add(target)
            found.carried[target] = source
        elif target in inside:
            inside[target].append(edge)
        else:
            inside[target] = [edge]
    return found


def _leaves(
    leaves: list[Node],
    uses: Counter[int],
    parameters: Parameters | None,
    scoped: bool,
) -> set[int]:
    kinds = Counter(leaf.leaf for leaf in leaves)
    all_parameters = (
        parameters == "fold" or scoped or kinds["parameter"] + kinds["buffer"] > _MOST_LEAVES
    )
    all_tensors = kinds["tensor"] > _MOST_LEAVES
    return {
        leaf.id
        for leaf in leaves
        if (times := uses[leaf.id])
        and (all_tensors if leaf.leaf == "tensor" else all_parameters or times > _MOST_USERS)
    }


def _only_carries(graph: Graph, carrier: int, device: str) -> bool:
    """Is there nothing that a reader must see, and is the result still on `device`?"""
    _, _, outputs, label, _, _, _, _, _, note, *_ = node = graph.nodes[carrier]
    seen = label or note or len(outputs) > 1 or (carrier, 0) in graph.outputs
    return not seen and node.device == device
