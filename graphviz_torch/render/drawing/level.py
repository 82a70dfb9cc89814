"""Which level of a graph to draw: as many groups open as fit a page, the interesting ones first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

from ...graph import Finding, Graph
from ..groups.groups import Groups, group
from .columns import Columns, columns
from .inline import Parameters, written_inside
from .opening import Interest, Opener
from .shorten import untangle
from .visible import Visible, collapsed

# How many things a drawing may show: the first of these that fits a page.
LIMITS: Final = (250, 180, 130, 100, 75, 55, 40, 30, 20, 12, 6)
# With more nodes than this it draws blocks that are alike once.
_MANY = 100
_LEVEL = 100  # things directly in a group, at most
_SMALL_LEVEL = 25  # the same where a level of the usual size does not fit a page


def level(
    graph: Graph,
    *,
    parameters: Parameters | None = None,
    depth: int | None = None,
    module: str | None = None,
    fold: bool | None = None,
    limit: int | None = None,
    findings: Iterable[Finding] = (),
    page: bool = True,
) -> tuple[Visible, Columns]:
    """What to draw of a graph, and in which columns; the options are those of `to_dot`.

    Args:
        findings: groups that hold their nodes are opened first.
        page: lay what is drawn out in columns, and draw no more than fits a page unless an option
            asks for more.

    Raises:
        ValueError: for a module that the graph does not have.
    """
    scoped = any(node.scope for node in graph.nodes)
    inner = written_inside(graph, parameters, scoped)
    count = len(graph.nodes) - len(inner.folded)
    asked = depth is not None or limit is not None or fold is False or not page
    most = LIMITS[0] if limit is None else limit
    if fold is None:
        fold = count > min(most, _MANY) or depth is not None
    closing = fold or count > most or depth is not None
    if not (scoped or closing or module):
        nodes = [i for i in range(len(graph.nodes)) if i not in inner.folded]
        drawn = Visible(nodes, inner.edges, inner)
        untangle(drawn)
        found = columns(graph, drawn, page)
        if asked or found.fits:
            return drawn, found
        closing = True
    sizes = [_LEVEL] if asked else [_LEVEL, _SMALL_LEVEL]
    interest = _interest(graph, findings) if closing or not asked else {}
    for size in sizes:
        tree = group(graph, limit=size if closing else max(4, len(graph.nodes)))
        start = None if module is None else _find(tree, module)
        for budget in (most,) if asked else LIMITS:
            opener = Opener(tree, inner.folded, fold, interest)
            opener.open(start, depth, budget if depth is None else None)
            drawn = collapsed(graph, opener, inner)
            untangle(drawn)
            found = columns(graph, drawn, page)
            if asked or found.fits:
                return drawn, found
    return drawn, found


def _interest(graph: Graph, findings: Iterable[Finding]) -> dict[int, Interest]:
    named = Counter(node for finding in findings for node in finding.nodes)
    moved = Counter(transfer.node for transfer in graph.transfers)
    return {
        node.id: (named[node.id], moved[node.id], node.saved_bytes)
        for node in graph.nodes
        if node.id in named or node.id in moved or node.saved
    }


def _find(tree: Groups, module: str) -> int:
    paths = {part.path: part.id for part in reversed(tree.groups)}
    if module not in paths:
        near = get_close_matches(module, paths, 3) or list(paths)[:3]
        known = f"It has {', '.join(map(repr, near))}, …" if paths else "It has no modules."
        raise ValueError(f"module={module!r} is not in the graph. {known}")
    return paths[module]
