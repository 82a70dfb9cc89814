"""The autograd graph of a computation: nodes, edges, and records of the training step.

`graph_of` converts arguments to a Graph. It accepts a Graph, and any object whose attribute `graph`
is a Graph, such as a recording or a picture. The package root registers the functions that read
tensors and modules, because this package does not import torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any, Protocol

from .collective import Collective
from .events import Event
from .files.file import write
from .ids import NodeId, iter_node_ids
from .immutable import immutable
from .module_paths import check_paths
from .nodes import Edge, ModuleRow, Node
from .registry import mime_bundle, read
from .tensors import MOST_ELEMENTS, TensorMeta
from .text import printable, shorten, type_text
from .values import Cut, Failure, Parameter, Step, Transfer, Untracked

_MAX_SECONDS = 1e9  # about 30 years; a longer time overflows counters of microseconds
_MAX_ORDER = 1 << 31  # upper bound of `Node.order`
_MAX_BYTES = 1 << 63  # upper bound of a sum of bytes
_MAX_SEGMENTS = 1_000


@immutable(slots=False)
class Graph:
    """An autograd graph. The id of a node is its position in `nodes`, in topological order.

    `trace` and `record` create graphs. `Graph.annotate` returns a copy with other values in some
    fields of its nodes.

    >>> import torch
    >>> from graphviz_torch import trace
    >>> x = torch.ones(3, requires_grad=True)
    >>> graph = trace((x * 2).sum())
    >>> [(graph.nodes[edge.source].title, graph.nodes[edge.target].title) for edge in graph.edges]
    [('AccumulateGrad', 'mul'), ('mul', 'sum')]
    >>> graph.annotate(note={1: "doubled"}).nodes[1].note
    'doubled'
    """

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...] = ()
    # (node id, output_nr) of each output tensor, in the caller's order
    outputs: tuple[tuple[NodeId, int], ...] = ()
    transfers: tuple[Transfer, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    cuts: tuple[Cut, ...] = ()
    failure: Failure | None = None
    step: Step = Step()
    events: tuple[Event, ...] = ()  # facts about the program that no node shows
    # If the graphs of several backward passes were joined into this graph: (id of the first node,
    # title) of each. Nodes before the first id belong to none of them.
    segments: tuple[tuple[int, str], ...] = ()
    modules: tuple[ModuleRow, ...] = ()  # the modules that ran in the recorded block
    # Collectives of this rank in program order. Each graph of a step lists those of the whole step.
    collectives: tuple[Collective, ...] = ()
    # Data, and calls without an autograd node, that the nodes depend on, in program order.
    untracked: tuple[Untracked, ...] = ()

    def __repr__(self) -> str:
        counts = [
            (len(self.nodes), "node"),
            (len(self.edges), "edge"),
            (len(self.outputs), "output"),
            (len(self.transfers), "transfer"),
            (len(self.collectives), "collective"),
            (len(self.parameters), "parameter"),
            (len(self.cuts), "cut"),
        ]
        parts = [f"{n:,} {name}{'s' * (n != 1)}" for n, name in counts if n or name == "node"]
        if self.failure is not None:
            parts.append(f"failed: {printable(self.failure.error)}")
        return f"Graph({', '.join(parts)})"

    def annotate(self, **columns: Mapping[int, Any]) -> Graph:
        """Return a copy with other values in some fields: `graph.annotate(module={3: "fc1"})`.

        Args:
            columns: field of Node -> {node id: new value}. Other nodes keep their value.

        Raises:
            ValueError: for a field that Node does not have, or an id that the graph does not have.
        """
        changes: dict[int, dict[str, Any]] = {}
        for field, values in columns.items():
            if field not in Node._fields or field == "id":
                raise ValueError(
                    f"annotate({field}=...): {field!r} is not a field of Node that can be replaced."
                )
            for node, value in values.items():
                changes.setdefault(node, {})[field] = value
        nodes = list(self.nodes)
        for node, change in changes.items():
            if not 0 <= node < len(nodes):
                raise ValueError(f"annotate: node {node} is not among the {len(nodes)} nodes.")
            nodes[node] = nodes[node]._replace(**change)
        return replace(self, nodes=tuple(nodes))

    def inputs(self) -> list[list[Edge]]:
        """Return, for each node, the edges that end at the node, in the order of `edges`."""
        groups: list[list[Edge]] = [[] for _ in self.nodes]
        for edge in self.edges:
            groups[edge.target].append(edge)
        return groups

    def users(self) -> list[list[Edge]]:
        """Return, for each node, the edges that start at the node, in the order of `edges`."""
        groups: list[list[Edge]] = [[] for _ in self.nodes]
        for edge in self.edges:
            groups[edge.source].append(edge)
        return groups

    def reached(self) -> set[int]:
        """Return the ids of the outputs' nodes, and of all nodes that have a path to an output.

        Gradients of the outputs flow to these nodes only. A node from which every path is cut is
        not among them.
        """
        found = {node for node, _ in self.outputs}
        for edge in sorted(self.edges, key=attrgetter("target"), reverse=True):
            if edge.target in found:
                found.add(edge.source)
        return found

    def save(self, path: str | Path) -> Path:
        """Write the graph to a JSON file, compressed if `path` ends in ".gz"; return the path.

        Raises:
            ValueError: for a graph that could not be loaded again (see `load`). Nothing is written.
            OSError: as `open` does.
        """
        return write(self, path)

    def check(self) -> None:
        """Raise ValueError if an id, an edge or a number is not valid.

        An edge must lead from a node to another node with a larger id.
        """
        _check(self)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return mime_bundle(self, include, exclude)


def _check(graph: Graph) -> None:
    count = len(graph.nodes)
    for i, node in enumerate(graph.nodes):
        if node.id != i:
            raise ValueError(f"graph.nodes[{i}] has the id {node.id}.")
        if node.order is not None and not 0 <= node.order < _MAX_ORDER:
            raise ValueError(
                f"graph.nodes[{i}].order is {node.order}; it must be from 0 to {_MAX_ORDER - 1}."
            )
        for saved in node.saved:
            if saved.nbytes < 0:
                raise ValueError(f"graph.nodes[{i}].saved has a negative nbytes.")
        if max(map(len, filter(None, node.values)), default=0) > MOST_ELEMENTS:
            raise ValueError(
                f"graph.nodes[{i}].values has an output of more than {MOST_ELEMENTS} elements."
            )
        for stats in node.grad_outputs:
            if stats is None:
                continue
            sizes = (stats.norm, stats.max_abs, stats.zero_fraction, stats.nan, stats.inf)
            if min(sizes) < 0 or not 0 <= stats.zero_fraction <= 1:
                raise ValueError(
                    f"graph.nodes[{i}].grad_outputs has {stats!r}: norms and counts must not "
                    "be negative, and zero_fraction must be at most 1."
                )
        if len(node.grad_outputs) > 1:
            _check_bytes([s and s.tensor for s in node.grad_outputs], f"nodes[{i}].grad_outputs")
    for i, parameter in enumerate(graph.parameters):
        if parameter.norm is not None and parameter.norm < 0:
            raise ValueError(
                f"graph.parameters[{i}].norm is {parameter.norm}; it must not be negative."
            )
    for name, times in (
        ("nodes", [node.seconds for node in graph.nodes]),
        ("transfers", [transfer.seconds for transfer in graph.transfers]),
    ):
        for i, seconds in enumerate(times):
            if seconds is not None and not 0 <= seconds < _MAX_SECONDS:
                raise ValueError(
                    f"graph.{name}[{i}].seconds is {seconds}; it must be from 0 to "
                    f"{_MAX_SECONDS:,.0f}."
                )
        if sum([seconds for seconds in times if seconds is not None]) >= _MAX_SECONDS:
            raise ValueError(f"graph.{name} take more than {_MAX_SECONDS:,.0f} seconds in total.")
    for i, sent in enumerate(graph.collectives):
        if sent.nbytes < 0 or sent.group_size < 1:
            raise ValueError(
                f"graph.collectives[{i}] has {sent.nbytes} bytes and a group of {sent.group_size} "
                "ranks; the bytes must be 0 or more, and the ranks 1 or more."
            )
        for _, _, *times in sent.times:
            if any(seconds is not None and not 0 <= seconds < _MAX_SECONDS for seconds in times):
                raise ValueError(
                    f"graph.collectives[{i}] has the times {times}; they must be from 0 to "
                    f"{_MAX_SECONDS:,.0f} seconds."
                )
    if sum([saved.nbytes for node in graph.nodes for saved in node.saved]) >= _MAX_BYTES:
        raise ValueError("The saved tensors in graph.nodes have 2**63 bytes or more in total.")
    if sum([collective.nbytes for collective in graph.collectives]) >= _MAX_BYTES:
        raise ValueError("The collectives in graph.collectives have 2**63 bytes or more in total.")
    _check_bytes([transfer.tensor for transfer in graph.transfers], "transfers")
    _check_bytes([parameter.tensor for parameter in graph.parameters], "parameters")
    check_paths(graph)
    for i, (source, target, output_nr, input_nr) in enumerate(graph.edges):
        if not 0 <= source < target < count:
            raise ValueError(
                f"graph.edges[{i}] runs from node {source} to node {target} of "
                f"{count} nodes; an edge must run from a node to a later one."
            )
        if output_nr < 0 or input_nr < 0:
            raise ValueError(f"graph.edges[{i}] has a negative output_nr or input_nr.")
    for where, ids in iter_node_ids(Graph, [graph], "graph"):
        if ids and not 0 <= min(ids) <= max(ids) < count:
            wrong = next(i for i in ids if not 0 <= i < count)
            raise ValueError(f"{where} contains node id {wrong}, but the graph has {count} nodes.")
    for i, untracked in enumerate(graph.untracked):
        if any(not 0 <= position < i for position in untracked.inputs):
            raise ValueError(
                f"graph.untracked[{i}].inputs has an index that is negative or not below {i}."
            )
        if len(untracked.values or ()) > MOST_ELEMENTS:
            raise ValueError(f"graph.untracked[{i}].values has more than {MOST_ELEMENTS} elements.")
    firsts = [first for first, _ in graph.segments]
    if firsts != sorted(firsts) or any(not 0 <= first <= count for first in firsts):
        raise ValueError(
            f"graph.segments begin at nodes {firsts[:5]}; these ids must increase, and none may be "
            f"above {count}."
        )
    if len(firsts) > _MAX_SEGMENTS:
        raise ValueError(
            f"graph.segments has {len(firsts):,} entries; at most {_MAX_SEGMENTS:,} are allowed."
        )
    if any(output_nr < 0 for _, output_nr in graph.outputs):
        raise ValueError("graph.outputs has a negative output_nr.")


def _check_bytes(tensors: Iterable[TensorMeta | None], where: str) -> None:
    """Raise ValueError if the bytes of these tensors add up to 2**63 or more."""
    if sum([tensor.nbytes or 0 for tensor in tensors if tensor is not None]) >= _MAX_BYTES:
        raise ValueError(f"The tensors in graph.{where} have 2**63 bytes or more in total.")


class HasParameters(Protocol):
    """Interface of an `nn.Module`, whose parameter names can be passed as names of tensors."""

    def named_parameters(self) -> Iterable[tuple[str, Any]]:
        """Return the (name, parameter) pairs."""


# Values that `graph_of` accepts: a Graph, a recording, nested tensors, a module, a program.
GraphLike = Any
Names = Mapping[str, Any] | HasParameters | None


def graph_of(value: Any, *inputs: Any, names: Names = None) -> Graph:
    """Return the graph of a value.

    Args:
        value: a Graph, a recording, a tensor or nested tensors, a module, an exported program of
            `torch.export`, or a graph of `torch.fx`.
        inputs: arguments of the module, which is called once.
        names: names of the tensors, as in `trace`; None uses the names of the caller's variables.

    Raises:
        TypeError: if `value` is none of these, or inputs are given without a module.
        ValueError: if no tensor in `value` has an autograd graph.

    >>> graph_of(Graph(()))
    Graph(0 nodes)
    >>> graph_of("y")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    TypeError: expected a graph, but got a str ('y'). Pass a Graph, a recording, a tensor...
    """
    if not inputs:
        graph = value if isinstance(value, Graph) else getattr(value, "graph", None)
        if isinstance(graph, Graph):
            return graph
    graph = read(value, inputs, names)
    if isinstance(graph, Graph):
        return graph
    if inputs:
        raise TypeError(
            f"inputs are given for {type_text(value)}; only an nn.Module is called with "
            "inputs. To pass several outputs, pass them as one list."
        )
    raise TypeError(
        f"expected a graph, but got {type_text(value)} ({shorten(repr(value), 60)}). Pass a "
        "Graph, a recording, a tensor that requires a gradient, or a list of such tensors."
    )
