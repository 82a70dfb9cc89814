"""The graphs of one recording, each with what the others tell of it."""

from __future__ import annotations

from dataclasses import replace

from ..graph import Graph


def with_others(graphs: list[Graph]) -> list[Graph]:
    """The graphs of a recording, each with what is known from the others."""
    if len(graphs) < 2:
        return graphs
    got = {
        p.name
        for graph in graphs
        for p in graph.parameters
        if p.node is not None and any(graph.nodes[p.node].grad_outputs)
    }
    first = next((i for i, graph in enumerate(graphs) if _is_spoilt(graph)), len(graphs))
    return [
        replace(
            g,
            parameters=tuple(
                p if p.reached is not None else replace(p, reached=p.name in got)
                for p in g.parameters
            ),
            spoilt=first if first < i else None,
        )
        for i, g in enumerate(graphs)
    ]


def _is_spoilt(graph: Graph) -> bool:
    """Is a parameter's gradient NaN or Inf, for an optimizer to make the parameter that too."""
    # A scaler sees to it that none does.
    given = (graph.nodes[p.node].grad_outputs for p in graph.parameters if p.node is not None)
    found = any(stats is not None and stats.nonfinite for row in given for stats in row)
    return found and graph.loss_scale is None
