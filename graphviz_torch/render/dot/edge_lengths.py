"""Lengths of edges that keep modules which follow each other near one column.

A module whose parameters are nodes starts on its own: it transposes its weight. That stands ranks
above the operation that uses it, beside whatever comes before the module; and as clusters cannot
overlap, the module would move aside, and the next one further still. A longer edge into the module
makes room.
"""

from __future__ import annotations

from ..drawing.drawing import Drawing


def lengths(drawing: Drawing) -> dict[tuple[int, int], int]:
    """How many ranks an edge should span at least, by source and target, where more than one."""
    if drawing.groups is None or drawing.inner.inside:
        return {}  # where parameters are written inside, hardly a module starts on its own
    home = drawing.tree.homes
    inputs: dict[int, list[int]] = {}
    for source, target in drawing.ends:
        inputs.setdefault(target, []).append(source)
    own: dict[int, int] = {}  # ranks of a branch that starts in the module, up to and with a node
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
