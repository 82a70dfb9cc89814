"""Record cuts: calls whose operand requires a gradient and whose result does not.

These calls are cuts:

    detach, detach_, .data                           detach on purpose
    item, tolist, numpy, float                       read values into Python
    argmax, long, indices of topk, comparisons       return integers or booleans
    every call under no_grad or inference_mode
    all_gather                                       copies this rank's input without its gradient

A cut is shown in a graph if a node of the graph uses the cut's result, or a tensor computed from
the result. A cut is also shown if it hides a parameter, that is, if the graph reaches the parameter
in no other way. It is unknown how a program uses a number that it read into Python. Such a read is
shown with the next backward, unless an earlier backward reached the hidden parameter.

A call costs the same however many calls precede it. A result that requires no gradient gets a
`Trail`, which refers to the cut that the call makes and to the trails of the call's operands:

    call ──► CutRecord (plain)  ◄── CutOperands (nodes or leaves)   ◄── Trail  ◄── a live tensor
                                                                        │ ◄── a later Trail
                                                                        └──► earlier trails

A `CutOperands` lives as long as any tensor computed from the cut's result. If a node used such a
tensor, or the program read it into Python, the `CutOperands` lives until the next backward. After
that the nodes of the operands may be freed. Before a backward, and when a graph is read, `_take`
follows the trails from used tensors to the cuts. A backward also removes the cuts that it found.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import chain, islice
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from ...findings.rules.cut_derivatives import IncompleteDerivative
from ...graph import Cut, Graph
from ...internals.frames import local_variables, user_frame
from ...internals.functions import METADATA_CALLS, TensorBase, functions_named
from ...internals.hooks.calls import Called, Calling, Raised
from ...internals.hooks.collectives import CollectiveIssued
from ...internals.hooks.optimizers import optimized_parameters
from ...internals.tensors.metadata import tensor_meta
from ...internals.tensors.pytree import tensors
from ...tracing.nodes import GradFn, grad_fn_of, is_alive
from ...tracing.regions import Region
from ...tracing.tracer import collect_nodes
from ..backward import Backward
from ..listener import GraphValues, Listener, Reach, RegionRan
from ..live import LiveGraph, leaves_of, nodes_with_hidden_parameters
from ..program import Program
from ..program.events import UserLine
from ..program.source_lines import line_number
from ..program.tracking import Trail, public_name, with_predecessors
from ..resolver import Resolver
from .inside import InsideTrails, inside_record, used_outside
from .record import (
    MAX_OPERANDS,
    READS,
    CutOperands,
    CutRecord,
    LiveCut,
    caller_of_checkpoint,
    cut_name,
    detached_results,
    leaf_or_maker,
    node_with_constant,
    operand_makers,
    operands_with_gradient,
    tensors_read,
)

_DETACH_: Any = TensorBase.detach_
_Row = tuple[CutRecord, str, int | None]  # a cut, the label of one operand, the operand's node id
_PARAMETER = frozenset((torch.nn.Parameter,))
# Latest reads into Python that are kept. Each may keep a graph alive until the next backward.
_MAX_PENDING_READS = 32
_DETACHING = ("detach", "detach_", "data", "no_grad")
_SCALES = ("Max", "Amax", "Min", "Amin", "Aminmax")  # a detached scale seldom needs a gradient
# Nodes that use a tensor as index or as condition, which needs no gradient.
_CHOOSING = ("Index", "Gather", "Scatter", "Embedding", "Where", "Masked", "Take", "Segment")
_NUMBERS = ("item", "tolist", "float")
_STEPS = functions_named("round floor ceil trunc sign")  # their derivative is 0
_MAX_USES = 32  # nodes that are kept as users of one cut's result; older nodes are dropped


class Cuts(Listener):
    """Listener that records cuts (calls that pass no gradient) since the last backward."""

    needs = ()

    before = frozenset((_DETACH_,))

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._tracker = program.tracker
        self._rows: dict[int, list[_Row]] = {}  # index of a graph -> the cuts shown in it
        self._taken: list[LiveCut] = []  # cuts so far, while a graph is read
        self._hidden: list[GradFn] = []  # nodes upstream of cuts that the graph shows
        self._detached: dict[GradFn, Tensor] = {}  # operands of the running detach_()
        self._records: list[CutRecord] = []
        # Cuts whose operands are all parameters. The key contains function, line and parameters.
        self._parameter_cuts: dict[Any, tuple[CutOperands, ...]] = {}
        self._reads: dict[CutOperands, None] = {}  # latest cuts that read a value into Python
        self._inside: list[InsideTrails] = []  # compiled regions with cuts that ran in this step

    def on_call_start(self, event: Calling) -> None:
        # After `detach_()` the tensor requires no gradient, so its node is read before the call.
        self._detached = operands_with_gradient(event.args)

    def on_call_error(self, event: Raised) -> None:
        self._detached = {}

    def on_collective(self, event: CollectiveIssued) -> None:
        """Handle an all_gather, whose result contains a detached copy of this rank's input."""
        operands = [tensor for tensor in event.given if tensor.requires_grad]
        whole = len(event.filled) == len(event.group.ranks) > 1  # one output tensor for each rank
        if event.kind != "all_gather" or len(operands) != 1 or not whole:
            return
        if self.program.is_here() and torch.is_grad_enabled():
            own = [event.filled[event.group.ranks.index(event.group.rank)]]
            made_by = [leaf_or_maker(operands[0])]
            self._set_trails(
                own, self._new_cut("all_gather", made_by, operands, own, sys._getframe(1)), {}
            )

    def on_call_end(self, event: Called) -> None:
        func, _, _, result, frame, start, end = event
        if self.program.in_compiled_graph and not torch.is_grad_enabled():
            # PyTorch runs compiled graphs under no_grad. Their calls are therefore not checked
            # here; the cuts inside are known from Dynamo's trace.
            self._look(event, cuts=False)
            return
        if end == start:
            if func in METADATA_CALLS:
                return
            if func is torch.tensor and self._reads:
                self._note_constructor(frame)
            if self._detached:
                operands, self._detached = list(self._detached), {}
                cut = self._new_cut("detach_", operands, [result], [result], frame)
                self._set_trails([result], cut, {})
                return
            # Calls of the optimizer's own code, which update parameters, are not cuts.
            steps = self.program.steps
            own = steps.running and steps.is_own_call(frame)
            if self._tracker.known or not own:
                self._look(event, cuts=not own)
            return
        alone = self.program.stack.is_alone
        plain = type(result) is Tensor and alone and result.requires_grad
        if self._tracker.known or not plain:
            self._look(event, cuts=not plain)

    def _note_constructor(self, frame: FrameType) -> None:
        """Mark the numbers that were read in the line that calls torch.tensor."""
        file, line = frame.f_code.co_filename, frame.f_lineno
        for cut in (origin.cut for origin in self._reads):
            place = cut.place
            if cut.name in _NUMBERS and place is not None and place[0].co_filename == file:
                cut.constructs = line_number(place) == line

    def on_region_end(self, event: RegionRan) -> None:
        """Assign a `Trail` (detached history) to results of a region that depend on cuts in it."""
        trails = InsideTrails(event)
        for cut, trail in trails.by_cut.items():
            record = inside_record(cut, event, self.program)
            if record is not None:
                trail.starts = (record,)
                self._records.append(record.cut)
        if trails.by_cut:
            self._inside.append(trails)
        trails.set_trails(event, self._tracker)

    def add_to_regions(
        self, regions: Mapping[int, Region], backward: Backward
    ) -> Mapping[int, Region]:
        return {
            i: replace(
                region, cuts=used_outside(region, backward.numbers[i], self._inside, backward)
            )
            for i, region in regions.items()
        }

    def _look(self, event: Called, *, cuts: bool) -> None:
        """Record a call if it passes no gradient (a cut), and its use of earlier cuts' results.

        Args:
            event: the call.
            cuts: True if the call itself may be a cut.
        """
        func, args, kwargs, result, frame, begin, end = event
        given = tensors(*args, *kwargs.values()) if kwargs else tensors(*args)
        behind = self._tracker.trails(given) if self._tracker.known else {}
        operands = [tensor for tensor in given if tensor.requires_grad] if cuts else []
        if not (operands or behind):
            return
        read = tensors_read(func, given)
        if len(read) < len(given):
            operands = [tensor for tensor in read if tensor.requires_grad] if cuts else []
            behind = self._tracker.trails(read)
            if not (operands or behind):
                return
        if func is TensorBase.__setitem__:  # it returns None, and its result is the changed tensor
            result = args[0]
        made = [result] if type(result) is Tensor else tensors(result)
        if behind:
            self._use(behind, func, (begin, end), made)
        start: tuple[CutOperands, ...] = ()
        if operands:
            if (lost := detached_results(given, made)) is None:
                return
            start = self._cut(func, operands[:MAX_OPERANDS], lost, frame)
        self._set_trails(made, start, behind if begin == end else {}, steps=func in _STEPS)

    def hidden_nodes(self, event: Reach) -> list[GradFn]:
        """Return the nodes upstream of cuts (calls that pass no gradient) that the graph shows.

        After a failure all cuts are shown, because any of them may have caused the failure.
        """
        graph, reached, failed, peek = event
        self._taken = cuts = self._take(failed=failed)
        if not peek:
            self._forget()
        hidden = operand_makers(cuts) if cuts else []
        if hidden and not failed:
            names = {id(tensor): "" for _, tensor in self.program.table.with_replaced()}
            names.update(dict.fromkeys(self.program.steps.ever, ""))  # some are in no module
            logged = operand_makers(one for one in cuts if one.cut.pending and not one.cut.after)
            cut_off = [fn for fn in hidden if fn not in logged]
            # If an earlier backward reached the parameter that a read into Python hides, the
            # program probably read the number for a log. Such a read is not shown.
            hidden = nodes_with_hidden_parameters(cut_off, graph, names, set())
            hidden += nodes_with_hidden_parameters(logged, graph, names, reached)
        self._hidden = hidden
        return hidden

    def on_graph_read(self, live: LiveGraph) -> None:
        shown = set(self._hidden)
        rows = [
            (cut, label, live.ids.get(fn))
            for cut, operands in self._taken
            for label, fn in operands
            if (live.failed or cut.after or fn in shown) and not cut.in_region
        ]
        if live.failed:  # a cut whose operands were freed may have caused the failure, too
            rows += [(cut, cut.labels[0], None) for cut, operands in self._taken if not operands]
        elif rows:
            # A cut that hides no parameter is shown only if nodes of this graph use its result.
            made = set(live.numbers)
            rows = [
                (cut, label, before)
                for cut, label, before in rows
                if before is not None or not cut.after or not made.isdisjoint(cut.after)
            ]
        self._rows[live.position] = rows
        if not live.failed and not live.call.accumulates:
            self._note_incomplete_derivatives(live)
        self._taken, self._hidden = [], []

    def _note_incomplete_derivatives(self, live: LiveGraph) -> None:
        """Report cuts of values computed from an input by which `autograd.grad` differentiates."""
        inputs = {fn for fn in leaves_of(live.own) if type(fn.variable) is Tensor}
        for cut, operands in self._taken if inputs else ():
            after = {fn for fn in live.own if int(fn._sequence_nr()) in cut.after}
            used = [fn for fn in after if not str(fn.name()).startswith(_CHOOSING)]
            if cut.name not in _DETACHING or not used or not cut.varies:
                continue
            for label, fn in operands:
                scales = str(fn.name()).startswith(_SCALES)
                found = set() if scales else inputs.intersection(collect_nodes([fn])[0])
                asked = {id(leaf.variable) for leaf in found}
                # An optimizer's parameter gets an update, for which a part may be constant.
                if asked and not asked <= optimized_parameters(asked):
                    event = IncompleteDerivative(how=cut.name, label=label)
                    called = UserLine(live.call.place)
                    self.events.note(event, cut.place, cut.after, called=called)
                    break

    def on_step_end(self, event: None) -> None:
        self._rows, self._inside = {}, []

    def graph_values(self, graph: Graph, resolver: Resolver) -> GraphValues:
        cuts = [
            Cut(
                cut.name,
                cut.tensor,
                before,
                tuple(dict.fromkeys(resolver.nodes(cut.after))),
                resolver.line(cut.place),
                cut.module,
                label,
                cut.in_forward,
            )
            for cut, label, before in self._rows.get(resolver.backward.position, ())
        ]
        return {"cuts": tuple(cuts)}

    def close(self) -> None:
        # Breaks a reference cycle between a tensor that was detached in place and its former node.
        self._tracker.clear()

    def _use(
        self, behind: Iterable[Trail], func: Any, numbers: tuple[int, int], made: list[Tensor]
    ) -> None:
        """Record that a call used results of cuts (calls that pass no gradient).

        The call either created nodes, or read the results into Python.

        Args:
            behind: the trails of the call's operands.
            func: the called function.
            numbers: the call created nodes with numbers[0] <= sequence number < numbers[1].
            made: results of the call.
        """
        start, end = numbers
        if end > start:
            fns = [fn for one in made if one.requires_grad if (fn := one.grad_fn) is not None]
            reader = node_with_constant(fns, start) if end - start > 1 else None
            after = [fn._sequence_nr() for fn in fns] if reader is None else [reader]
            self._tracker.use(behind, after)
        elif not made and (name := public_name(func)) in READS:
            origins = chain.from_iterable(trail.nearest() for trail in behind)
            for origin in islice(origins, _MAX_PENDING_READS):
                origin.cut.read = name
                self._read(origin)

    def _cut(
        self, func: Any, operands: list[Tensor], made: list[Tensor], frame: FrameType
    ) -> tuple[CutOperands, ...]:
        """Return the `CutOperands` of the cut that a call makes, in a tuple; () if it makes no cut.

        Args:
            func: the called function.
            operands: operands that require a gradient.
            made: results that may be detached.
            frame: the frame of the call.
        """
        key: Any = None
        if _PARAMETER.issuperset(map(type, operands)):
            # If a loop repeats the call, the cut is recorded only once.
            place = self.program.place(frame)
            code, position = (0, 0) if place is None else (id(place[0]), place[1])
            mode = bool(made), torch.is_grad_enabled()
            key = (func, mode, code, position, self.program.module, *map(id, operands))
            if (known := self._parameter_cuts.get(key)) is not None:
                return known
        name = cut_name(func, made)
        origins: tuple[CutOperands, ...] = ()
        if name:
            origins = self._new_cut(name, [*map(leaf_or_maker, operands)], operands, made, frame)
        if key is not None and (made or not name):
            self._parameter_cuts[key] = origins
        return origins

    def _new_cut(
        self,
        name: str,
        made_by: list[Any],
        operands: list[Tensor],
        made: list[Tensor],
        frame: FrameType,
    ) -> tuple[CutOperands]:
        origin = CutOperands(made_by)
        self.program.cuts += 1
        numbers = [int(one._sequence_nr()) for one in made_by if not isinstance(one, Tensor)]
        self.program.cut_numbers.extend(numbers)
        outer = user_frame(frame)
        place, module = self.program.place(outer), self.program.module
        switch = self.program.switches.innermost if name == "no_grad" else None
        if switch is not None and switch.place is not None:
            name = switch.by
            # The effect of `set_grad_enabled(False)` does not end with a block, so the line of this
            # call is shown instead of the cut's own line.
            if name == "switched_off":
                place = switch.place
        elif name == "checkpoint":
            place = self.program.place(caller_of_checkpoint(frame))
        named = {id(t): "" for t in operands}
        if outer is not None and not (
            module and all(type(t) is torch.nn.Parameter for t in operands)
        ):
            for label, value in reversed(local_variables(outer).items()):
                if id(value) in named:
                    named[id(value)] = label
        origin.cut = cut = CutRecord(
            name,
            tensor_meta(made[0] if made else operands[0]),
            [named[id(t)] for t in operands],
            place,
            module,
            self.program.in_forward,
            weakref.ref(origin),
        )
        if made:
            self._records.append(cut)
        else:
            self._read(origin)
        return (origin,)

    def _set_trails(
        self,
        made: list[Tensor],
        start: tuple[CutOperands, ...],
        behind: dict[Trail, None],
        *,
        steps: bool = False,
    ) -> None:
        """Assign a `Trail` (a detached history) to results of a call that require no gradient.

        Args:
            made: results of the call.
            start: the cut that the call made, if any.
            behind: trails of the call's operands.
            steps: True for a step function, whose derivative is 0, as it is for integers.
        """
        cut_off = [tensor for tensor in made if not tensor.requires_grad]
        if cut_off and (start or behind):
            dtype = cut_off[0].dtype  # methods of tensors may be the program's own
            steps = steps or not (dtype.is_floating_point or dtype.is_complex)
            alone = not start and len(behind) == 1 and not steps
            trail = next(iter(behind)) if alone else Trail(start, tuple(behind), steps)
            for tensor in cut_off:
                self._tracker.set_trail(tensor, trail)

    def on_release(self, event: None) -> None:
        """Drop references to nodes that created operands of cuts; references to leaves are kept."""
        for cut in (*self._records, *(origin.cut for origin in self._reads)):
            origin = cut.origin()
            if origin is not None:
                operands = origin.operands
                origin.operands = [
                    one if issubclass(type(one), Tensor) else None for one in operands
                ]

    def _read(self, origin: CutOperands) -> None:
        if origin not in self._reads:
            self._reads[origin] = None
            if len(self._reads) > _MAX_PENDING_READS:
                del self._reads[next(iter(self._reads))]

    def _take(self, *, failed: bool) -> list[LiveCut]:
        """Return the cuts so far, with the nodes that created the operands of each cut.

        Except after a failure, a cut outside of all modules whose operands are leaves is returned
        without operands if no node used its result. An example is a norm of weights for a log.

        Args:
            failed: True after an exception, whose cause may be any of the cuts.
        """
        varying = {trail for trail in self._tracker.used if not trail.steps}
        for trail in with_predecessors(self._tracker.used):
            after = trail.after or []
            for origin in trail.starts:
                origin.cut.after = sorted({*origin.cut.after, *after})[-_MAX_USES:]
                origin.cut.varies |= trail in varying
            for one in trail.behind if after else ():
                one.after = sorted({*(one.after or ()), *after})[-_MAX_USES:]
                varying.update([one] if trail in varying and not one.steps else ())
        for origin in self._reads:
            origin.cut.pending = True
        found = list(dict.fromkeys((*self._records, *(origin.cut for origin in self._reads))))
        known_names = self.program.table.with_replaced() if found else []
        names = {id(tensor): name for name, tensor in reversed(known_names)}
        nodes: dict[int, GradFn] = {}
        cuts = [LiveCut(cut, []) for cut in found]
        for cut, known in cuts:
            origin_of = cut.origin()
            if origin_of is None:
                continue
            if not failed and origin_of.of_leaves and not (cut.in_forward or cut.after):
                continue
            operands = origin_of.operands
            if cut.in_region:
                cut.in_region = is_alive(operands[0])
                operands = operands[:1] if cut.in_region else operands[1:]
            for label, operand in zip(cut.labels, operands, strict=False):
                fn = operand
                if issubclass(type(operand), Tensor):
                    label = names.get(id(operand), label) if cut.named else ""
                    if id(operand) not in nodes:
                        nodes[id(operand)] = grad_fn_of(operand)
                    fn = nodes[id(operand)]
                if fn is not None:
                    known.append((label, fn))
        return cuts

    def _forget(self) -> None:
        """Forget all cuts and all `Trail`s (histories of detached tensors)."""
        self._records, self._parameter_cuts, self._reads = [], {}, {}
        self._tracker.forget_trails()
