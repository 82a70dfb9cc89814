"""One run of backward while recording: the graph before it, the gradients during it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..graph import Cut, Graph, Kept, SavedKind, SavedTensor
from ..internals.dispatch import unseen
from ..tracing.nodes import GradFn, is_stale, read
from ..tracing.tracer import connected
from .cuts import SeenCut
from .failures.in_place import Changes
from .failures.node import Stuck, stuck
from .failures.operands import Error, Failed
from .gradients.recorder import Gradients
from .history import KeptGraphs, SeenKept
from .memory import saved
from .modules import Modules
from .source_lines import Place
from .transfers import Seen

End = tuple[GradFn, int]  # a live node and the number of its output


class Run:
    """A graph that was read while its nodes were alive, and what backward then did.

    Args:
        ends: what backward starts from.
        named: names and tensors; the first of a node wins.
        parameters: the model's parameters by name.
        position: how many runs the recording had before this one.
        reached: id() of the variables that those reached.
        cuts: where gradients were cut on the way here.
        failed: an exception ended the recording; any of the cuts may be why.
    """

    def __init__(
        self,
        ends: list[End],
        named: list[tuple[str, Tensor]],
        parameters: list[tuple[str, Tensor]],
        position: int,
        reached: set[int],
        cuts: list[SeenCut],
        failed: bool = False,
    ) -> None:
        names = {id(tensor): name for name, tensor in reversed(parameters)}
        ids, edges = connected([fn for fn, _ in ends])
        if not failed:
            for cut in cuts:
                if cut.aside:
                    cut.fns = []
        hidden = _behind(cuts)
        if not failed:
            logged = _behind(cut for cut in cuts if cut.pending and not cut.after)
            cut_off = [fn for fn in hidden if fn not in logged]
            # A number read of what an earlier backward reached, as a loss to log it, cut nothing.
            hidden = _hidden(cut_off, ids, names, set()) + _hidden(logged, ids, names, reached)
        own = ids
        if hidden:  # what lies before a cut is drawn too, before what came after
            ids, edges = connected(hidden + [fn for fn, _ in ends])
        self.position = position
        self.loss_scale: Tensor | None = None
        self.error: Error | None = None  # that backward raised
        self.place: Place | None = None  # the line that called it
        self.failed: Failed | None = None  # the exception that ended the recording
        self.stuck: Stuck | None = None  # where backward ended with an error
        self.others: list[tuple[str, int, str]] = []  # then: the caller's other tensors
        self.keeps = False  # did backward retain the graph
        self.grads = False  # was it autograd.grad
        self.calls: list[Place] = []  # the user's lines that called it, the innermost first
        self.step = 0  # how many steps of optimizers it came after
        self.kept: SeenKept | None = None  # graphs of earlier steps that are alive
        self.uncleared: Place | None = None  # where an optimizer used gradients it had used before
        self.ids = ids  # the live nodes, while it runs
        self._own = own  # those that can run: not what lies before a cut
        self.reading = read(ids, edges, ends, named)
        self.leaves = self.reading.leaves  # nodes of the leaves, by id() of the variable
        self.reached: set[int] = set(self.leaves)  # id() of the variables that backward reaches
        if hidden:
            self.reached = {id(leaf.variable) for leaf in _leaves(own)}
        # The nodes of the leaves that it does not reach, for their ways were cut, by id().
        self.cut_off = {key: i for key, i in self.leaves.items() if key not in self.reached}
        # By name, for another tensor may take the place of one.
        self.parameters = {names[key]: i for key, i in self.leaves.items() if key in names}
        self.numbers: list[int] = [fn._sequence_nr() for fn in ids]  # of the nodes; -1 for leaves
        for i in self.leaves.values():
            self.numbers[i] = -1
        if len(set(self.numbers)) < len(ids) - len(self.leaves) + bool(self.leaves):
            self.numbers = _unique(self.numbers)
        shown = set(hidden)
        self._cuts = [
            (cut, label, self.ids.get(fn))
            for cut in cuts
            for label, fn in zip(cut.labels, cut.fns, strict=False)
            if failed or cut.after or fn in shown
        ]
        if failed:  # a cut of which nothing is left may be the reason too
            self._cuts += [(cut, cut.labels[0], None) for cut in cuts if not cut.fns]
        for cut in cuts:
            cut.fns = []
        self._saved: dict[int, tuple[SavedTensor, ...]] = {}
        self._notes: dict[int, str] = {}
        self._gradients: Gradients | None = None
        self._asked: list[End] = []
        self._named = named  # while it runs

    def look(self, graphs: KeptGraphs, step: int) -> None:
        """Look for graphs of earlier steps that are still alive, after so many optimizer steps."""
        known = zip(self.ids, self.numbers, strict=True)
        nodes = {fn: number for fn, number in known if number >= 0}
        self.kept = graphs.see(nodes, self._own, step, self.place)

    def keep(self, known: list[tuple[SavedKind, Tensor]]) -> None:
        """Note what the nodes keep for backward. `known`: what kind of tensor it may be."""
        with torch._C.DisableTorchFunction():  # no subclass is to see what is read
            self._saved, self._notes = saved(list(self.ids), known)

    def start(self, asked: list[End]) -> None:
        """Hook every node, unless a CUDA graph is captured.

        Args:
            asked: the inputs of `autograd.grad`, in order.
        """
        self._asked = asked
        outputs = self.reading.columns["outputs"]
        devices = {meta.device for metas in set(outputs) for meta in metas if meta is not None}
        cuda = any(device.startswith("cuda") for device in devices)
        if cuda and torch.cuda.is_current_stream_capturing():
            return  # what we do on the device would become a part of the CUDA graph
        nodes = zip(self.ids, outputs, strict=True)
        self._gradients = Gradients(nodes, cuda, mixed=len(devices) > 1)
        self._gradients.__enter__()

    def fail(self, error: BaseException, changes: Changes, before: Sequence[Run]) -> None:
        """Look, while the nodes are alive, at which one backward ended with an error.

        Args:
            error: as it came from the engine.
            changes: what was changed in place.
            before: the runs before this one.
        """
        self.error = Error.of(error)
        fns = {i: fn for fn, i in self.ids.items() if fn in self._own}
        order: list[int] = []
        if self._gradients is not None:
            self._gradients.fail()
            order = self._gradients.order
        # The error is to pass, whatever the user's tensors are.
        with torch._C.DisableTorchFunction(), suppress(Exception):
            self.others = _made_of(self._named)
            self.stuck = stuck(
                fns,
                order,
                error,
                changes,
                lambda node: any(run.spent(self.numbers[node]) for run in before),
            )

    def finish(self, gradients: Any = None) -> None:
        """Remove the hooks and hold no live node any more."""
        if self._gradients is not None:
            # The engine hands these out without running their nodes.
            self._gradients.add(
                (self.ids[fn], output_nr, gradient)
                for (fn, output_nr), gradient in zip(self._asked, gradients or (), strict=False)
                if fn in self.ids
            )
            self._gradients.__exit__()
        self.ids.clear()
        self._own.clear()
        self._named = []
        self._asked = []

    def unhook(self) -> None:
        """Take off what is left where an interrupt ended `start` or `finish`."""
        if self._gradients is not None:
            self._gradients.unhook()

    def annotated(self, modules: Modules) -> Graph:
        """The graph with all that is known of its nodes, its cuts, and the scale of its loss."""
        columns = self.reading.columns
        length = len(self.numbers)
        made = modules.found(self.numbers)
        for name, i in self.parameters.items():
            made["module"][i] = made["scope"][i] = name.rpartition(".")[0]
            made["source"][i] = ""
        rows: dict[str, list[Any]] = dict(made)
        if self._notes:
            notes = columns["note"]
            rows["note"] = [note or self._notes.get(i, "") for i, note in enumerate(notes)]
        rows["saved"] = _column(self._saved, length, ())
        if self._gradients is not None:
            statistics = self._gradients.statistics(columns["outputs"])
            order = {node: k for k, node in enumerate(self._gradients.order)}
            rows["grad_outputs"] = _column(statistics, length, ())
            rows["order"] = _column(order, length, None)
            rows["seconds"] = _column(self._gradients.seconds(), length, None)
        graph = self.reading.graph(**rows)
        line = modules.lines()
        cuts = [
            Cut(
                cut.name,
                cut.tensor,
                before,
                tuple(dict.fromkeys(self.made(cut.after))),
                line(cut.place),
                cut.module,
                label,
                cut.in_forward,
            )
            for cut, label, before in self._cuts
        ]
        scale = None
        if self.loss_scale is not None:
            with unseen(), suppress(RuntimeError):  # a device that has failed tells no value
                scale = float(self.loss_scale)
        return replace(
            graph,
            cuts=tuple(cuts),
            kept=self._kept(modules),
            uncleared=line(self.uncleared),
            loss_scale=scale,
        )

    def _kept(self, modules: Modules) -> Kept | None:
        if self.kept is None:
            return None
        steps, number, label, inside = self.kept
        if number is None:
            return Kept(steps, label)
        where = modules.found([number])["source"][0]
        return Kept(steps, label, where, self._by_number.get(number) if inside else None)

    def spent(self, number: int) -> bool:
        """Did backward run the node with this sequence number, and free what it kept."""
        return not self.keeps and self.ran(number)

    def ran(self, number: int) -> bool:
        """Did backward run the node with this sequence number, as far as is known."""
        return number in self._ran

    def made(self, numbers: Iterable[int]) -> list[int]:
        """Ids of the nodes with these sequence numbers."""
        found = (self._by_number.get(number) for number in numbers)
        return [i for i in found if i is not None]

    @cached_property
    def _ran(self) -> set[int]:
        """Sequence numbers of the nodes that backward ran; of all, if that was not recorded."""
        if self._gradients is None:
            return set(self._by_number)
        return {self.numbers[node] for node in self._gradients.order} - {-1}

    @cached_property
    def _by_number(self) -> dict[int, int]:
        return {number: i for i, number in enumerate(self.numbers) if number >= 0}

    def node_of(self, seen: Seen) -> int | None:
        """The node that a copy belongs to: what backward was running, or what it made."""
        if seen.run:
            return seen.node if seen.run == self.position + 1 else None
        return next(iter(self.made(seen.numbers)), None)


def sinks(ends: list[End]) -> list[End]:
    """The ends that no other end is computed from, each once."""
    fns, _ = connected([fn for fn, _ in ends])
    used = {source for fn in fns for source in fn.next_functions}
    return [end for end in dict.fromkeys(ends) if end not in used]


def _made_of(named: list[tuple[str, Tensor]]) -> list[tuple[str, int, str]]:
    """Of tensors that were computed: name, and sequence number and kind of the node that did."""
    fns = [(name, tensor.grad_fn) for name, tensor in named if not is_stale(tensor)]
    return [(n, int(fn._sequence_nr()), str(fn.name())) for n, fn in fns if fn is not None]


def _behind(cuts: Iterable[SeenCut]) -> list[GradFn]:
    """What made the operands of the cuts, each once."""
    return list(dict.fromkeys(fn for cut in cuts for fn in cut.fns))


def _hidden(
    cut_off: list[GradFn], seen: Container[GradFn], names: dict[int, str], reached: set[int]
) -> list[GradFn]:
    """Those behind which there is a parameter that the graph does not have.

    Args:
        cut_off: nodes before cuts.
        seen: the nodes of the graph.
        names: the parameters that matter, by id(); all of them if empty.
        reached: id() of the parameters that do not.
    """
    found = []
    for fn in cut_off:
        if fn not in seen:
            fns, _ = connected([fn])
            variables = [id(leaf.variable) for leaf in _leaves(fns) if leaf not in seen]
            if any(v not in reached and (not names or v in names) for v in variables):
                found.append(fn)
    return found


def _leaves(fns: Iterable[GradFn]) -> list[GradFn]:
    return [fn for fn in fns if type(fn).__name__ == "AccumulateGrad"]


def _unique(numbers: list[int]) -> list[int]:
    """-1 in place of numbers that are there twice: threads count apart, and one is another's."""
    counts = Counter(numbers)
    return [number if counts[number] == 1 else -1 for number in numbers]


def _column(values: Mapping[int, Any], length: int, missing: Any) -> list[Any]:
    """A list with the value of each node."""
    column = [missing] * length
    for i, value in values.items():
        column[i] = value
    return column
