"""Represent a graph while its nodes are alive, that is, before backward may free them.

The listeners receive the graph as a `LiveGraph`. After backward it is replaced by a `Backward`,
which keeps no node alive. The functions here find outputs, leaves, and nodes upstream of cuts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable
from dataclasses import field
from functools import cached_property
from operator import methodcaller
from typing import Any

import torch
from torch import Tensor

from ..graph.immutable import immutable
from ..internals.dynamo import compiles_backward
from ..tracing.nodes import GradFn, GradientEdge, NodeData, is_stale
from ..tracing.tracer import collect_nodes
from .backward import Backward, BackwardCall
from .memory import Checkpoints, Memory


def graph_outputs(ends: list[GradientEdge]) -> list[GradientEdge]:
    """Return the gradient edges at which a graph ends: no other given edge depends on them.

    A gradient edge is an autograd node with the index of one of its outputs.

    Args:
        ends: the gradient edges, which may contain duplicates.
    """
    fns, _ = collect_nodes([fn for fn, _ in ends])
    used = {source for fn in fns for source in fn.next_functions}
    return [end for end in dict.fromkeys(ends) if end not in used]


def producers_of(named: list[tuple[str, Tensor]]) -> list[tuple[str, int, str]]:
    """Return for each tensor its variable's name, and the autograd node that created it.

    The node is given by its sequence number and type. Leaves are skipped. Views of tensors that
    were changed in place are skipped, too.

    Args:
        named: (name, tensor) pairs.
    """
    fns = [(name, tensor.grad_fn) for name, tensor in named if not is_stale(tensor)]
    return [(n, int(fn._sequence_nr()), str(fn.name())) for n, fn in fns if fn is not None]


def nodes_with_hidden_parameters(
    cut_off: list[GradFn], graph: Container[GradFn], names: dict[int, str], reached: set[int]
) -> list[GradFn]:
    """Return the nodes upstream of cuts that depend on a parameter outside of the graph.

    A cut is a call that passes no gradient, such as `detach`.

    Args:
        cut_off: the nodes that created the operands of cuts.
        graph: the nodes of the graph.
        names: names of the parameters to search for, by id(). If it is empty, any leaf counts.
        reached: id() of the parameters to ignore.
    """
    found = []
    for fn in cut_off:
        if fn not in graph:
            fns, _ = collect_nodes([fn])
            variables = [id(leaf.variable) for leaf in leaves_of(fns) if leaf not in graph]
            if any(v not in reached and (not names or v in names) for v in variables):
                found.append(fn)
    return found


def roots_of(outputs: Iterable[Any]) -> list[int]:
    """Return sequence numbers of the nodes that computed the roots (losses) of a backward."""
    fns = [one.grad_fn for one in outputs if isinstance(one, Tensor) and one.grad_fn is not None]
    return [int(fn._sequence_nr()) for fn in fns]


def leaves_of(fns: Iterable[GradFn]) -> list[GradFn]:
    """Return the AccumulateGrad nodes among `fns`."""
    return [fn for fn in fns if type(fn).__name__ == "AccumulateGrad"]


def numbers_of(ids: dict[GradFn, int], leaves: dict[int, int]) -> list[int]:
    """Return the sequence number of each node; -1 for leaves and for numbers that occur twice.

    Autograd numbers the nodes of each thread separately. Nodes of two threads may have the same
    number, and cannot be identified by it.

    Args:
        ids: live node -> node id.
        leaves: id() of a leaf -> id of its node.
    """
    numbers: list[int] = list(map(methodcaller("_sequence_nr"), ids))
    for i in leaves.values():
        numbers[i] = -1
    if len(set(numbers)) < len(ids) - len(leaves) + bool(leaves):
        counts = Counter(numbers)
        return [number if counts[number] == 1 else -1 for number in numbers]
    return numbers


_COMPILED = "gradients are not recorded: compiled autograd runs this backward"


class ExecutionOrder:
    """The nodes that a backward ran, in order, as recorded by node hooks."""

    def __init__(self) -> None:
        self._rows: list[Any] | None = None  # None if no node is hooked

    def watch(self) -> None:
        """Begin to record the order. Before this call, `rows` and `nodes` return None."""
        self._rows = []

    @property
    def rows(self) -> list[Any] | None:
        """Return the list to which hooks append three values per node; None without hooks.

        The list is flat, because thousands of tuples would slow down Python's garbage collector.
        """
        return self._rows

    @property
    def nodes(self) -> list[int] | None:
        """Return the ids of the nodes, in the order in which they ran; None without hooks."""
        return None if self._rows is None else [node for node in self._rows[::3] if node >= 0]


@immutable(slots=False, eq=False)
class LiveGraph:
    """A graph whose nodes are alive. While its backward runs, hooks on the nodes fill `ran`."""

    position: int  # index in `Recording.graphs`
    call: BackwardCall
    ends: list[GradientEdge]  # roots of the backward
    ids: dict[GradFn, int]  # the live nodes, in the order of `Graph.nodes`
    own: dict[GradFn, int]  # live nodes that backward can run; the others are upstream of cuts
    reading: NodeData
    numbers: list[int]  # sequence numbers of the nodes; -1 for leaves
    reached: frozenset[int]  # id() of the leaf tensors that backward reaches
    parameters: dict[str, int]  # node id by parameter name
    named: list[tuple[str, Tensor]]  # tensors with the program's names
    failed: bool  # True if an exception ended the recording
    checkpoints: Checkpoints  # segments whose forward runs again in backward
    memory: Memory  # the saved tensors
    ran: ExecutionOrder = field(default_factory=ExecutionOrder)
    notes: dict[int, str] = field(default_factory=dict)  # node id -> why the node has no hook

    @cached_property
    def devices(self) -> frozenset[str]:
        """Return the devices of all nodes' outputs, such as {"cpu", "cuda:0"}."""
        outputs = set(self.reading.columns["outputs"])
        return frozenset(meta.device for metas in outputs for meta in metas if meta is not None)

    def may_be_hooked(self) -> bool:
        """Return True if nodes may be hooked.

        Hooks are not safe while a CUDA graph is captured, or if compiled autograd is on.
        """
        cuda = any(device.startswith("cuda") for device in self.devices)
        if cuda and torch.cuda.is_current_stream_capturing():
            return False  # operators of the hooks would become part of the CUDA graph
        if compiles_backward():
            for node, _ in self.reading.ends:
                self.notes[node] = _COMPILED
            return False
        return True

    def release(self) -> None:
        """Drop the references to autograd nodes, so that they can be freed."""
        self.memory.release()
        for held in (self.ids, self.own, self.ends, self.named):
            held.clear()

    def plain(self, *, failed: bool = False) -> Backward:
        """Return the backward without references to tensors and autograd nodes.

        Args:
            failed: True if backward raised.
        """
        leaves, ran = self.reading.leaves, self.ran.nodes
        return Backward(
            position=self.position,
            call=self.call,
            reading=self.reading,
            numbers=self.numbers,
            reached=self.reached,
            cut_off={key: i for key, i in leaves.items() if key not in self.reached},
            parameters=self.parameters,
            notes=self.notes,
            ran=None if ran is None else tuple(ran),
            failed=failed,
        )
