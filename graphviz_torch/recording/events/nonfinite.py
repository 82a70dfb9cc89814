"""Report the first NaN or Inf of each forward; nonfinite_origin.py finds the node that computed it.

The saved tensors and the roots of a graph are checked when backward begins, while the nodes are
alive. On the CPU one reduction over all of these tensors shows whether any element is non-finite.
Single tensors are checked only if one is.

With `gradients="finite"` a graph is checked only if a forward result was non-finite. Each result
that has a node is summed when it is computed. On the CPU, the elements of the result are read if
the sum is not finite. On other devices the sums stay on the device until backward begins, which
waits for their copy. NaN, Inf and an overflow of the sum cannot be distinguished there. The first
result with NaN and the first result with Inf are both reported, because masks contain -Inf on
purpose.

Tensors without values (meta, fake), sparse tensors and nested tensors are not checked.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from ...findings.rules.values import NonfiniteValue
from ...graph import Graph
from ...internals.frames import local_variables, user_frame, user_frames
from ...internals.functions import TensorBase
from ...internals.guards import (
    dispatch_mode_count,
    no_autograd,
    no_operators,
    set_grad_enabled,
)
from ...internals.hooks.calls import Called
from ...internals.hooks.dispatch import unseen
from ...internals.hooks.modes import unseen_calls, unseen_operators
from ...internals.probes import Probe, fetch
from ...internals.tensors.memory import all_readable, has_memory, is_on_cpu, readable, storage_id
from ...internals.tensors.metadata import HAS_SAVED_TENSOR_DATA
from ...internals.tensors.pytree import tensors
from ...tracing.nodes import GradFn
from ..backward import Backward
from ..gradients.cpu import each_finite, has_finite_sum
from ..listener import BackwardBegan, Listener
from ..live import roots_of
from ..program import Program
from ..program.events import NodeLine
from ..program.source_lines import last_assignment
from ..recorder import Columns
from .nonfinite_origin import BackwardSnapshot, NonfiniteOrigin, read


def take_snapshot(
    fns: Iterable[GradFn], outputs: Iterable[Any], activations: Iterable[Tensor]
) -> BackwardSnapshot | None:
    """Return counts of NaN and Inf in a backward's outputs and saved tensors.

    The result is None if all elements are finite, and while a CUDA graph is captured.

    Args:
        fns: live nodes, in topological order.
        outputs: roots of the backward.
        activations: the saved tensors that are not parameters, buffers or inputs.
    """
    with unseen_calls(), unseen_operators(), unseen():
        given = [tensor for tensor in outputs if isinstance(tensor, Tensor)]
        losses = [(tensor.grad_fn, one) for tensor in given for one in readable(tensor)]
        with no_autograd():
            values = [*all_readable(activations), *(one for _, one in losses)]
            if all(map(is_on_cpu, values)) and each_finite(values):
                return None
            if any(one.is_cuda for one in values) and torch.cuda.is_current_stream_capturing():
                return None  # the operators of a snapshot would become part of the CUDA graph
        with torch.no_grad():
            return BackwardSnapshot(list(fns), losses)


class _FirstNonfinite:
    """A reporter of the first NaN or Inf of each forward in a step.

    After a non-finite loss nothing is reported, since later NaN and Inf may be its consequences.

    Args:
        program: the recorded program; its `events` receive the events.
    """

    def __init__(self, program: Program) -> None:
        self._program, self._events = program, program.events
        # (number of backwards started in the step, sequence numbers of the nodes that scaled the
        # loss, snapshot)
        self._snapshots: list[tuple[int, list[int], BackwardSnapshot]] = []
        self._in_loss = False

    def take_snapshot(self, event: BackwardBegan) -> None:
        """Keep counts of NaN and Inf in a graph, if its forward computed any or may have."""
        live = event.live
        if self._in_loss:
            return
        found = take_snapshot(live.ids, event.outputs, live.memory.activations)
        if found is not None:
            found.names = _names(self._program, event.frame)
            scaled = [] if live.call.loss_scale is None else roots_of(event.outputs)
            self._snapshots.append((self._events.backwards, scaled, found))
            if not any(each.flags for _, _, each in self._snapshots):
                self.note_origins()

    def begin_step(self) -> None:
        """Forget the snapshots of the last step, and whether its loss was non-finite."""
        self._snapshots, self._in_loss = [], False

    def note_origins(self) -> None:
        """Copy the snapshots from their devices, and report the origins of NaN and Inf."""
        snapshots, self._snapshots = self._snapshots, []
        if snapshots:
            read([found for _, _, found in snapshots])
        for backwards, scaled, found in snapshots:
            origin = None if self._in_loss else found.origin()
            # Inf of the scaling itself is not reported, because the GradScaler skips that step.
            if origin is not None and not (origin.number in scaled and origin.nan == 0):
                self._in_loss = origin.in_loss
                self._note(origin, backwards)

    def _note(self, origin: NonfiniteOrigin, backwards: int) -> None:
        event = NonfiniteValue(
            # If saved tensors cannot be read, the node that computed the NaN is unknown.
            operation=origin.operation if HAS_SAVED_TENSOR_DATA else "",
            nan=origin.nan,
            inf=origin.inf if (origin.nan, origin.inf) != (0, 0) else None,
            origin=origin.origin,
            reason=origin.reason,
            in_loss=origin.in_loss,
        )
        line = NodeLine(origin.number)
        self._events.note(event, numbers=[origin.number], since=backwards, where=line)


def _names(program: Program, frame: FrameType | None) -> dict[int, str]:
    """Return names of variables whose tensors require no gradient, by id of the storage.

    The frame that calls backward and its callers are searched.

    A name is followed by the line that assigned it: "advantage, set at train.py:41,".
    """
    found: dict[int, str] = {}
    line = program.line()
    for one in user_frames(user_frame(frame), program.frame):
        for name, value in local_variables(one).items():
            if type(value) is Tensor and not value.requires_grad:
                place = last_assignment(one, name)
                where = f", set at {line(place)}," if place is not None else ""
                found.setdefault(storage_id(value), f"{name}{where}")
    return found


class NonfiniteValues(Listener):
    """Listener that checks every graph for NaN and Inf."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._first = _FirstNonfinite(self.program)

    def on_backward_start(self, event: BackwardBegan) -> None:
        self._first.take_snapshot(event)

    def on_step_end(self, event: None) -> None:
        self._first.begin_step()

    def on_graphs_built(self, backwards: Sequence[Backward], graphs: Sequence[Graph]) -> None:
        self._first.note_origins()


class FiniteResults(Listener):
    """Listener that sums each forward result, and checks the graph if a sum is not finite."""

    needs = ("light",)

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._first = _FirstNonfinite(self.program)
        self._notes: dict[int, str] = {}  # sequence number of a node -> its note in this step
        self._missing = {"NaN", "Inf"}  # not computed by this forward so far
        # Sequence numbers of nodes, and the sums of their results on devices other than the CPU.
        self._sums: list[tuple[int, Probe]] = []
        self._seen = False  # True if a result of the current forward was non-finite

    def on_call_end(self, event: Called) -> None:
        _, _, _, result, _, start, end = event
        if end == start or not self._missing:
            return
        enabled = torch.is_grad_enabled()
        set_grad_enabled(False)  # the sum below must not create a node
        try:
            if type(result) is Tensor and not dispatch_mode_count():  # the usual case
                self._look(end - 1, result)
            else:
                with no_operators():
                    for tensor in tensors(result):
                        self._look(end - 1, tensor)
        except Exception:  # raised for tensors that PyTorch cannot sum
            pass
        finally:
            set_grad_enabled(enabled)

    def on_backward_start(self, event: BackwardBegan) -> None:
        self._read_sums()
        if self._seen:
            self._first.take_snapshot(event)
        self._missing, self._seen = {"NaN", "Inf"}, False  # a new search in the next forward

    def on_step_end(self, event: None) -> None:
        self._first.begin_step()
        self._notes = {}

    def on_graphs_built(self, backwards: Sequence[Backward], graphs: Sequence[Graph]) -> None:
        self._first.note_origins()

    def node_columns(self, backward: Backward) -> Columns:
        self._read_sums()
        found = {backward.node(number): text for number, text in self._notes.items()}
        return {"note": {node: text for node, text in found.items() if node is not None}}

    def _read_sums(self) -> None:
        """Read the sums computed on other devices, and add a note for the first non-finite one."""
        sums, self._sums = self._sums, []
        known = self._seen  # True if a CPU result, which may be an earlier one, was non-finite
        totals = fetch([total for _, total in sums])
        pairs = zip(sums, totals, strict=True)
        bad = [number for (number, _), total in pairs if not all(map(math.isfinite, total))]
        for number in bad[: not known]:
            self._add_note(number, "the first result that is not finite")

    def _look(self, number: int, tensor: Tensor) -> None:
        if not has_memory(tensor):
            return
        if not tensor.is_cpu:
            self._sums.append((number, Probe(torch.sum(tensor, dtype=torch.float32))))
        elif not has_finite_sum(tensor):
            for name in sorted(self._missing):
                is_it = torch.isnan if name == "NaN" else torch.isinf
                count = int(TensorBase.item(torch.sum(is_it(tensor))))
                if count:
                    self._missing.discard(name)
                    of = TensorBase.numel(tensor)
                    self._add_note(
                        number, f"the first result with {name}: {count} of {of} elements"
                    )

    def _add_note(self, number: int, text: str) -> None:
        self._seen = True
        before = self._notes.get(number)
        self._notes[number] = f"{before}; {text}" if before else text
