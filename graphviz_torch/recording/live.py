"""A graph while its nodes are alive: read before backward runs, for backward may free them.

LiveGraph, told to the listeners ─► backward runs ─► Backward, which holds no node
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..internals.dynamo import compiles_backward
from ..tracing.nodes import GradFn, Reading
from .backward import Backward, BackwardCall
from .checkpoints import Checkpoints
from .live_nodes import End, leaves_of
from .memory import Memory

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
    """A graph that is alive, and what the listeners tell each other of it."""

    position: int  # how many graphs the recording had before this one
    call: BackwardCall
    ends: list[End]  # what backward starts from
    ids: dict[GradFn, int]  # the live nodes, in the order of `Graph.nodes`
    own: dict[GradFn, int]  # those that can run: not what lies before a cut
    reading: Reading
    numbers: list[int]  # sequence numbers of the nodes; -1 for leaves
    reached: frozenset[int]  # id() of the variables that backward reaches
    parameters: dict[str, int]  # nodes by the name of the parameter
    named: list[tuple[str, Tensor]]  # what the program calls its tensors
    failed: bool  # did an exception end the recording
    checkpoints: Checkpoints  # what runs its forward again
    memory: Memory  # what the nodes keep for backward
    ran: ExecutionOrder = field(default_factory=ExecutionOrder)
    notes: dict[int, str] = field(default_factory=dict)  # what there is to say of nodes

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
                self.note(node, _COMPILED)
            return False
        return True

    def variables(self) -> list[Tensor]:
        """The leaves that it reaches."""
        return [fn.variable for fn in leaves_of(self.own)]

    def note(self, node: int, text: str) -> None:
        """Say something of a node; what was said of it before stays."""
        self.notes.setdefault(node, text)

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
