"""From what was recorded to the graphs: plain values in, plain values out.

Backward ─► columns of the listeners ─► Graph ─► completed by each listener ─► cross_reference
            rows by module, the same in every graph of the recording ─┘
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, repeat
from typing import Any

from ..graph import Graph, ModuleRow, Node, Step
from ..internals.hooks.dispatch import unseen
from ..internals.hooks.modes import unseen_operators
from .backward import Backward
from .listener import Listener
from .program import Program
from .source_lines import sources


def graphs_of(
    backwards: Sequence[Backward], program: Program, listeners: Sequence[Listener]
) -> list[Graph]:
    """A graph for each backward of a recording, in order.

    Args:
        backwards: in order.
        program: names modules and lines.
        listeners: give columns of nodes, rows by module, and what there is beside these.
    """
    for listener in listeners:
        program.attempt(listener.conclude, backwards)
    rows = module_rows(program, listeners)
    graphs = [graph_of(each, program, listeners) for each in backwards]
    return cross_reference([replace(graph, modules=rows) for graph in graphs] if rows else graphs)


def module_rows(program: Program, listeners: Sequence[Listener]) -> tuple[ModuleRow, ...]:
    """A row for each module of which a listener gives a value."""
    found: dict[str, Mapping[str, Any]] = {}
    for listener in listeners:
        for name, values in (program.attempt(listener.rows) or {}).items():
            found[name] = {**found.get(name, {}), **values}
    # Without a line of Python for each module: there are many.
    paths = list(dict.fromkeys(chain.from_iterable(found.values())))
    columns = [
        map(found.get(name, {}).get, paths, repeat(default))
        for name, default in ModuleRow._field_defaults.items()
    ]
    return tuple(map(tuple.__new__, repeat(ModuleRow), zip(paths, *columns, strict=False)))


def graph_of(backward: Backward, program: Program, listeners: Sequence[Listener]) -> Graph:
    """The graph of one backward, with all that the listeners give."""
    read, rows = backward.reading.columns, _origins(backward, program)
    for listener in listeners:
        for name, values in (program.attempt(listener.columns, backward) or {}).items():
            if name not in rows:
                rows[name] = _column(read.get(name), name, len(backward.numbers))
            column = rows[name]
            for i, value in values.items():
                column[i] = value
    if notes := _notes(backward, program):
        column = rows.setdefault("note", list(read["note"]))
        for i, note in notes.items():
            column[i] = column[i] or note
    graph = backward.reading.graph(**rows)
    graph = replace(graph, step=Step(loss_scale=_loss_scale(backward)))
    for listener in listeners:
        graph = program.attempt(listener.complete, graph, backward) or graph
    return graph


def _origins(backward: Backward, program: Program) -> dict[str, list[Any]]:
    """The columns of modules and lines."""
    classes = program.table.classes()
    text = sources(program.line())
    rows: dict[str, list[Any]] = {**program.origins.columns(backward.numbers, text, classes)}
    for name, i in backward.parameters.items():
        path = rows["module"][i] = rows["scope"][i] = name.rpartition(".")[0]
        rows["module_class"][i], rows["source"][i] = classes.get(path, ""), ""
    return rows


def _column(known: Sequence[Any] | None, name: str, length: int) -> list[Any]:
    return [Node._field_defaults[name]] * length if known is None else list(known)


def _notes(backward: Backward, program: Program) -> dict[int, str]:
    """What was said of nodes, and of the outputs what could not be read."""
    notes = dict(backward.notes)
    for i in {node for node, _ in backward.reading.ends} if program.missed else ():
        said = notes.get(i) or backward.reading.columns["note"][i]
        notes[i] = "; ".join(filter(None, (said, *program.missed)))
    return notes


def cross_reference(graphs: list[Graph]) -> list[Graph]:
    """The graphs of a recording, each with what is known from the others."""
    noted = (stats for g in graphs for node in g.nodes for stats in node.grad_outputs)
    # Of gradients="finite" no finite one is noted: what ran is known to have got one, no more.
    known = any(stats is not None and not stats.nonfinite for stats in noted)
    got = {
        p.name
        for graph in graphs
        for p in graph.parameters
        if p.node is not None and _got_one(graph.nodes[p.node], known)
    }
    first = next((i for i, graph in enumerate(graphs) if _spoils(graph)), len(graphs))
    return [
        replace(
            g,
            parameters=tuple(
                replace(p, got_gradient=p.name in got)
                if p.got_gradient is None and (known or p.name in got)
                else p
                for p in g.parameters
            ),
            step=replace(g.step, nonfinite_since=first if first < i else None),
        )
        for i, g in enumerate(graphs)
    ]


def _got_one(leaf: Node, known: bool) -> bool:
    return any(leaf.grad_outputs) if known else leaf.order is not None


def _spoils(graph: Graph) -> bool:
    """Is a parameter's gradient NaN or Inf, for an optimizer to make the parameter that too."""
    # A scaler sees to it that none does.
    given = (graph.nodes[p.node].grad_outputs for p in graph.parameters if p.node is not None)
    found = any(stats is not None and stats.nonfinite for row in given for stats in row)
    return found and graph.step.loss_scale is None


def _loss_scale(backward: Backward) -> float | None:
    scale = backward.call.loss_scale
    if scale is not None:
        with unseen(), unseen_operators(), suppress(RuntimeError):  # a device may have failed
            return float(scale)
    return None
