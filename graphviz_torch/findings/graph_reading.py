"""Values of a graph that several rules need, such as its nodes by operation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
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
from ..graph.events import Event, LeafBackward, NewLeaves, OptimizerStep
from ..graph.immutable import immutable
from ..graph.nodes import CHANGED, INSIDE, SAME_VALUES
from ..graph.text import shorten_middle
from .words import operation_text

Kind = TypeVar("Kind", bound=Event)

_SINK = "_DDPSinkBackward"
# Operations that return a weight, or a part of it, in another shape, layout or dtype.
_PARTS = SAME_VALUES | {"expand", "slice", "select"}
REDUCING = ("all_reduce", "reduce_scatter", "reduce")


def averages(graph: Graph) -> dict[str, Collective]:
    """Return, by parameter name, the last collective that reduces the gradient over ranks."""
    return {
        name: each
        for each in graph.collectives
        if each.kind in REDUCING and each.gradients
        for name in each.parameters
    }


def largest_unnamed_average(graph: Graph) -> int:
    """Return the bytes of the largest gradient reduction with unknown parameters; 0 if none."""
    return max(
        (
            each.nbytes
            for each in graph.collectives
            if each.kind in REDUCING and each.phase != "forward" and not each.parameters
        ),
        default=0,
    )


def is_differentiated(node: Node) -> bool:
    """Return True if `autograd.grad` or `backward` created the node, with `create_graph=True`."""
    return node.call.rpartition("/")[2].partition("#")[0] in ("grad", "backward")


@immutable(slots=False)
class Reading:
    """A graph with cached values that several rules need."""

    graph: Graph
    before: tuple[Graph, ...] = ()  # graphs of earlier steps

    @cached_property
    def kinds(self) -> frozenset[type | str]:
        """The classes of events and values in the graph, and names of its operations and dtypes.

        `find` calls a rule only if the graph has one of the kinds that the rule is registered for.
        """
        graph, nodes = self.graph, self.graph.nodes
        found: set[type | str] = {type(event) for event in graph.events}
        found.update(self.by_operation)
        outputs = [node.outputs for node in nodes]
        # Most nodes share their outputs, so each tuple of outputs is read once.
        distinct = dict(zip(map(id, outputs), outputs, strict=True)).values()
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
        """The nodes by operation, in the order of the forward."""
        found: dict[str, list[Node]] = defaultdict(list)
        for node in self.graph.nodes:
            found[node.operation].append(node)
        return dict(found)

    @cached_property
    def by_title(self) -> dict[str, list[Node]]:
        """The nodes by title: a node's operation, or its name if it has no operation."""
        found = {name: nodes for name, nodes in self.by_operation.items() if name}
        own: dict[str, list[Node]] = {}
        for node in self.by_operation.get("", ()):
            own.setdefault(node.name, []).append(node)
        return found | {name: found.get(name, []) + nodes for name, nodes in own.items()}

    def of_operations(self, operations: Iterable[str]) -> list[Node]:
        """Return the nodes of any of these operations, in the order of the forward."""
        some = [nodes for name in operations if (nodes := self.by_operation.get(name))]
        if len(some) < 2:
            return some[0] if some else []
        return sorted([node for nodes in some for node in nodes], key=attrgetter("id"))

    @cached_property
    def activations(self) -> dict[int, int]:
        """The bytes of activations that each node saves for backward, by node id."""
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
        """For each node, the edges that begin at it."""
        return self.graph.users()

    @cached_property
    def regions(self) -> dict[int, int]:
        """A dict from each node inside a compiled region to the node that represents the region.

        Regions whose inner gradients were recorded are left out: rules treat the nodes inside them
        like nodes outside of regions.
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
        """Return the edges into a node or, for the node of a compiled region, into the region."""
        inside = {i for i, region in self.regions.items() if region == node}
        into = [edge for i in sorted(inside) for edge in self.inputs[i]]
        return [edge for edge in (*into, *self.inputs[node]) if edge.source not in inside]

    @cached_property
    def ran(self) -> bool:
        """True if a recorded backward ran."""
        return any(node.order is not None for node in self.graph.nodes)

    @cached_property
    def has_derivatives(self) -> bool:
        """True if the graph has nodes of a derivative, computed with `create_graph=True`."""
        return any("BackwardBackward" in n.name or is_differentiated(n) for n in self.graph.nodes)

    @cached_property
    def parameters_with_gradient(self) -> frozenset[str]:
        """The names of parameters that got a gradient in this or an earlier backward."""
        nodes = self.graph.nodes
        return frozenset(
            p.name
            for p in self.graph.parameters
            # If a backward was recorded, has_grad may mean a gradient from before the recording.
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
    def not_requested(self) -> frozenset[str]:
        """The names of parameters whose gradient the program did not request.

        `torch.autograd.grad(loss, inputs)` and `loss.backward(inputs=inputs)` request the gradients
        of `inputs` only.
        """
        graph = self.graph
        lost = [p for p in graph.parameters if p.name not in self.parameters_with_gradient]
        if not lost or graph.failure is not None or not self.ran:
            return frozenset()
        # backward() without `inputs` runs every leaf that it can reach.
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
    def weights(self) -> frozenset[int]:
        """The nodes of parameters, and of views of parameters."""
        found: set[int] = set()
        for node in self.graph.nodes:  # inputs before users
            edges = self.inputs[node.id] if node.operation in _PARTS else ()
            if node.leaf == "parameter" or (edges and edges[0].source in found):
                found.add(node.id)
        return frozenset(found)

    @cached_property
    def without_gradient(self) -> list[Parameter]:
        """The parameters that should have got a gradient and did not."""
        if not self.backward_ran:
            return []
        known = self.parameters_with_gradient | self.not_requested
        return [
            p
            for p in self.graph.parameters
            if p.name not in known
            and p.requires_grad
            # A meta tensor has no values, so the model runs with other tensors.
            and p.tensor.device != "meta"
            and not (p.has_grad and p.stepped)  # the program assigned p.grad by itself
            and not p.in_other_optimizer  # an optimizer that steps in other steps trains p
            and not (self.backward_failed and (p.module_called is not False or p.node is not None))
        ]

    @cached_property
    def only_nonfinite_recorded(self) -> bool:
        """True if all recorded gradients are nonfinite, as with `record(gradients="finite")`."""
        return all(
            stats.nonfinite
            for node in self.graph.nodes
            for stats in node.grad_outputs
            if stats is not None
        )

    @cached_property
    def nonfinite(self) -> frozenset[int]:
        """The nodes that a gradient with NaN or Inf reached."""
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
        """The longest path from the loss to a leaf: pairs of a node id and a gradient norm."""
        nodes = self.graph.nodes
        depth = [0] * len(nodes)
        deepest: list[int | None] = [None] * len(nodes)
        for target, edges in enumerate(self.inputs):  # inputs come before users
            if edges and (nodes[target].order is not None or nodes[target].grad_outputs):
                longest = 0
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
        """Node that ran without a gradient -> nearest node with a gradient, towards the loss."""
        nodes = self.graph.nodes
        found: dict[int, int] = {}
        if self.only_nonfinite_recorded:
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
    def dropping_nodes(self) -> dict[int, int]:
        """The items of `last_with_gradient` whose value is not a node that DDP inserted.

        DDP adds a node to the model's outputs. This node passes on every gradient, but gets no
        gradient for outputs that the loss does not use.
        """
        nodes = self.graph.nodes
        found = self.last_with_gradient.items()
        return {node: last for node, last in found if nodes[last].name != _SINK}

    def events(self, kind: type[Kind]) -> list[Kind]:
        """Return the graph's events (recorded facts that rules read) of one class."""
        return [event for event in self.graph.events if isinstance(event, kind)]

    @cached_property
    def leaf_losses(self) -> list[LeafBackward]:
        """The events about leaves from which this backward started; empty if nothing is trained."""
        outputs = {node for node, _ in self.graph.outputs}
        learns = any(p.requires_grad for p in self.graph.parameters) or self.events(OptimizerStep)
        if not learns:
            return []
        # If a line calls backward several times, its event contains the node of the last backward
        # only. In the graphs of the earlier ones, the graph's output is the leaf.
        alone = bool(outputs) and all(self.graph.nodes[node].leaf for node in outputs)
        events = self.events(LeafBackward)
        return [e for e in events if not outputs.isdisjoint(e.nodes) or (alone and not e.nodes)]

    @cached_property
    def loss_has_no_grad(self) -> bool:
        """True if backward failed because the loss does not require grad."""
        failure = self.graph.failure
        return failure is not None and "does not require grad" in failure.message

    @cached_property
    def backward_failed(self) -> bool:
        """True if backward failed after it had started.

        Then some parameters may have got no gradient.
        """
        return self.graph.failure is not None and (self.graph.failure.node is not None or self.ran)

    @cached_property
    def backward_ran(self) -> bool:
        """True if a backward ran, or failed because the loss does not require grad."""
        return bool(self.parameters_with_gradient) or self.ran or self.loss_has_no_grad

    @cached_property
    def parameter_names(self) -> frozenset[str]:
        """The names of the model's parameters."""
        return frozenset(parameter.name for parameter in self.graph.parameters)

    @cached_property
    def names(self) -> dict[int, str]:
        """The names of nodes, by id: a parameter's name in its model, or a variable's label."""
        labels = {node.id: node.label for node in self.graph.nodes if node.label}
        return labels | {p.node: p.name for p in self.graph.parameters if p.node is not None}

    def call(self, node: int) -> str:
        """Return a node's name, or its operation and module ("addmm in fc1") if it has no name."""
        if node in self.names:
            return shorten_middle(self.names[node])
        return operation_text(self.graph.nodes[node])

    def meta(self, node: int, output_nr: int = 0) -> TensorMeta | None:
        """Return the shape, dtype and device of a node's output; None if unknown.

        Args:
            node: id of the node.
            output_nr: index of the output.
        """
        outputs = self.graph.nodes[node].outputs
        return outputs[output_nr] if output_nr < len(outputs) else None

    def stats(self, node: int, output_nr: int = 0) -> GradientStats | None:
        """Return the statistics of the gradient of a node's output; None if not recorded.

        Args:
            node: id of the node.
            output_nr: index of the output.
        """
        gradients = self.graph.nodes[node].grad_outputs
        return gradients[output_nr] if output_nr < len(gradients) else None

    @cached_property
    def copied_parameters(self) -> NewLeaves | None:
        """The event about new leaves that are copies of parameters without a gradient, or None.

        The leaves are recognized by the shapes of the parameters, or of several stacked parameters.
        """
        shapes = {p.tensor.shape for p in self.without_gradient}
        for event in self.events(NewLeaves):
            if not event.nodes and event.times > 1:
                return event  # the leaves are created again for each backward
            metas = [meta for node in event.nodes if (meta := self.meta(node)) is not None]
            if metas and all(not shapes.isdisjoint((m.shape, m.shape[1:])) for m in metas):
                return event
        return None
