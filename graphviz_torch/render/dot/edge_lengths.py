"""Minimum lengths of edges that keep consecutive modules in one column.

A module with parameters as nodes begins with operations on these, such as the transpose of its
weight, several ranks above the operation that uses them. Clusters cannot overlap, so the module
would move aside of the previous one, and the next one further. A longer edge into the module makes
space above it.
"""

from __future__ import annotations

from ..drawing.drawing import Drawing


def min_lengths(drawing: Drawing) -> dict[tuple[int, int], int]:
    """Return (source, target) -> minimum number of ranks, for edges that need more than one."""
    if drawing.groups is None or drawing.inner.inside:
        return {}  # parameters are written inside, so few modules begin with operations on them
    home = drawing.tree.homes
    inputs: dict[int, list[int]] = {}
    for source, target in drawing.ends:
        inputs.setdefault(target, []).append(source)
    own: dict[
        int, int
    ] = {}  # node of a branch that starts in its module -> ranks of the branch up to it
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
