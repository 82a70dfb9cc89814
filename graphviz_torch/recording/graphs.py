"""Build the graphs of a recording from plain values, when a step or the block is over.

1. The queries read the new rows of the log. A `Backward` and the columns of all listeners and
   queries, such as one value per node, become a `Graph`.
2. The listeners see all graphs, and the queries read the rows with probes. The values that belong
   to no single node, and the rows about modules, are then set in one step.
3. Compiled regions are replaced by the operations inside them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from ..graph import Graph, ModuleRow, Node, Step
from ..graph.module_paths import cut_paths
from ..internals.frames import OTHER
from ..internals.probes import fetch
from ..tracing.regions import Region, inline_regions, without_unused_cuts
from .backward import Backward
from .listener import Listener
from .program import Program
from .program.source_lines import short_names, sources
from .recorder import Recorder
from .resolver import Resolver


def graphs_of(
    backwards: Sequence[Backward], program: Program, listeners: Sequence[Listener]
) -> list[Graph]:
    """Return a graph for each backward of a recording, in order.

    Args:
        backwards: the backwards, in the order in which they ran.
        program: the recorded program, which knows the modules and lines of nodes.
        listeners: the listeners, which add values to nodes, to modules and to the whole graph.
    """
    program.log.read()
    graphs = [graph_of(each, program, listeners) for each in backwards]
    for method in _methods(listeners, "on_graphs_built"):
        program.remarks.attempt(method, backwards, graphs)
    program.log.on_graphs_built()
    graphs = _complete_graphs(graphs, backwards, program, listeners)
    if program.options.compiled != "closed":
        for i, backward in enumerate(backwards):
            if backward.reading.regions:
                inside = _region_arguments(backward, program, listeners)
                graphs[i] = program.remarks.attempt(inline_regions, graphs[i], *inside) or graphs[i]
    return [program.remarks.attempt(cut_paths, graph) or graph for graph in graphs]


def _methods(recorders: Iterable[Recorder], name: str) -> list[Callable[..., Any]]:
    """Return the method `name` of those recorders whose class overrides it, in order."""
    default = getattr(Listener, name)
    return [getattr(one, name) for one in recorders if getattr(type(one), name) is not default]


def module_rows(program: Program, listeners: Sequence[Listener]) -> tuple[ModuleRow, ...]:
    """Return a row of recorded values for each module with a value of any recorder."""
    found: dict[str, Mapping[str, Any]] = {}
    for method in _methods((*program.log.queries, *listeners), "module_columns"):
        for name, values in (program.remarks.attempt(method) or {}).items():
            found[name] = {**found.get(name, {}), **values}
    # There may be thousands of modules, so the rows are built without a Python loop over modules.
    paths = list(dict.fromkeys(chain.from_iterable(found.values())))
    columns = [
        map(found.get(name, {}).get, paths, repeat(default))
        for name, default in ModuleRow._field_defaults.items()
    ]
    return tuple(map(tuple.__new__, repeat(ModuleRow), zip(paths, *columns, strict=False)))


def graph_of(backward: Backward, program: Program, listeners: Sequence[Listener]) -> Graph:
    """Return the graph of one backward, with the values that recorders add to its nodes."""
    read, rows = backward.reading.columns, _origins(backward, program)
    notes: dict[int, list[str]] = {}
    for method in _methods((*program.log.queries, *listeners), "node_columns"):
        for name, values in (program.remarks.attempt(method, backward) or {}).items():
            if name == "note":
                for i, note in values.items():
                    notes.setdefault(i, []).append(note)
                continue
            if name not in rows:
                rows[name] = _column(read.get(name), name, len(backward.numbers))
            column = rows[name]
            for i, value in values.items():
                column[i] = value
    # Sorted, so that the order of the recorders does not matter.
    said = {i: sorted(some) for i, some in notes.items()}
    for i, some in _output_notes(backward, program).items():
        said[i] = [*said.get(i, ()), *some]
    if said:
        rows["note"] = list(read["note"])
        for i, some in said.items():
            rows["note"][i] = _join_notes(rows["note"][i], *some)
    return backward.reading.graph(**rows)


def _join_notes(*notes: str) -> str:
    """Return the distinct notes on one node, joined by "; "."""
    return "; ".join(dict.fromkeys(filter(None, notes)))


def _complete_graphs(
    graphs: Sequence[Graph],
    backwards: Sequence[Backward],
    program: Program,
    listeners: Sequence[Listener],
) -> list[Graph]:
    """Return copies of the graphs, with added values that describe no single node.

    Examples are the copies between devices and the cuts (calls that pass no gradient).

    Args:
        graphs: the graphs, with the values of their nodes.
        backwards: the backward of each graph.
        program: the recorded program.
        listeners: the listeners, which add the values.
    """
    attempt, line = program.remarks.attempt, program.line()
    modules, inner = module_rows(program, listeners), _are_inner_steps(backwards)
    complete: list[Graph] = []
    nonfinite: int | None = None  # index of the first graph with non-finite gradients
    for i, (graph, backward) in enumerate(zip(graphs, backwards, strict=True)):
        values: dict[str, Any] = {"modules": modules} if modules else {}
        step: dict[str, Any] = {
            "loss_scale": _loss_scale(backward),
            "is_inner_step": inner[i],
            "nonfinite_since": nonfinite,
        }
        resolver = Resolver(backward, program, line)
        for method in _methods(listeners, "graph_values"):
            values |= attempt(method, graph, resolver) or {}
        for method in _methods(listeners, "step_values"):
            step |= attempt(method, resolver) or {}
        events = tuple(map(resolver.event, program.events.noted_before(i + 1)))
        complete.append(replace(graph, **values, events=events, step=Step(**step)))
        if nonfinite is None and _has_nonfinite_gradients(complete[-1]):
            nonfinite = i
    return complete


def _region_arguments(
    backward: Backward, program: Program, listeners: Sequence[Listener]
) -> tuple[Any, ...]:
    """Return the arguments with which to call `inline_regions`, except the graph.

    These are the compiled regions, a function that shortens file names, the modules' classes, and a
    function that returns a module's path.
    """
    regions: Mapping[int, Region] = backward.reading.regions
    for method in _methods(listeners, "add_to_regions"):
        regions = program.remarks.attempt(method, regions, backward) or regions
    regions = {i: without_unused_cuts(region) for i, region in regions.items()}
    origins = [one.origin for region in regions.values() for one in region.nodes]
    origins += [one.origin for region in regions.values() for one in region.cuts]
    origins += [one.origin for region in regions.values() for one in region.events]
    inside = {origin.place[0] for origin in origins if origin.place}
    known = {file for file, owner in program.stack.files.items() if owner != OTHER}
    files = short_names(known | inside)
    table = program.table
    named = lambda file: files.get(file, Path(file).name)  # noqa: E731
    return regions, named, table.classes(), table.path_of


def _origins(backward: Backward, program: Program) -> dict[str, list[Any]]:
    """Return the module, scope (module call), source line and call of each node, as columns."""
    classes = program.table.classes()
    text = sources(program.line())
    leading = program.stack.leading
    read = program.origins.columns(backward.numbers, text, classes, leading)
    rows: dict[str, list[Any]] = {**read}
    for name, i in backward.parameters.items():
        path = rows["module"][i] = rows["scope"][i] = name.rpartition(".")[0]
        rows["module_class"][i] = classes.get(path, "")
        rows["where"][i] = ""
    return rows


def _column(known: Sequence[Any] | None, name: str, length: int) -> list[Any]:
    return [Node._field_defaults[name]] * length if known is None else list(known)


def _output_notes(backward: Backward, program: Program) -> dict[int, list[str]]:
    """Return the notes to show on nodes, by node id.

    A note says why a node has no hook. The outputs also get the notes on the whole recording.
    """
    said = {i: [note] for i, note in backward.notes.items()}
    lines = program.remarks.lines
    for i in {node for node, _ in backward.reading.ends} if lines else ():
        said.setdefault(i, []).extend(lines)
    return said


def _are_inner_steps(backwards: Sequence[Backward]) -> list[bool]:
    """Return for each backward whether it is an inner step, such as one of MAML.

    An inner step is a call of autograd.grad with retain_graph whose nodes are also in the graph of
    a later backward.
    """
    later: set[int] = set()
    found = []
    for backward in reversed(backwards):
        kept = backward.call.retains and not backward.call.accumulates
        found.append(kept and not later.isdisjoint(n for n in backward.numbers if n >= 0))
        later.update(backward.numbers)
    return found[::-1]


def _has_nonfinite_gradients(graph: Graph) -> bool:
    """Return True if a parameter's gradient has NaN or Inf, unless a GradScaler skips the step."""
    leaves = [graph.nodes[p.node] for p in graph.parameters if p.node is not None]
    given = [stats for leaf in leaves for stats in leaf.grad_outputs if stats is not None]
    return graph.step.loss_scale is None and sum([s.nan + s.inf for s in given]) > 0


def _loss_scale(backward: Backward) -> float | None:
    scale = backward.call.loss_scale
    values = [] if scale is None else fetch([scale])[0]
    return values[0] if values else None
