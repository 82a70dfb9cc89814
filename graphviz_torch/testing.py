"""Provide assertions for tests of a model, for example that all parameters get gradients.

The message of a failed assertion names the parameter, the cause and the source line.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, get_args

from . import Finding, Graph, diff, find, load, record
from .experiments import experiment
from .graph import CollectiveKind, graph_of
from .graph.text import first_items, listing
from .graph.units import count_text
from .graph.values import SEVERITIES

__all__ = [
    "assert_gradients_flow",
    "assert_no_collectives",
    "assert_no_findings",
    "assert_no_sample_leak",
    "assert_no_transfers",
    "assert_same_graph",
]

UPDATE = "GRAPHVIZ_TORCH_UPDATE"  # environment variable that `pytest --graphviz-torch-update` sets
_MAX_LISTED = 10
_AND_MORE = "  and {:,} more"


def assert_gradients_flow(model_or_graph: Any, to: str | Iterable[str] | None = None) -> None:
    """Fail unless every parameter that requires a gradient got a gradient.

    Args:
        model_or_graph: a recording or its graph, or a module after `backward()`. For a recording or
            graph, the failure message also contains the causes.
        to: names of parameters or modules that have to get a gradient. None means all parameters.
            The assertion also fails if a name is unknown or a named parameter is frozen.

    Raises:
        AssertionError: with the parameters, and the causes and lines if known.

    >>> import torch
    >>> from graphviz_torch import record
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
    >>> with record(model) as recording:
    ...     model(torch.ones(1, 2)).sum().backward()
    >>> assert_gradients_flow(recording)
    >>> assert_gradients_flow(recording, to="0.weight")
    """
    if callable(getattr(model_or_graph, "named_parameters", None)):
        needs = {name: p.requires_grad for name, p in model_or_graph.named_parameters()}
        got = {name for name, p in model_or_graph.named_parameters() if p.grad is not None}
        found: list[Finding] = []
    else:
        graph = graph_of(model_or_graph)
        needs = {p.name: p.requires_grad for p in graph.parameters}
        got = {p.name for p in graph.parameters if p.has_grad or p.got_gradient}
        found = find(graph)
    wanted = [to] if isinstance(to, str) else None if to is None else list(to)
    missing = [name for name, need in needs.items() if need and name not in got]
    if wanted is not None:
        of = {each: _in_module(each, needs) for each in wanted}
        unknown = [each for each, names in of.items() if not names]
        assert not unknown, (
            f"no parameter or module is called {' or '.join(unknown)}. "
            f"The parameters are {listing(needs, _MAX_LISTED)}."
        )
        missing = [name for names in of.values() for name in names if name not in got]
    if not needs:
        raise AssertionError("the graph has no parameters: record the forward and the backward.")
    if missing:
        frozen = [name for name in missing if not needs[name]]
        lines = [f"no gradient reached {listing(missing, _MAX_LISTED)}."]
        if frozen:
            lines.append(f"{listing(frozen, _MAX_LISTED)}: requires_grad is False.")
        names = set(missing)
        lines += [
            _finding_text(each) for each in found if any(name in each.message for name in names)
        ]
        raise AssertionError("\n".join(lines))


def assert_no_transfers(graph: Any, phase: Literal["forward", "backward"] | None = None) -> None:
    """Fail if a tensor was copied between devices.

    Args:
        graph: a recording or its graph.
        phase: the phase to check: "forward", "backward", or None for the whole step.

    Raises:
        AssertionError: with each copy, its size and its source line.
        ValueError: if `phase` is none of these.
    """
    if phase not in (None, "forward", "backward"):
        raise ValueError(f"phase={phase!r} is unknown: pass 'forward', 'backward' or None.")
    copies = [c for c in graph_of(graph).transfers if phase in (None, c.phase)]
    if copies:
        lines = []
        for copy in copies:
            where = f" at {copy.where}" if copy.where else ""
            name = f" of {copy.label}" if copy.label else ""
            lines.append(
                f"  {copy.kind} {copy.source} -> {copy.target}: {copy.tensor}{name}, "
                f"{copy.operation or 'copy'} in {copy.phase}{where}"
            )
        head = f"{count_text(len(copies), 'transfer')} in {phase or 'the step'}"
        raise AssertionError("\n".join([head, *first_items(lines, _MAX_LISTED, _AND_MORE)]))


def assert_no_collectives(graph: Any, kind: str | None = None) -> None:
    """Fail if this rank called a collective.

    Args:
        graph: a recording or its graph.
        kind: the kind of collective that is not allowed, such as "all_gather". None allows no
            collective at all.

    Raises:
        AssertionError: with each collective, its module and its source line.
        ValueError: if `kind` is not a kind of collective.
    """
    kinds = get_args(CollectiveKind)
    if kind is not None and kind not in kinds:
        raise ValueError(f"kind={kind!r} is unknown: pass {', '.join(kinds)}, or None.")
    sent = [each for each in graph_of(graph).collectives if kind in (None, each.kind)]
    if sent:
        lines = []
        for each in sent:
            module = f" for {each.module}" if each.module else ""
            where = f" at {each.where}" if each.where else ""
            lines.append(f"  {each}{module}, in {each.phase}{where}")
        head = f"{count_text(len(sent), kind or 'collective')} in the step"
        raise AssertionError("\n".join([head, *first_items(lines, _MAX_LISTED, _AND_MORE)]))


def assert_no_findings(
    graph: Any, severity: Literal["error", "warning", "info"] = "warning"
) -> None:
    """Fail if `find` reports a finding of severity `severity` or worse.

    Args:
        graph: a recording or its graph.
        severity: lowest severity that makes the assertion fail: "error", "warning" or "info".

    Raises:
        AssertionError: with each finding, its advice and its source line.
        ValueError: if `severity` is none of these.
    """
    if severity not in SEVERITIES:
        raise ValueError(f"severity={severity!r} is unknown: pass 'error', 'warning' or 'info'.")
    bad = [each for each in find(graph) if each.is_at_least(severity)]
    assert not bad, "\n".join(
        [f"{count_text(len(bad), 'finding')} in this graph", *map(_finding_text, bad)]
    )


def assert_no_sample_leak(model: Any, *args: Any, **kwargs: Any) -> None:
    """Fail if the outputs for a sample depend on another sample of the batch.

    The model is called once. Then it is run again with changed values for one sample, and the side
    effects of these further runs are undone. In the further runs, batch norm uses its running
    statistics. Operations that combine samples on purpose, such as the similarities of all pairs or
    a graph network, are not counted as leaks.

    Args:
        model: a module with parameters.
        args, kwargs: arguments of the model, with at least two samples along the first dimension.

    Raises:
        AssertionError: with the first operation that mixes samples, its module and its source line.
        ValueError: if the check is not possible. The message says why.

    >>> import torch
    >>> assert_no_sample_leak(torch.nn.Linear(4, 2), torch.randn(8, 4))
    """
    with record(model, gradients=False, memory=False, experiments=True) as recording:
        model(*args, **kwargs)
    [found] = experiment(recording, "sample")
    if found.finding is not None:
        raise AssertionError(
            f"{_finding_text(found.finding)}\n"
            f"    at {found.where}, in {found.module or 'the model'}"
        )
    if found.holds is None and not found.operation:
        raise ValueError(f"{found.changed}: {found.message}.")


def assert_same_graph(graph: Any, expected: Any) -> None:
    """Fail if two graphs differ in nodes, edges, shapes, dtypes or devices.

    Gradients and times may differ.

    Args:
        graph: a recording, a graph or a tensor.
        expected: another recording, graph or tensor; or the path of a stored graph, for example
            `Path(__file__).with_name("net.json")`. `pytest --graphviz-torch-update`, or the
            environment variable GRAPHVIZ_TORCH_UPDATE=1, writes this file.

    Raises:
        AssertionError: with the nodes and edges that were added, removed or changed.
        ValueError, OSError: if the stored graph cannot be read.
    """
    new = graph_of(graph)
    advice = ""
    if isinstance(expected, str | Path):
        path = Path(expected)
        if os.environ.get(UPDATE):
            _structure(new).save(path)
            return
        advice = f"\nIf the change is intended, write {path} with: pytest --graphviz-torch-update"
        assert path.exists(), f"the stored graph {path} does not exist.{advice}"
        old = graph_of(load(path))
    else:
        old = graph_of(expected)
    inf = float("inf")
    difference = diff(old, new, gradient_tolerance=inf, time_tolerance=inf)
    assert not difference, f"the graphs differ:\n{difference.to_text()}{advice}"


def _structure(graph: Graph) -> Graph:
    """Return the graph without gradients and times, which differ from run to run."""
    kept = graph.annotate(
        grad_outputs={node.id: () for node in graph.nodes},
        seconds={node.id: None for node in graph.nodes},
    )
    return Graph(kept.nodes, kept.edges, kept.outputs)


def _in_module(name: str, names: Iterable[str]) -> list[str]:
    return [each for each in names if each == name or each.startswith(f"{name}.")]


def _finding_text(finding: Finding) -> str:
    advice = f"\n    {finding.advice}" if finding.advice else ""
    return f"{finding.severity}: {finding.message} [{finding.rule}]{advice}"
