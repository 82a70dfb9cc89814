"""Record each parameter's metadata and norm, its gradient, and whether an optimizer updated it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from itertools import compress, repeat
from operator import itemgetter
from typing import Any

from torch import Tensor

from ...graph import GradientStats, Graph, Parameter
from ...graph.nodes import CHANGED, REGION
from ...internals.hooks.optimizers import Stepped, optimized_parameters
from ...internals.sharding import placement, shard_position
from ...internals.tensors.memory import PLAIN
from ...internals.tensors.metadata import tensor_meta
from ...internals.tensors.reductions import Norms
from ..backward import Backward
from ..gradients.statistics import Descriptions
from ..listener import BackwardBegan, GraphValues, Listener
from ..program import Program
from ..resolver import Resolver


class Weights(Listener):
    """Listener that records the model's parameters, with their norms at the start of backward."""

    needs = ()

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._norms: dict[int, Norms] = {}  # by index of the graph
        self._reached: set[int] = set()  # id() of leaves that any backward of this step reached
        self._optimized: set[int] | None = None  # id() of parameters that any optimizer has
        # id() of parameters of optimizers that did not step in this step
        self._waiting: set[int] | None = None
        # id() of a parameter -> index of the first backward that began when it was listed
        self._since: dict[int, int] = {}
        self._got: set[str] = set()  # names of parameters that got a gradient
        self._looked_at = False  # True if all gradients were read, so `_got` is complete
        self._grads: dict[str, GradientStats] = {}  # gradients of sharded parameters, by name
        self._learned: dict[str, bool] = {}  # `requires_grad` when backward began, by name
        # Names of parameters with a gradient at the last step.
        self._with_grad: set[str] | None = None

    def on_backward_start(self, event: BackwardBegan) -> None:
        """Read `requires_grad` and norms, which the program may change later in the step."""
        listed = self.program.table.listed_parameters()
        self._learned |= {name: tensor.requires_grad for name, tensor in listed}
        now = dict.fromkeys(_ids(listed), event.live.position)
        self._since = now | self._since  # the values of earlier backwards are kept
        if not self.program.options.light and event.live.ran.nodes is not None:
            fns, leaves = list(event.live.ids), sorted({*event.live.parameters.values()})
            self._norms[event.live.position] = Norms({i: fns[i].variable for i in leaves})

    def on_optimizer_step_end(self, event: Stepped) -> None:
        """Read which parameters have gradients, before the program clears them."""
        listed = self.program.table.listed_parameters()
        found = {name for name, tensor in listed if tensor.grad is not None}
        self._with_grad = found | (self._with_grad or set())
        if not self.program.options.light:
            self._grads |= _sharded_gradients(listed)

    def on_step_end(self, event: None) -> None:
        self._norms, self._learned, self._grads, self._with_grad = {}, {}, {}, None
        self._since = {}

    def on_graphs_built(self, backwards: Sequence[Backward], graphs: Sequence[Graph]) -> None:
        self._reached = {key for backward in backwards for key in backward.reached}
        noted = (stats for graph in graphs for node in graph.nodes for stats in node.grad_outputs)
        # Finite gradients are not recorded with gradients="finite". It is then assumed that every
        # parameter whose node ran got a gradient.

        self._looked_at = any(stats is not None and not stats.nan + stats.inf for stats in noted)
        self._got = {
            name
            for backward, nodes in zip(backwards, (graph.nodes for graph in graphs), strict=True)
            for name, i in backward.parameters.items()
            if (
                any(nodes[i].grad_outputs) or CHANGED in nodes[i].note
                if self._looked_at
                else nodes[i].order is not None
            )
        }
        steps, listed = self.program.steps, self.program.table.listed_parameters()
        updated = steps.updated
        keys = set(_ids(listed))
        known = updated is None or keys <= updated
        self._optimized = None if known else optimized_parameters(keys)
        timed = any(node.order is not None for graph in graphs for node in graph.nodes)
        lost = not self._got.issuperset(map(itemgetter(0), listed)) or any(
            not steps.ever.isdisjoint(backward.cut_off) for backward in backwards
        )
        asked = timed and updated is not None and lost
        self._waiting = optimized_parameters(without=steps.held) if asked else None
        if not self.program.options.light:
            self._grads |= _sharded_gradients(listed)

    def graph_values(self, graph: Graph, resolver: Resolver) -> GraphValues:
        return {"parameters": self._parameters(resolver.backward)}

    def _parameters(self, backward: Backward) -> tuple[Parameter, ...]:
        columns, table = backward.reading.columns, self.program.table
        # The module calls inside a compiled region that was not traced are unknown.
        closed = any(f"{REGION}:" in note for note in set(columns["note"]))
        unseen = None if closed or table.unknown_calls else False
        outputs = columns["outputs"]
        listed = table.listed_parameters()
        # Leaves upstream of cuts that belong to no module are listed, too, if an optimizer holds
        # them. If no module was called, all leaves upstream of cuts are listed.
        alone = backward.cut_off
        if listed and alone:
            held = self.program.steps.ever - table.every()
            alone = {key: node for key, node in alone.items() if key in held}
        waiting = self._waiting
        strangers = tuple(
            Parameter(
                label,
                meta,
                True,
                node,
                got_gradient=key in self._reached,
                in_other_optimizer=None if waiting is None else key in waiting,
            )
            for key, node in alone.items()
            if (label := columns["label"][node]) and (meta := outputs[node][0]) is not None
        )
        if not listed:
            return strangers
        norms = self._norms.get(backward.position)
        weights = {} if norms is None else norms.fetch()
        updated, optimized, had = self.program.steps.updated, self._optimized, self._with_grad
        node_of, position = backward.parameters, backward.position
        if backward.ran is not None:  # leave out modules that were first called later
            since, never = self._since, math.inf
            listed = [
                (name, tensor)
                for name, tensor in listed
                if name in node_of or since.get(id(tensor), never) <= position
            ]
        names, tensors = [name for name, _ in listed], [tensor for _, tensor in listed]
        nodes, keys = list(map(node_of.get, names)), list(map(id, tensors))
        metas = [None if node is None else outputs[node][0] for node in nodes]
        measured = [None if node is None else weights.get(node) for node in nodes]
        ranks = [type(tensor) not in PLAIN for tensor in tensors]  # True for a possible DTensor
        found = _rows(
            len(listed),
            name=names,
            tensor=[meta or tensor_meta(t) for meta, t in zip(metas, tensors, strict=True)],
            requires_grad=map(self._learned.get, names, [t.requires_grad for t in tensors]),
            node=nodes,
            module_called=[
                node is not None or table.was_called(name) or unseen
                for name, node in zip(names, nodes, strict=True)
            ],
            has_grad=[t.grad is not None if had is None else name in had for name, t in listed],
            stepped=_membership(keys, updated),
            got_gradient=[
                name in self._got or (False if self._looked_at else None) for name in names
            ],
            in_optimizer=_membership(keys, optimized),
            norm=[None if each is None else each.norm for each in measured],
            extent=["" if each is None else each.extent for each in measured],
            placement=[placement(t) if one else "" for t, one in zip(tensors, ranks, strict=True)],
            in_other_optimizer=_membership(keys, self._waiting),
        )
        for i, tensor in compress(enumerate(tensors), ranks):
            mine = shard_position(tensor)
            if mine is not None:
                number, parts = mine
                alike = tensor.grad is None or shard_position(tensor.grad) == mine
                grad = self._grads.get(names[i])
                part_ = number if alike else None
                found[i] = replace(found[i], grad=grad, shard=part_, shard_count=parts)
        return (*found, *strangers)


def _rows(count: int, **columns: Iterable[Any]) -> list[Parameter]:
    """Return parameter rows. There may be thousands, so they are built without a Python loop.

    Args:
        count: number of rows.
        columns: values by field of `Parameter`; other fields get their defaults.
    """
    made = list(map(object.__new__, repeat(Parameter, count)))
    for field in fields(Parameter):
        column = columns[field.name] if field.name in columns else repeat(field.default)
        deque(map(getattr(Parameter, field.name).__set__, made, column), maxlen=0)
    return made


def _ids(listed: Iterable[tuple[str, Tensor]]) -> Iterable[int]:
    """Return the id() of each parameter."""
    return map(id, map(itemgetter(1), listed))


def _membership(keys: Sequence[int], known: set[int] | None) -> list[bool | None]:
    """Return for each key whether it is in the set; if the set is None, return None for each.

    Args:
        keys: the keys, such as the id() of parameters.
        known: the set; None if it is unknown.
    """
    return [None] * len(keys) if known is None else [key in known for key in keys]


def _sharded_gradients(listed: Sequence[tuple[str, Tensor]]) -> dict[str, GradientStats]:
    """Return statistics of this rank's shards of gradients, by parameter name."""
    grads = [(name, tensor.grad) for name, tensor in listed if type(tensor) not in PLAIN]
    descriptions = Descriptions()
    for name, gradient in grads:
        if gradient is not None and type(gradient) not in PLAIN and placement(gradient):
            descriptions.see((name, 0), gradient, descriptions.kind(tensor_meta(gradient)))
    descriptions.describe_all()
    return {name: stats for (name, _), stats in descriptions.collect().items()}
