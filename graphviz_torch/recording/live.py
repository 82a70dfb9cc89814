"""A graph while its nodes are alive, read before backward runs and may free them.

LiveGraph, passed to the listeners ─► backward runs ─► Backward, which holds no node. Functions here
find the roots of a backward, the nodes upstream of a cut, and leaves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from operator import methodcaller
from typing import Any

import torch
from torch import Tensor

from ..internals.dynamo import compiles_backward
from ..tracing.nodes import GradFn, GradientEdge, NodeData, is_stale
from ..tracing.tracer import collect_nodes
from .backward import Backward, BackwardCall
from .memory import Checkpoints, Memory


def sinks(ends: list[GradientEdge]) -> list[GradientEdge]:
    """Return the distinct gradient edges from which no other one is computed."""
    fns, _ = collect_nodes([fn for fn, _ in ends])
    used = {source for fn in fns for source in fn.next_functions}
    return [end for end in dict.fromkeys(ends) if end not in used]


def made_of(named: list[tuple[str, Tensor]]) -> list[tuple[str, int, str]]:
    """Return name, sequence number and type of the node that created each tensor."""
    fns = [(name, tensor.grad_fn) for name, tensor in named if not is_stale(tensor)]
    return [(n, int(fn._sequence_nr()), str(fn.name())) for n, fn in fns if fn is not None]


def hidden_behind(
    cut_off: list[GradFn], graph: Container[GradFn], names: dict[int, str], reached: set[int]
) -> list[GradFn]:
    """Return the nodes upstream of which there is a parameter that the graph lacks.

    Args:
        cut_off: nodes before cuts.
        graph: the nodes of the graph.
        names: the parameters that matter, by id(); all of them if empty.
        reached: id() of the parameters that do not.
    """
    found = []
    for fn in cut_off:
        if fn not in graph:
            fns, _ = collect_nodes([fn])
            variables = [id(leaf.variable) for leaf in leaves_of(fns) if leaf not in graph]
            if any(v not in reached and (not names or v in names) for v in variables):
                found.append(fn)
    return found


def leaves_of(fns: Iterable[GradFn]) -> list[GradFn]:
    """Return the nodes that accumulate into a leaf."""
    return [fn for fn in fns if type(fn).__name__ == "AccumulateGrad"]


def numbers_of(ids: dict[GradFn, int], leaves: dict[int, int]) -> list[int]:
    """Return the nodes' sequence numbers; -1 for leaves, and for numbers that occur twice.

    Threads count separately: of two nodes with one number, one is another thread's.
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
    """The nodes that a backward ran, in order, filled by the node hooks."""

    def __init__(self) -> None:
        self._rows: list[Any] | None = None  # None: no node is hooked

    def watch(self) -> None:
        """Allow hooks on every node."""
        self._rows = []

    @property
    def rows(self) -> list[Any] | None:
        """Return the flat list to which hooks append three values for each node; None if nodes
        may not be hooked.

        It is flat because Python's collector would visit thousands of rows.
        """
        return self._rows

    @property
    def nodes(self) -> list[int] | None:
        """Ids of the nodes that ran, in order; None if nodes could not be hooked. A -1 belongs
        to no node.
        """
        return None if self._rows is None else [node for node in self._rows[::3] if node >= 0]


@dataclass(frozen=True, eq=False)
class LiveGraph:
    """A live graph. While its backward runs, node hooks append to `ran`."""

    position: int  # how many graphs the recording had before this one
    call: BackwardCall
    ends: list[GradientEdge]  # what backward starts from
    ids: dict[GradFn, int]  # the live nodes, in the order of `Graph.nodes`
    own: dict[GradFn, int]  # those that can run: not what lies before a cut
    reading: NodeData
    numbers: list[int]  # sequence numbers of the nodes; -1 for leaves
    reached: frozenset[int]  # id() of the variables that backward reaches
    parameters: dict[str, int]  # nodes by the name of the parameter
    named: list[tuple[str, Tensor]]  # what the program calls its tensors
    failed: bool  # did an exception end the recording
    checkpoints: Checkpoints  # what runs its forward again
    memory: Memory  # what the nodes keep for backward
    ran: ExecutionOrder = field(default_factory=ExecutionOrder)
    notes: dict[int, str] = field(default_factory=dict)  # why nothing is hooked, by node

    @cached_property
    def devices(self) -> frozenset[str]:
        """Return the devices of the results."""
        outputs = set(self.reading.columns["outputs"])
        return frozenset(meta.device for metas in outputs for meta in metas if meta is not None)

    def may_be_hooked(self) -> bool:
        """Return True if nodes may be hooked while backward runs."""
        cuda = any(device.startswith("cuda") for device in self.devices)
        if cuda and torch.cuda.is_current_stream_capturing():
            return False  # what is done on the device would become a part of the CUDA graph
        if compiles_backward():
            for node, _ in self.reading.ends:
                self.notes[node] = _COMPILED
            return False
        return True

    def release(self) -> None:
        """Drop references to live nodes."""
        self.memory.release()
        for held in (self.ids, self.own, self.ends, self.named):
            held.clear()

    def plain(self, *, failed: bool = False) -> Backward:
        """Return the plain values after the backward. `failed`: backward raised."""
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
