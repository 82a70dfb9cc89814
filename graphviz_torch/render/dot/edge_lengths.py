"""Compute minimum lengths of edges, so that consecutive modules are in one column.

If parameters are drawn as nodes, a module begins with operations on its parameters, such as the
transpose of a weight. These are several ranks above the operation that uses the result. Clusters
cannot overlap, so Graphviz would place the module beside the previous module. A longer edge into
the module makes space above the module instead.
"""

from __future__ import annotations

from ..drawing.drawing import Drawing


def min_lengths(drawing: Drawing) -> dict[tuple[int, int], int]:
    """Return (source, target) -> minimum number of ranks, for edges that need more than one."""
    if drawing.groups is None or drawing.inner.inside:
        # If parameters are written inside operations, few modules begin with operations on
        # parameters.
        return {}
    home = drawing.tree.homes
    inputs: dict[int, list[int]] = {}
    for source, target in drawing.ends:
        inputs.setdefault(target, []).append(source)
    # Node that depends only on nodes of its own module -> number of ranks from the first of these.
    own: dict[int, int] = {}
    for i in drawing.nodes:
        around = home.get(i)
        before = inputs.get(i, [])
        if around is not None and all(s in own and home.get(s) == around for s in before):
            own[i] = 1 + max((own[s] for s in before), default=0)
    found = {}
    for target, sources in inputs.items():
        around = home.get(target)
        room = max((own[s] for s in sources if s in own and home.get(s) == around), default=0)
        if room:
            found.update(
                {(source, target): room + 1 for source in sources if home.get(source) != around}
            )
    return found
