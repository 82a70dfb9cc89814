"""One backward while its nodes are alive: read before it runs, hooked while it runs.

LiveBackward(ends, ...)     all is read that backward may free
    .hook(...)              hooks on its nodes
    .fail(error, ...)       only if it raised
    .finish(...)            hooks off ─► Backward, which holds no node
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from ..graph import SavedKind, SavedTensor
from ..internals.dynamo import compiles_backward
from ..internals.hooks.modes import unseen_calls
from ..internals.tensors.norms import Norms
from ..tracing.nodes import read
from ..tracing.tracer import connected
from .backward import Backward
from .cuts.record import LiveCut
from .failures.in_place import Changes
from .failures.node import FailingNode, find_failing_node, find_node_in_checkpoint
from .failures.operands import Error
from .gradients.finite import FiniteGradients
from .gradients.recorder import Gradients
from .live_nodes import End, behind, hidden_behind, leaves_of, made_of, numbers_of
from .memory import saved
from .source_lines import Place
from .steps.history import GraphHistory, Retention

_COMPILED = "gradients are not recorded: compiled autograd runs this backward"


class BackwardCall(NamedTuple):
    """How a backward was called."""

    place: Place | None = None
    callers: list[Place] = []  # noqa: RUF012
    step: int = 0
    retains: bool = False
    accumulates: bool = True
    loss_scale: Tensor | None = None
    uncleared: Place | None = None


class LiveBackward:
    """A graph that is read while its nodes are alive, and what backward then does.

    Args:
        ends: what backward starts from.
        named: names and tensors; the first of a node wins.
        parameters: the model's parameters by name.
        cuts: where gradients were cut on the way here.
        call: how it was called.
        position: how many backwards the recording had before this one.
        reached: id() of the variables that those reached.
        failed: an exception ended the recording; any of the cuts may be why.
    """

    def __init__(
        self,
        ends: list[End],
        named: list[tuple[str, Tensor]],
        parameters: list[tuple[str, Tensor]],
        cuts: list[LiveCut],
        call: BackwardCall,
        *,
        position: int,
        reached: set[int],
        failed: bool = False,
    ) -> None:
        names = {id(tensor): name for name, tensor in reversed(parameters)}
        ids, edges = connected([fn for fn, _ in ends])
        hidden = behind(cuts)
        if not failed:
            logged = behind(one for one in cuts if one.cut.pending and not one.cut.after)
            cut_off = [fn for fn in hidden if fn not in logged]
            # A number read of what an earlier backward reached, as a loss to log it, cut nothing.
            hidden = hidden_behind(cut_off, ids, names, set()) + hidden_behind(
                logged, ids, names, reached
            )
        own = ids
        if hidden:  # what lies before a cut is drawn too, before what came after
            ids, edges = connected(hidden + [fn for fn, _ in ends])
        self.call = call
        self.position = position
        self.ids = ids  # the live nodes
        self._own = own  # those that can run: not what lies before a cut
        self._reading = read(ids, edges, ends, named)
        leaves = self._reading.leaves
        self.reached = set(leaves)  # id() of the variables that backward reaches
        if hidden:
            self.reached = {id(leaf.variable) for leaf in leaves_of(own)}
        # By name, for another tensor may take the place of one.
        self._parameters = {names[key]: i for key, i in leaves.items() if key in names}
        self._numbers = numbers_of(ids, leaves)
        shown = set(hidden)
        self._cuts = [
            (cut, label, ids.get(fn))
            for cut, operands in cuts
            for label, fn in operands
            if failed or cut.after or fn in shown
        ]
        if failed:  # a cut of which nothing is left may be the reason too
            self._cuts += [(cut, cut.labels[0], None) for cut, operands in cuts if not operands]
        self._saved: dict[int, tuple[SavedTensor, ...]] = {}
        self._notes: dict[int, str] = {}
        self._activations: list[Tensor] | None = None
        self._gradients: Gradients | FiniteGradients | None = None
        self._weights: Norms | None = None
        self._asked: list[End] = []
        self._named = named
        self._retention: Retention | None = None
        self._error: Error | None = None
        self._failing_node: FailingNode | None = None
        self._computed: list[tuple[str, int, str]] = []

    @property
    def place(self) -> Place | None:
        """The line that called it."""
        return self.call.place

    def variables(self) -> list[Tensor]:
        """The leaves that it reaches."""
        return [fn.variable for fn in leaves_of(self._own)]

    def look(self, graphs: GraphHistory) -> None:
        """Look for graphs of earlier steps that are still alive."""
        known = zip(self.ids, self._numbers, strict=True)
        nodes = {fn: number for fn, number in known if number >= 0}
        self._retention = graphs.see(nodes, self._own, self.call.step, self.call.place)

    def keep(self, known: list[tuple[SavedKind, Tensor]]) -> None:
        """Note what the nodes keep for backward. `known`: what kind of tensor it may be."""
        with unseen_calls():  # no subclass is to see what is read
            self._saved, self._notes, self._activations = saved(list(self.ids), known)

    def activations(self) -> list[Tensor] | None:
        """What the nodes keep that the forward made, given out once; None where it was not read."""
        found, self._activations = self._activations, None
        return found

    @property
    def has_notes(self) -> bool:
        """Was a result of the forward noted, as not finite."""
        return bool(self._notes)

    def note(self, notes: Mapping[int, str]) -> None:
        """What there is to say of nodes, by their sequence numbers."""
        known = {number: i for i, number in enumerate(self._numbers) if number in notes}
        self._notes |= {known[number]: text for number, text in notes.items() if number in known}

    def hook(self, asked: list[End], *, finite: bool = False) -> None:
        """Hook every node, unless a CUDA graph is captured.

        Args:
            asked: the inputs of `autograd.grad`, in order.
            finite: tell only which gradients are not finite.
        """
        self._asked = asked
        outputs = self._reading.columns["outputs"]
        devices = {meta.device for metas in set(outputs) for meta in metas if meta is not None}
        cuda = any(device.startswith("cuda") for device in devices)
        if cuda and torch.cuda.is_current_stream_capturing():
            return  # what we do on the device would become a part of the CUDA graph
        if compiles_backward():
            self._notes |= dict.fromkeys((node for node, _ in self._reading.ends), _COMPILED)
            return
        if not finite:
            leaves = set(self._parameters.values())
            self._weights = Norms({i: fn.variable for fn, i in self.ids.items() if i in leaves})
        nodes = zip(self.ids, outputs, strict=True)
        if finite and devices == {"cpu"}:
            self._gradients = FiniteGradients(nodes)
        else:
            self._gradients = Gradients(nodes, cuda, mixed=len(devices) > 1, finite=finite)
        self._gradients.__enter__()

    def fail(
        self,
        error: BaseException,
        changes: Changes,
        before: Sequence[Backward],
        inner: FailingNode | None,
    ) -> None:
        """Look, while the nodes are alive, at which one backward ended with an error.

        Args:
            error: as it came from the engine.
            changes: what was changed in place.
            before: the backwards before this one.
            inner: the node at which a backward failed that a node of this one ran.
        """
        self._error = Error.of(error)
        fns = {i: fn for fn, i in self.ids.items() if fn in self._own}
        order: list[int] = []
        if self._gradients is not None:
            self._gradients.fail()
            order = self._gradients.order
        # The error is to pass, whatever the user's tensors are.
        with unseen_calls(), suppress(Exception):
            self._computed = made_of(self._named)
            self._failing_node = find_failing_node(
                fns,
                order,
                error,
                changes,
                lambda node: any(other.freed(self._numbers[node]) for other in before),
            )
        if self._failing_node is None and inner is not None and order:
            self._failing_node = replace(inner, node=order[-1], leaf=None)

    def unhook(self) -> None:
        """Take the hooks off, if there are any."""
        if self._gradients is not None:
            self._gradients.unhook()

    def finish(self, gradients: Iterable[Tensor | None] = ()) -> Backward:
        """Take the hooks off, and hold no live node any more.

        Args:
            gradients: what `autograd.grad` returned.
        """
        if self._gradients is not None:
            # The engine hands these out without running their nodes.
            self._gradients.add(
                (self.ids[fn], output_nr, gradient)
                for (fn, output_nr), gradient in zip(self._asked, gradients, strict=False)
                if fn in self.ids
            )
            self._gradients.__exit__()
        leaves = self._reading.leaves
        found = Backward(
            position=self.position,
            reading=self._reading,
            numbers=self._numbers,
            reached=frozenset(self.reached),
            cut_off={key: i for key, i in leaves.items() if key not in self.reached},
            parameters=self._parameters,
            cuts=self._cuts,
            saved=self._saved,
            notes=self._notes,
            retention=self._retention,
            gradients=self._gradients,
            weights=self._weights,
            error=self._error,
            failing_node=self._failing_node,
            computed=self._computed,
            **self.call._asdict(),
        )
        self.ids, self._own, self._named, self._asked, self._activations = {}, {}, [], [], None
        return found


class InnerBackward(NamedTuple):
    """A backward that a node of another one runs: that of a reentrant checkpoint."""

    ends: list[End]

    def failing_node(self, error: BaseException, changes: Changes) -> FailingNode | None:
        """The node at which it ended with an error, while its nodes are alive."""
        fns, _ = connected([fn for fn, _ in self.ends])
        numbered = {i: fn for fn, i in fns.items()}
        with unseen_calls():
            return find_node_in_checkpoint(numbered, error, changes)
