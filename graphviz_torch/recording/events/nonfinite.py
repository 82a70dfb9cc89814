"""The first NaN or Inf of each forward, as an event; nonfinite_origin.py finds its node.

Looked at when backward begins, while the nodes are alive: what they keep, and what backward starts
from. On the CPU one reduction for all tells whether there is any; only then is each looked at.

Of `gradients="finite"` the graph is looked at only where a result was not finite. Each result that
has a node is added up as it is made: the sum is finite if all elements are, and only where it is
not the elements are looked at. On other devices than the CPU the sums stay there until backward,
which waits for one copy of them, and tell neither NaN from Inf nor what overflows. Not looked at:
what has no values (meta, fake), sparse and nested results. The first result with NaN and the first
with Inf are noted: a mask has -Inf on purpose.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from ...graph import Graph
from ...graph.events import NonfiniteValue
from ...internals.functions import TensorBase
from ...internals.guards import (
    no_autograd,
    no_functions,
    no_operators,
    set_grad_enabled,
    watched_operators,
)
from ...internals.hooks.calls import Called
from ...internals.hooks.dispatch import unseen
from ...internals.hooks.modes import unseen_calls, unseen_operators
from ...internals.tensors.memory import all_readable, has_memory, is_on_cpu, readable
from ...internals.tensors.pytree import tensors
from ...internals.tensors.saved_tensors import HAS_SAVED_TENSOR_DATA
from ...tracing.nodes import GradFn
from ..backward import Backward
from ..gradients.cpu import each_finite, sums_up
from ..listener import BackwardBegan, Columns, Listener
from ..program import Program
from ..program.events import Events, NodeLine
from .nonfinite_origin import Birth, Look, read


def look(
    fns: Iterable[GradFn], outputs: Iterable[Any], activations: Iterable[Tensor]
) -> Look | None:
    """Examine the roots of a backward; return None if all is finite or unreadable.

    Args:
        fns: live nodes, inputs before users.
        outputs: what backward starts from.
        activations: what the nodes keep, parameters left out.
    """
    with unseen_calls(), unseen_operators(), unseen():
        given = [tensor for tensor in outputs if isinstance(tensor, Tensor)]
        losses = [(tensor.grad_fn, one) for tensor in given for one in readable(tensor)]
        with no_autograd():
            values = [*all_readable(activations), *(one for _, one in losses)]
            if all(is_on_cpu(one) for one in values) and each_finite(values):
                return None
            if any(one.is_cuda for one in values) and torch.cuda.is_current_stream_capturing():
                return None  # what we do on the device would become a part of the CUDA graph
        with torch.no_grad():
            return Look(list(fns), losses)


class _Births:
    """Notes the first NaN or Inf of each forward, until a loss is not finite: later ones follow
    from it.

    Notes the first NaN or Inf of each forward, until a loss is not finite: the rest follows.

    Args:
        events: where it notes them.
    """

    def __init__(self, events: Events) -> None:
        self._events = events
        self._looks: list[tuple[int, bool, Look]] = []  # backwards so far, is the loss scaled
        self._in_loss = False

    def look(self, event: BackwardBegan) -> None:
        """Check whether the forward of this backward made NaN or Inf."""
        live = event.live
        if self._in_loss:
            return
        found = look(live.ids, event.outputs, live.memory.activations)
        if found is not None:
            scaled = live.call.loss_scale is not None
            self._looks.append((self._events.backwards, scaled, found))
            if not any(each.flags for _, _, each in self._looks):
                self.conclude()

    def begin_step(self) -> None:
        """Forget the last step's loss."""
        self._looks, self._in_loss = [], False

    def conclude(self) -> None:
        """Note the results computed on devices.

        Note what is known on the devices.
        """
        looks, self._looks = self._looks, []
        if looks:
            read([found for _, _, found in looks])
        for backwards, scaled, found in looks:
            birth = None if self._in_loss else found.birth()
            # A scaled loss may overflow: the scaler skips that step.
            if birth is not None and not (scaled and birth.nan == 0):
                self._in_loss = birth.in_loss
                self._note(birth, backwards)

    def _note(self, birth: Birth, backwards: int) -> None:
        event = NonfiniteValue(
            # Of what backward starts from alone it is not known that this made it.
            operation=birth.operation if HAS_SAVED_TENSOR_DATA else "",
            nan=birth.nan,
            inf=birth.inf if (birth.nan, birth.inf) != (0, 0) else None,
            origin=birth.origin,
            reason=birth.reason,
            in_loss=birth.in_loss,
        )
        line = NodeLine(birth.number)
        self._events.note(event, numbers=[birth.number], since=backwards, where=line)


class NonfiniteValues(Listener):
    """Examines each graph."""

    needs = ("every_call",)

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._births = _Births(self.events)

    def on_backward_start(self, event: BackwardBegan) -> None:
        self._births.look(event)

    def on_step_end(self, event: None) -> None:
        self._births.begin_step()

    def on_graphs_built(self, backwards: Sequence[Backward], graphs: Sequence[Graph]) -> None:
        self._births.conclude()


class FiniteResults(Listener):
    """Examines results of calls that created nodes, and the graph if one was not finite."""

    needs = ("light",)

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._births = _Births(self.events)
        self._notes: dict[int, str] = {}  # of the step, by the sequence number of the node
        self._missing = {"NaN", "Inf"}  # what no result has had so far
        self._sums: list[tuple[int, Tensor]] = []  # on other devices
        self._seen = False  # was any of this forward not finite

    def on_call_end(self, event: Called) -> None:
        _, _, _, result, _, start, end = event
        if end == start or not self._missing:
            return
        enabled = torch.is_grad_enabled()
        set_grad_enabled(False)  # no graph is to see it
        try:
            if type(result) is Tensor and not watched_operators():  # as most
                self._look(end - 1, result)
            else:
                with no_operators():
                    for tensor in tensors(result):
                        self._look(end - 1, tensor)
        except Exception:  # of a kind that PyTorch cannot add up
            pass
        finally:
            set_grad_enabled(enabled)

    def on_backward_start(self, event: BackwardBegan) -> None:
        self._sum_up()
        if self._seen:
            self._births.look(event)
        self._missing, self._seen = {"NaN", "Inf"}, False  # the next forward is looked at anew

    def on_step_end(self, event: None) -> None:
        self._births.begin_step()
        self._notes = {}

    def on_graphs_built(self, backwards: Sequence[Backward], graphs: Sequence[Graph]) -> None:
        self._births.conclude()

    def node_columns(self, backward: Backward) -> Columns:
        self._sum_up()
        found = {backward.node(number): text for number, text in self._notes.items()}
        return {"note": {node: text for node, text in found.items() if node is not None}}

    def _sum_up(self) -> None:
        """Note the results computed on other devices.

        Note what is known on other devices.
        """
        sums, self._sums = self._sums, []
        known = self._seen  # it is the first no more
        with no_functions(), no_operators(), no_autograd():
            for device in dict.fromkeys(total.device for _, total in sums):
                there = [each for each in sums if each[1].device == device]
                totals = TensorBase.tolist(torch.stack([total for _, total in there]))  # one copy
                bad = [i for i, total in enumerate(totals) if not math.isfinite(total)]
                for i in bad[: not known]:
                    self._say(there[i][0], "the first result that is not finite")

    def _look(self, number: int, tensor: Tensor) -> None:
        if not has_memory(tensor):
            return
        if not tensor.is_cpu:
            self._sums.append((number, torch.sum(tensor, dtype=torch.float32)))
        elif not sums_up(tensor):
            for name in sorted(self._missing):
                is_it = torch.isnan if name == "NaN" else torch.isinf
                count = int(TensorBase.item(torch.sum(is_it(tensor))))
                if count:
                    self._missing.discard(name)
                    of = TensorBase.numel(tensor)
                    self._say(number, f"the first result with {name}: {count} of {of}")

    def _say(self, number: int, text: str) -> None:
        self._seen = True
        before = self._notes.get(number)
        self._notes[number] = f"{before}; {text}" if before else text
