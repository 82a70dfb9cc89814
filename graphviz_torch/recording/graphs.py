"""From what was recorded to the graphs: plain values in, plain values out.

Backward ─► graph_of_backward ─► Graph ─► with what the recording's other graphs tell of it
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ..graph import Cut, Graph, Node, Parameter, RetainedGraphs, Step, Transfer
from ..internals.hooks.dispatch import unseen
from ..internals.hooks.modes import unseen_operators
from ..internals.hooks.optimizers import optimized_parameters
from ..internals.tensors.metadata import tensor_meta
from .backward import Backward
from .events.code import called, codes
from .events.events import Events
from .failures.cause import explained
from .failures.operands import Failed
from .program import Program
from .source_lines import Place, sources
from .transfers.transfers import CopyRecord

Line = Callable[[Place | None], str]


def graphs_of(
    backwards: Sequence[Backward],
    program: Program,
    copies: Sequence[CopyRecord],
    unmatched: Sequence[Transfer],
    updated: set[int] | None,
    failed: Failed | None,
    events: Events,
) -> list[Graph]:
    """A graph for each backward of a recording, in order.

    Args:
        backwards: in order.
        program: names modules and lines, and knows the parameters.
        copies: all copies between devices.
        unmatched: copies that only the profiler saw.
        updated: id() of the parameters that an optimizer updated; None if none stepped.
        failed: the exception that ended the recording, during or after the last backward.
        events: what the program did that no node shows.
    """
    line = program.line()
    source = program.source_in(line)
    optimized = _optimized(program, updated)
    reached = {key for backward in backwards for key in backward.reached}
    graphs = []
    for backward in backwards:
        graph = graph_of_backward(backward, program, line)
        failure = None
        if failed is not None and backward is backwards[-1]:
            failure = failed.value(source, line)
            if failed.error == backward.error:
                failure = explained(failure, backward, backwards[: backward.position], program)
        elif backward.error is not None:  # the program caught it
            failure = Failed(backward.error, "backward", backward.place).value(source, line)
            failure = explained(failure, backward, backwards[: backward.position], program)
        graphs.append(
            replace(
                graph,
                transfers=(*_transfers(graph, backward, copies, line), *unmatched),
                parameters=_parameters(backward, reached, program, updated, optimized),
                failure=failure,
                events=events.until(
                    backward.position + 1,
                    backward.node,
                    backward.reading.leaves.get,
                    line,
                    source,
                ),
            )
        )
    return cross_reference(graphs)


def graph_of_backward(backward: Backward, program: Program, line: Line) -> Graph:
    """The graph with all that is known of its nodes, its cuts, and the scale of its loss."""
    columns = backward.reading.columns
    length = len(backward.numbers)
    classes = program.table.classes()
    made = program.origins.columns(backward.numbers, sources(line), classes)
    for name, i in backward.parameters.items():
        path = made["module"][i] = made["scope"][i] = name.rpartition(".")[0]
        made["module_class"][i], made["source"][i] = classes.get(path, ""), ""
    rows: dict[str, list[Any]] = dict(made)
    rows["attributes"] = program.arguments.column(backward.numbers, columns["attributes"])
    if backward.notes or program.missed:
        rows["note"] = notes = list(columns["note"])
        for i, note in backward.notes.items():
            notes[i] = notes[i] or note
        for i in {node for node, _ in backward.reading.ends} if program.missed else ():
            notes[i] = "; ".join(filter(None, (notes[i], *program.missed)))
    rows["saved"] = _column(backward.saved, length, ())
    gradients = backward.gradients
    if gradients is not None:
        order = {node: k for k, node in enumerate(gradients.order)}
        rows["grad_outputs"] = _column(gradients.statistics(columns["outputs"]), length, ())
        rows["order"] = _column(order, length, None)
        rows["seconds"] = _column(gradients.seconds(), length, None)
    cuts = [
        Cut(
            cut.name,
            cut.tensor,
            before,
            tuple(dict.fromkeys(backward.made(cut.after))),
            line(cut.place),
            cut.module,
            label,
            cut.in_forward,
        )
        for cut, label, before in backward.cuts
    ]
    return replace(
        backward.reading.graph(**rows),
        cuts=tuple(cuts),
        step=Step(
            loss_scale=_loss_scale(backward),
            retained=_retained(backward, program, line),
            stale_gradients=line(backward.uncleared),
        ),
    )


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
    if backward.loss_scale is not None:
        with (
            unseen(),
            unseen_operators(),
            suppress(RuntimeError),
        ):  # a device that has failed tells no value
            return float(backward.loss_scale)
    return None


def _retained(backward: Backward, program: Program, line: Line) -> RetainedGraphs | None:
    if backward.retention is None:
        return None
    steps, number, label, inside = backward.retention
    if number is None:
        return RetainedGraphs(steps, label)
    node = backward.node(number) if inside else None
    added = called(codes(program), "append", label) if label and not inside else None
    return RetainedGraphs(steps, label, program.source(number), node, line(added))


def _transfers(
    graph: Graph, backward: Backward, copies: Sequence[CopyRecord], line: Line
) -> list[Transfer]:
    found = [copy.transfer(backward.node_of(copy), line(copy.place)) for copy in copies]
    # Of the copies that trace reads from the graph alone, those that backward did not run.
    ahead = [
        copy
        for copy in graph.transfers
        if copy.node is None or graph.nodes[copy.node].order is None
    ]
    return found + ahead


def _optimized(program: Program, updated: set[int] | None) -> set[int] | None:
    """id() of what any optimizer holds; None where that need not be known."""
    if updated is None or all(id(tensor) in updated for _, tensor in program.table.listed()):
        return None
    return optimized_parameters()


def _parameters(
    backward: Backward,
    reached: set[int],
    program: Program,
    updated: set[int] | None,
    optimized: set[int] | None,
) -> tuple[Parameter, ...]:
    columns = backward.reading.columns
    # What a compiled region calls inside is not known.
    unseen = None if any("compile" in note for note in set(columns["note"])) else False
    called = program.table.was_called
    outputs = columns["outputs"]
    listed = program.table.listed()
    if not listed:  # no module was called: what should learn is not known, but what cannot is
        named = ((key, node, columns["label"][node]) for key, node in backward.cut_off.items())
        return tuple(
            Parameter(label, meta, True, node, got_gradient=key in reached)
            for key, node, label in named
            if label and (meta := outputs[node][0]) is not None
        )
    weights = {} if backward.weights is None else backward.weights.fetch()
    found = []
    for name, tensor in listed:
        node = backward.parameters.get(name)
        meta = None if node is None else outputs[node][0]
        known = None if node is None else weights.get(node)
        found.append(
            Parameter(
                name,
                meta or tensor_meta(tensor),
                tensor.requires_grad,
                node,
                node is not None or called(name) or unseen,
                tensor.grad is not None,
                None if updated is None else id(tensor) in updated,
                in_optimizer=None if optimized is None else id(tensor) in optimized,
                norm=None if known is None else known.norm,
                extent="" if known is None else known.extent,
            )
        )
    return tuple(found)


def _column(values: Mapping[int, Any], length: int, missing: Any) -> list[Any]:
    """A list with the value of each node."""
    column = [missing] * length
    for i, value in values.items():
        column[i] = value
    return column
