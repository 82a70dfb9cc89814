"""A graph, with what several rules ask of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import TypeVar

from ..graph import (
    Collective,
    Cut,
    Edge,
    Failure,
    GradientStats,
    Graph,
    Node,
    Parameter,
    RetainedGraphs,
    SavedTensor,
    TensorMeta,
    Transfer,
)
from ..graph.events import LeafBackward, OptimizerStep
from ..graph.events.base import Occurrence
from ..graph.nodes import CHANGED, INSIDE

Kind = TypeVar("Kind", bound=Occurrence)

_SINK = "_DDPSinkBackward"
REDUCING = ("all_reduce", "reduce_scatter", "reduce")


def averages(graph: Graph) -> dict[str, Collective]:
    """The last collective that reduces the gradient of each parameter, by the parameter's name."""
    return {
        name: each
        for each in graph.collectives
        if each.kind in REDUCING and each.gradients
        for name in each.parameters
    }


def largest_unnamed_average(graph: Graph) -> int:
    """Bytes of the largest reduction whose gradients are not known."""
    return max(
        (
            each.nbytes
            for each in graph.collectives
            if each.kind in REDUCING and each.phase != "forward" and not each.parameters
        ),
        default=0,
    )


@dataclass(frozen=True)
class Reading:
    """A graph with what several rules ask of it, each computed once."""

    graph: Graph
    before: tuple[Graph, ...] = ()  # of the steps before

    @cached_property
    def kinds(self) -> frozenset[type | str]:
        """What the graph has: the classes of its events and of the values in it, and the names of
        its operations and dtypes.
        """
        graph, nodes = self.graph, self.graph.nodes
        found: set[type | str] = {type(event) for event in graph.events}
        found.update(self.by_operation)
        outputs = [node.outputs for node in nodes]
        distinct = dict(zip(map(id, outputs), outputs, strict=True)).values()  # most share theirs
        found.update([meta.dtype for each in distinct for meta in each if meta is not None])
        for kind, values in (
            (Collective, graph.collectives),
            (Cut, graph.cuts),
            (Failure, graph.failure is not None),
            (GradientStats, any(map(attrgetter("grad_outputs"), nodes))),
            (Parameter, graph.parameters),
            (RetainedGraphs, graph.step.retained is not None),
            (SavedTensor, any(map(attrgetter("saved"), nodes))),
            (Transfer, graph.transfers),
        ):
            if values:
                found.add(kind)
        return frozenset(found)

    @cached_property
    def by_operation(self) -> dict[str, list[Node]]:
        """The nodes of each operation, in order."""
        found: dict[str, list[Node]] = {}
        for node in self.graph.nodes:
            operation = node.operation
            if operation in found:
                found[operation].append(node)
            else:
                found[operation] = [node]
        return found

    @cached_property
    def by_title(self) -> dict[str, list[Node]]:
        """The same by title: the name of an operation, else autograd's."""
        found = {name: nodes for name, nodes in self.by_operation.items() if name}
        own: dict[str, list[Node]] = {}
        for node in self.by_operation.get("", ()):
            own.setdefault(node.name, []).append(node)
        return found | {name: found.get(name, []) + nodes for name, nodes in own.items()}

    def of(self, operations: Iterable[str]) -> list[Node]:
        """The nodes of these operations, in order."""
        some = [nodes for name in operations if (nodes := self.by_operation.get(name))]
        if len(some) < 2:
            return some[0] if some else []
        return sorted([node for nodes in some for node in nodes], key=attrgetter("id"))

    @cached_property
    def activations(self) -> dict[int, int]:
        """For each node that saves something, the bytes of activations that it keeps."""
        found: dict[int, int] = {}
        for node in self.graph.nodes:
            if node.saved:
                kept = 0
                for each in node.saved:
                    if each.kind == "activation":
                        kept += each.nbytes
                found[node.id] = kept
        return found

    @cached_property
    def inputs(self) -> list[list[Edge]]:
        """For each node, the edges that end at it."""
        return self.graph.inputs()

    @cached_property
    def users(self) -> list[list[Edge]]:
        """For each node, the edges that start at it."""
        return self.graph.users()

    @cached_property
    def regions(self) -> dict[int, int]:
        """For each node inside a compiled region, the region's own node, which comes after it.

        Not of a region whose gradients inside are known: there each node speaks for itself.
        """
        found, region, known = dict[int, int](), -1, set[int]()
        for node in reversed(self.graph.nodes):
            if node.note == INSIDE:
                found[node.id] = region
                if node.grad_outputs:
                    known.add(region)
            elif node.operation == "compiled":
                region = node.id
        return {node: region for node, region in found.items() if region not in known}

    def sources(self, node: int) -> list[Edge]:
        """The edges that end at a node; of a region, those that come into it."""
        inside = {i for i, region in self.regions.items() if region == node}
        into = [edge for i in sorted(inside) for edge in self.inputs[i]]
        return [edge for edge in (*into, *self.inputs[node]) if edge.source not in inside]

    @cached_property
    def ran(self) -> bool:
        """Did a recorded backward run."""
        return any(node.order is not None for node in self.graph.nodes)

    @cached_property
    def received(self) -> frozenset[str]:
        """Names of the parameters that a gradient reached, also in an earlier backward."""
        nodes = self.graph.nodes
        return frozenset(
            p.name
            for p in self.graph.parameters
            # A gradient from before the recording says nothing of a backward that was recorded.
            if (p.has_grad and not self.ran)
            or p.got_gradient
            or (
                p.node is not None
                and p.node not in self.last_with_gradient
                # torch.autograd.grad returns a gradient without running the parameter's node.
                and (nodes[p.node].order is not None or any(nodes[p.node].grad_outputs))
            )
        )

    @cached_property
    def unasked(self) -> frozenset[str]:
        """Names of the parameters without a gradient that backward was not asked for one of, as
        with torch.autograd.grad(loss, others) or loss.backward(inputs=others).
        """
        graph = self.graph
        lost = [p for p in graph.parameters if p.name not in self.received]
        if not lost or graph.failure is not None or not self.ran:
            return frozenset()
        # Backward that is not told what to reach runs every leaf that it can.
        chosen = all(node.order is None for node in graph.nodes if node.leaf)
        reachable = {node for node, _ in graph.outputs}
        for node in reversed(graph.nodes):  # users before inputs
            if any(edge.target in reachable for edge in self.users[node.id]):
                reachable.add(node.id)
        return frozenset(
            p.name
            for p in lost
            if chosen
            or (p.node is not None and p.node in reachable and graph.nodes[p.node].order is None)
        )

    @cached_property
    def lost(self) -> list[Parameter]:
        """The parameters that were to get a gradient, and got none."""
        if not self.backward_ran:
            return []
        known = self.received | self.unasked
        return [
            p
            for p in self.graph.parameters
            if p.name not in known
            and p.requires_grad
            and p.tensor.device != "meta"  # has no values: the model was called with others
            and not (p.has_grad and p.stepped)  # the program gave it one, p.grad = ...
            and not p.in_other_optimizer  # it is trained in turn
            and not (self.stopped and (p.module_called is not False or p.node is not None))
        ]

    @cached_property
    def finite_left_out(self) -> bool:
        """Were only gradients described that are not finite, as by record(gradients="finite")."""
        return all(
            stats.nonfinite
            for node in self.graph.nodes
            for stats in node.grad_outputs
            if stats is not None
        )

    @cached_property
    def nonfinite(self) -> frozenset[int]:
        """The nodes that a gradient reached that is not finite."""
        return frozenset(
            [
                node.id
                for node in self.graph.nodes
                for stats in node.grad_outputs
                if stats is not None and (stats.nan or stats.inf)
            ]
        )

    @cached_property
    def longest_chain(self) -> list[tuple[int, float]]:
        """The longest chain of nodes with the norms of their gradients, from the loss to the
        deepest leaf.
        """
        nodes = self.graph.nodes
        depth = [0] * len(nodes)
        deepest: list[int | None] = [None] * len(nodes)
        for node, edges in zip(nodes, self.inputs, strict=True):  # inputs come before users
            if edges and (node.order is not None or node.grad_outputs):
                longest, target = 0, node.id
                for edge in edges:
                    source = edge.source
                    if depth[source] >= longest:
                        longest, deepest[target] = depth[source] + 1, source
                depth[target] = longest
        chain: list[tuple[int, float]] = []
        step = depth.index(max(depth)) if depth else None
        while step is not None:
            before, norm = deepest[step], 0.0
            for stats in nodes[step].grad_outputs:
                if stats is not None and stats.norm > norm and not (stats.nan or stats.inf):
                    norm = stats.norm
            if norm and before is not None:
                chain.append((step, norm))
            step = before
        return chain

    @cached_property
    def last_with_gradient(self) -> dict[int, int]:
        """For nodes that backward ran without a gradient: the node that had one, and gave none."""
        nodes = self.graph.nodes
        found: dict[int, int] = {}
        if self.finite_left_out:
            return found
        for node in reversed(nodes):  # users before inputs
            if node.order is None or any(node.grad_outputs) or CHANGED in node.note:
                continue
            for edge in self.users[node.id]:
                user = nodes[edge.target]
                if any(user.grad_outputs) or CHANGED in user.note:
                    found[node.id] = edge.target
                elif edge.target in found:
                    found[node.id] = found[edge.target]
        return found

    @cached_property
    def receivers(self) -> dict[int, int]:
        """The same, less nodes that pass on each gradient as it is: DDP's, around all results of a
        model, has none for what the loss does not use.
        """
        nodes = self.graph.nodes
        found = self.last_with_gradient.items()
        return {node: last for node, last in found if nodes[last].name != _SINK}

    def events(self, kind: type[Kind]) -> list[Kind]:
        """What the program did of one kind."""
        return [event for event in self.graph.events if isinstance(event, kind)]

    @cached_property
    def leaf_losses(self) -> list[LeafBackward]:
        """The leaves that this backward started from, where a model was to learn."""
        outputs = {node for node, _ in self.graph.outputs}
        learns = any(p.requires_grad for p in self.graph.parameters) or self.events(OptimizerStep)
        if not learns:
            return []
        # An event knows the leaf of the last backward of its line; of one before, it is the output.
        alone = bool(outputs) and all(self.graph.nodes[node].leaf for node in outputs)
        events = self.events(LeafBackward)
        return [e for e in events if not outputs.isdisjoint(e.nodes) or (alone and not e.nodes)]

    @cached_property
    def blocked(self) -> bool:
        """Did a backward fail because the way was cut in every place."""
        failure = self.graph.failure
        return failure is not None and "does not require grad" in failure.message

    @cached_property
    def stopped(self) -> bool:
        """Did a backward begin and fail: what got no gradient may have got none for that."""
        return self.graph.failure is not None and (self.graph.failure.node is not None or self.ran)

    @cached_property
    def backward_ran(self) -> bool:
        """Did a backward run, or fail because the way was cut in every place."""
        return bool(self.received) or self.ran or self.blocked

    @cached_property
    def owned(self) -> frozenset[str]:
        """Names of the model's parameters, as transfers label them too."""
        return frozenset(parameter.name for parameter in self.graph.parameters)

    @cached_property
    def names(self) -> dict[int, str]:
        """What to call a node: a parameter's name in its model, or the user's label."""
        labels = {node.id: node.label for node in self.graph.nodes if node.label}
        return labels | {p.node: p.name for p in self.graph.parameters if p.node is not None}

    def call(self, node: int) -> str:
        """What a user would call a node: its name, else "addmm in fc1"."""
        if node in self.names:
            return self.names[node]
        value = self.graph.nodes[node]
        return f"{value.title} in {value.module}" if value.module else value.title

    def meta(self, node: int, output_nr: int = 0) -> TensorMeta | None:
        """Shape, dtype and device of one output of a node; None where autograd has none."""
        outputs = self.graph.nodes[node].outputs
        return outputs[output_nr] if output_nr < len(outputs) else None

    def stats(self, node: int, output_nr: int = 0) -> GradientStats | None:
        """The gradient that reached one output of a node; None where none was recorded."""
        gradients = self.graph.nodes[node].grad_outputs
        return gradients[output_nr] if output_nr < len(gradients) else None
