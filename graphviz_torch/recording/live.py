"""A graph while its nodes are alive: read before backward, which may free them.

A `LiveGraph` is passed to the listeners. After backward it becomes a `Backward`, which keeps no
node alive. The functions find graph outputs, leaves, and nodes upstream of a cut.
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
    """Return the distinct gradient edges that no other given edge depends on."""
    fns, _ = collect_nodes([fn for fn, _ in ends])
    used = {source for fn in fns for source in fn.next_functions}
    return [end for end in dict.fromkeys(ends) if end not in used]


def made_of(named: list[tuple[str, Tensor]]) -> list[tuple[str, int, str]]:
    """Return variable name, sequence number and type of the node that created each tensor; leaves
    and stale views are skipped.
    """
    fns = [(name, tensor.grad_fn) for name, tensor in named if not is_stale(tensor)]
    return [(n, int(fn._sequence_nr()), str(fn.name())) for n, fn in fns if fn is not None]


def hidden_behind(
    cut_off: list[GradFn], graph: Container[GradFn], names: dict[int, str], reached: set[int]
) -> list[GradFn]:
    """Return the nodes upstream of which there is a parameter that the graph does not contain.

    Args:
        cut_off: makers of the operands of cuts.
        graph: the nodes of the graph.
        names: parameters to search for, by id(); empty: any.
        reached: id() of parameters to ignore.
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
    """Return those of the nodes that accumulate into a leaf's `.grad` (AccumulateGrad)."""
    return [fn for fn in fns if type(fn).__name__ == "AccumulateGrad"]


def numbers_of(ids: dict[GradFn, int], leaves: dict[int, int]) -> list[int]:
    """Return the nodes' sequence numbers; -1 for leaves, and for numbers that occur twice.

    Each thread counts its own nodes, so two nodes with the same number come from different threads.
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
    """The nodes that a backward ran, in order. Node hooks fill it."""

    def __init__(self) -> None:
        self._rows: list[Any] | None = None  # None: no node is hooked

    def watch(self) -> None:
        """Allow hooks on all nodes; without this call `rows` and `nodes` are None."""
        self._rows = []

    @property
    def rows(self) -> list[Any] | None:
        """Return the flat list to which hooks append three values per node; None if hooks are not
        allowed.

        One flat list instead of thousands of tuples keeps Python's garbage collector fast.
        """
        return self._rows

    @property
    def nodes(self) -> list[int] | None:
        """Return the ids of the nodes that ran, in order; None if hooks were not allowed."""
        return None if self._rows is None else [node for node in self._rows[::3] if node >= 0]


@dataclass(frozen=True, eq=False)
class LiveGraph:
    """A graph whose nodes are alive. While its backward runs, node hooks fill `ran`."""

    position: int  # index in `Recording.graphs`
    call: BackwardCall
    ends: list[GradientEdge]  # roots of the backward
    ids: dict[GradFn, int]  # the live nodes, in the order of `Graph.nodes`
    own: dict[GradFn, int]  # the nodes that backward can run; the others are upstream of cuts
    reading: NodeData
    numbers: list[int]  # sequence numbers of the nodes; -1 for leaves
    reached: frozenset[int]  # id() of the leaf tensors that backward reaches
    parameters: dict[str, int]  # node id by parameter name
    named: list[tuple[str, Tensor]]  # tensors with the program's names
    failed: bool  # True if an exception ended the recording
    checkpoints: Checkpoints  # segments whose forward runs again in backward
    memory: Memory  # the saved tensors
    ran: ExecutionOrder = field(default_factory=ExecutionOrder)
    notes: dict[int, str] = field(default_factory=dict)  # by node id: why no hook was set

    @cached_property
    def devices(self) -> frozenset[str]:
        """Return the devices of all nodes' outputs, such as {"cpu", "cuda:0"}."""
        outputs = set(self.reading.columns["outputs"])
        return frozenset(meta.device for metas in outputs for meta in metas if meta is not None)

    def may_be_hooked(self) -> bool:
        """Return True if node hooks are safe: not in a CUDA graph capture or with compiled
        autograd.
        """
        cuda = any(device.startswith("cuda") for device in self.devices)
        if cuda and torch.cuda.is_current_stream_capturing():
            return False  # our operators would become part of the CUDA graph
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
        """Return the backward as plain values.

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
