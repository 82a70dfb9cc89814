"""Drawing step: group all nodes by module, loop and repeated block."""

from __future__ import annotations

from difflib import get_close_matches

from ...graph.gc import with_gc_disabled
from ...graph.terminal import option
from ..groups.call_titles import titles_by_input
from ..groups.groups import Groups, ModuleTree
from .drawing import Drawing


@with_gc_disabled
def group_nodes(drawing: Drawing) -> Drawing:
    """Group the nodes, with at most `drawing.size` children per group; return the new drawing.

    If `drawing.size` is None, return the drawing unchanged.

    Raises:
        ValueError: if the graph does not have the requested module.
    """
    if drawing.size is None:
        return drawing
    options = drawing.options
    loops = not drawing.draws_each and options["depth"] is None
    modules = drawing.modules or ModuleTree(drawing.graph, loops=loops)
    tree = modules.split(drawing.size, drawing.rows)
    module = options["module"]
    start = None if module is None else _find(tree, module)
    call_titles = titles_by_input(drawing.graph, tree)
    return drawing.having(modules=modules, groups=tree, start=start, call_titles=call_titles)


def _find(tree: Groups, module: str) -> int:
    paths = {part.path: part.id for part in reversed(tree.groups)}
    if module not in paths:
        near = get_close_matches(module, paths, 3) or list(paths)[:3]
        known = (
            f"The graph has {', '.join(map(repr, near))}, …"
            if paths
            else "The graph has no modules."
        )
        raise ValueError(f"{option('module', module)} is not in the graph. {known}")
    return paths[module]
