"""A graph while its nodes are alive: read before backward runs, for backward may free them.

LiveGraph, told to the listeners ─► backward runs ─► Backward, which holds no node

The functions tell of live nodes where a backward starts, what lies behind a cut, which are leaves.
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
    """The ends that no other end is computed from, each once."""
    fns, _ = collect_nodes([fn for fn, _ in ends])
    used = {source for fn in fns for source in fn.next_functions}
    return [end for end in dict.fromkeys(ends) if end not in used]


def made_of(named: list[tuple[str, Tensor]]) -> list[tuple[str, int, str]]:
    """Of tensors that were computed: name, and sequence number and kind of the node that did."""
    fns = [(name, tensor.grad_fn) for name, tensor in named if not is_stale(tensor)]
    return [(n, int(fn._sequence_nr()), str(fn.name())) for n, fn in fns if fn is not None]


def hidden_behind(
    cut_off: list[GradFn], graph: Container[GradFn], names: dict[int, str], reached: set[int]
) -> list[GradFn]:
    """Those behind which there is a parameter that the graph does not have.

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
    """The nodes that accumulate into a leaf."""
    return [fn for fn in fns if type(fn).__name__ == "AccumulateGrad"]


def numbers_of(ids: dict[GradFn, int], leaves: dict[int, int]) -> list[int]:
    """The nodes' sequence numbers; -1 for leaves, and where a number is there twice.

    Threads count apart: of two nodes with one number, one is another thread's.
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
    """The nodes that a backward has run, in its order: told by what hooks them."""

    def __init__(self) -> None:
        self._rows: list[Any] | None = None  # None: no node is hooked

    def watch(self) -> None:
        """Every node may be hooked from now on."""
        self._rows = []

    @property
    def rows(self) -> list[Any] | None:
        """To extend by three values for each node that runs, first by the node; None: hook none.

        It is flat: of rows Python's collector would look at thousands.
        """
        return self._rows

    @property
    def nodes(self) -> list[int] | None:
        """They; None where no node may be hooked. The row of -1 is of none."""
        return None if self._rows is None else [node for node in self._rows[::3] if node >= 0]


@dataclass(frozen=True, eq=False)
class LiveGraph:
    """A graph that is alive. While its backward runs, what hooks its nodes adds to `ran`."""

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
        """Those of the results."""
        outputs = set(self.reading.columns["outputs"])
        return frozenset(meta.device for metas in outputs for meta in metas if meta is not None)

    def may_be_hooked(self) -> bool:
        """May the nodes be hooked, while backward runs."""
        cuda = any(device.startswith("cuda") for device in self.devices)
        if cuda and torch.cuda.is_current_stream_capturing():
            return False  # what is done on the device would become a part of the CUDA graph
        if compiles_backward():
            for node, _ in self.reading.ends:
                self.notes[node] = _COMPILED
            return False
        return True

    def release(self) -> None:
        """Hold no live node any more."""
        self.memory.release()
        for held in (self.ids, self.own, self.ends, self.named):
            held.clear()

    def plain(self, *, failed: bool = False) -> Backward:
        """What is left when it is over. `failed`: backward raised."""
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
