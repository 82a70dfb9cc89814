"""Limit the length and depth of module paths.

A program may have a module name of 10,000 characters, or a module 150 levels deep. Nested boxes of
a drawing cannot show these. Such paths are shortened in recordings, and a file with such a path is
refused.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from .text import printable

Graph = TypeVar("Graph", bound=Any)  # the class cannot be imported: its module imports this one

_MAX_LEVELS, _MAX_CHARACTERS = 100, 4096
# Lengths to which names are shortened, tried in this order. A path of 100 levels with 39 characters
# each fits the limit.
_NAME_SIZES = 1000, 200, 39
_ELLIPSIS = "…"
CUT_NOTE = (
    f"not recorded: the whole of module paths of more than {_MAX_LEVELS} levels or "
    f"{_MAX_CHARACTERS:,} characters"
)


def check_paths(graph: Any) -> None:
    """Raise ValueError for a module path that is too deep or too long for a drawing."""
    if len({row.path for row in graph.modules}) < len(graph.modules):
        raise ValueError("graph.modules has two rows for the same module.")
    for path in _paths(graph):
        if _is_long(path):
            raise ValueError(
                f"graph has a module path of {path.count('.') + 1:,} levels and {len(path):,} "
                f"characters ({printable(path[:30])}...); at most {_MAX_LEVELS} levels and "
                f"{_MAX_CHARACTERS:,} characters are read."
            )


def cut_paths(graph: Graph) -> Graph:
    """Return the graph, in which module paths that are too long have an ellipsis.

    If any path is shortened, `Node.note` of the outputs says so.
    """
    written = _recorded_paths(graph) | {parameter.name for parameter in graph.parameters}
    # Fast path: a path of `_MAX_LEVELS` levels would have at least this many characters.
    if max(map(len, written), default=0) < _MAX_LEVELS:
        return graph
    short = _shorten_paths(_paths(graph))
    if not short:
        return graph

    def name(label: str) -> str:
        module, _, own = label.rpartition(".")
        return f"{short[module]}.{own}" if module in short else label

    ends = {node for node, _ in graph.outputs}
    nodes = [
        node._replace(
            module=short.get(node.module, node.module),
            scope=short.get(node.scope, node.scope),
            label=name(node.label),
            note="; ".join(filter(None, (node.note, CUT_NOTE * (node.id in ends)))),
        )
        for node in graph.nodes
    ]
    rows = [row._replace(path=short.get(row.path, row.path)) for row in graph.modules]
    return replace(
        graph,
        nodes=tuple(nodes),
        modules=tuple({row.path: row for row in reversed(rows)}.values())[::-1],
        transfers=tuple(replace(t, module=short.get(t.module, t.module)) for t in graph.transfers),
        cuts=tuple(replace(cut, module=short.get(cut.module, cut.module)) for cut in graph.cuts),
        collectives=tuple(
            replace(each, module=short.get(each.module, each.module)) for each in graph.collectives
        ),
        untracked=tuple(
            replace(each, module=short.get(each.module, each.module)) for each in graph.untracked
        ),
        parameters=tuple(replace(each, name=name(each.name)) for each in graph.parameters),
    )


def _paths(graph: Any) -> set[str]:
    owners = {parameter.name.rpartition(".")[0] for parameter in graph.parameters}
    return _recorded_paths(graph) | owners


def _recorded_paths(graph: Any) -> set[str]:
    paths = {node.module for node in graph.nodes} | {node.scope for node in graph.nodes}
    paths |= {transfer.module for transfer in graph.transfers} | {cut.module for cut in graph.cuts}
    paths |= {collective.module for collective in graph.collectives}
    paths |= {each.module for each in graph.untracked}
    return paths | {row.path for row in graph.modules}


def _is_long(path: str) -> bool:
    return len(path) > _MAX_CHARACTERS or path.count(".") >= _MAX_LEVELS


def _shorten_paths(paths: set[str]) -> dict[str, str]:
    """Return path -> shortened path, for the paths that change; {} if no path is too long.

    Equal names are shortened equally, so that modules stay nested. Levels beyond the limit are
    merged into one.
    """
    if not any(map(_is_long, paths)):
        return {}
    short: dict[str, str] = {}
    for size in _NAME_SIZES:
        short = {path: ".".join(_names(path, size)) for path in paths}
        if not any(map(_is_long, short.values())):
            break
    return {path: cut for path, cut in short.items() if cut != path}


def _names(path: str, size: int) -> list[str]:
    """Split a path into its names, each shortened to at most `size` characters."""
    names = path.split(".")
    if len(names) > _MAX_LEVELS:
        names = [*names[: _MAX_LEVELS - 1], _ELLIPSIS]
    half = size // 2
    return [n if len(n) <= size else f"{n[: size - half - 1]}{_ELLIPSIS}{n[-half:]}" for n in names]
