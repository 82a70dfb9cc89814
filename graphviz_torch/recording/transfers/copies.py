"""Record each copy between devices, with the line that made it and the later use of its result.

Every copy whose source and target devices differ is counted, in forward, in backward and outside of
the graph. A read of a number from a device (`item`, `float`, `if tensor`) is a copy. Operators
whose result size depends on values (`x[mask]`, `nonzero`, `unique`) read that size, which is a
copy, too. CPU indices into a tensor on another device are also copied.

Copies inside kernels, collectives, copies by other threads, and copies to the meta device, which
move no data, are not counted.

`Transfer.seconds` is measured on the device's stream. It is None if it could not be measured, and
it is never an estimate.
"""

from __future__ import annotations

import sys
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from ...graph import Graph, TensorMeta, Transfer, TransferKind
from ...graph.immutable import mutable
from ...internals.frames import (
    CodePosition,
    is_moving_module,
    is_packing,
    is_replicating_module,
    library_of,
    user_frame,
)
from ...internals.functions import TensorBase
from ...internals.hooks.calls import Called, running_function
from ...internals.hooks.dispatch import Dispatched
from ...internals.hooks.engine import running_node
from ...internals.hooks.optimizers import Stepped
from ...internals.tensors.memory import parts, storage_id, storage_ref
from ...internals.tensors.metadata import device_label
from ...internals.tensors.pytree import tensors
from ..listener import BackwardBegan, BackwardEnded, GraphValues, Listener, Resumed
from ..live import LiveGraph
from ..program import Program
from ..program.tracking import public_name
from ..resolver import Resolver
from .operators import OPERATORS, dispatched_copies
from .profiler import Memcpy


@mutable(eq=False)
class CopyRecord:
    """The record of a copy between devices, which observes the later use of the copy's result."""

    kind: TransferKind
    source: str
    target: str
    tensor: TensorMeta
    pinned: bool | None
    non_blocking: bool
    numbers: range  # sequence numbers of the nodes that the copy created
    data: int  # equal for all copies of the same tensor values
    node: int | None = None  # id of the node that backward was running
    run: int = 0  # number of the running backward in the step, from 1 on; 0 if none was running
    begun: int = 0  # number of backwards that had begun in the step
    place: CodePosition | None = None
    module: str = ""
    in_forward: bool = False
    moment: int = 0
    operation: str = ""
    label: str = ""
    library: str = ""
    memory: Any = None  # weak reference to the storage of the copy's result
    used: bool | None = None  # True if the program used the result; None if unknown
    seconds: float | None = None
    prepares: bool = False  # True if the copy, made after the step, is for the next training step

    def locate(
        self, place: CodePosition | None, module: str, in_forward: bool, moment: int, begun: int
    ) -> None:
        """Record where and when the program made the copy.

        Args:
            place: the user's line.
            module: path of the running module.
            in_forward: True if a module's forward was running.
            moment: counter that grows with every module call and backward.
            begun: number of backwards that had begun in the step.
        """
        self.place, self.module = place, module
        self.in_forward, self.moment, self.begun = in_forward, moment, begun

    def attach_to_run(self, run: int, node: int | None) -> None:
        """Record that backward number `run` of the step made the copy while it ran `node`."""
        self.run, self.node = run, node

    def attach_to_call(self, operation: str, label: str, library: str) -> None:
        """Record the call that made the copy.

        Args:
            operation: name of the call.
            label: the program's name of the copied tensor.
            library: the library that made the call; "" for the user's code.
        """
        self.operation, self.label, self.library = operation, label, library

    def begin_step(self) -> None:
        """Assign a copy made after the last step, as of the next batch, to the new step."""
        self.prepares, self.moment, self.begun = False, 0, 0

    def time(self, seconds: float) -> None:
        """Set the duration measured on the device."""
        self.seconds = seconds

    def on_use(self) -> None:
        """Record that an operation read the copy's result."""
        self.used = True

    def on_free(self) -> None:
        """Record that the copy's result was freed. If no operation read it, the copy is unused."""
        self.used = bool(self.used)

    def transfer(self, node: int | None, where: str, position: int) -> Transfer:
        """Return the record of the copy as a `Transfer`, without references to tensors.

        Args:
            node: the node in the graph to which the copy belongs, if any.
            where: the program's line that made the copy.
            position: position of the graph's backward in the step.
        """
        used = self.used
        if used is False and self.memory is not None and not self.memory.expired():
            used = None  # another tensor, such as a parameter, may share the result's memory
        return Transfer(
            self.kind,
            self.source,
            self.target,
            self.tensor,
            "backward" if self.run else "forward",
            node,
            where,
            self.module,
            self.operation,
            self.label,
            self.pinned,
            self.non_blocking,
            self.seconds,
            used,
            self.data,
            self.in_forward,
            self.moment,
            self.library,
            not self.run and self.begun > position,
        )


class StepCopies:
    """The copies of one training step, in order.

    A program that moves a batch before it clears the gradients does so after the optimizer's step,
    where no new step has begun. Such copies are kept for the next step, which reads the batch.
    """

    def __init__(self) -> None:
        self.records: list[CopyRecord] = []
        self._next: list[CopyRecord] = []  # copies that belong to the next step
        self._data: dict[tuple[Any, ...], tuple[Any, int]] = {}
        self._numbers = 0

    def see(self, call: Dispatched) -> list[tuple[CopyRecord, Tensor, Tensor | None]]:
        """Record the copies between devices that an operator made.

        Returns:
            For each copy: its record, the tensor that was copied, and the new tensor, if any.
        """
        noted = []
        for copy in dispatched_copies(call):
            source, target = device_label(copy.part.device), copy.moved.device
            if "meta" in (source.split(":")[0], target.split(":")[0]):
                continue
            record = CopyRecord(
                _kind(copy.part.device, copy.target),
                source,
                target,
                copy.moved,
                copy.pinned,
                copy.non_blocking,
                range(0) if copy.is_count else range(call.start, call.end),
                self._number(None if copy.is_count else copy.part),
            )
            if copy.made is not None:
                record.memory = storage_ref(parts(copy.made)[0])
                self._data[_identity(copy.made)] = (record.memory, record.data)
            self.records.append(record)
            noted.append((record, copy.source, copy.made))
        return noted

    def split(self) -> None:
        """Separate the copies that prepare the next training step from those of this step."""
        self._next = [record for record in self.records if record.prepares]
        self.records = [record for record in self.records if not record.prepares]

    def forget(self) -> None:
        """Drop the copies of a step, except those that were made for the next step.

        The numbers that identify copied data are kept while the data's tensors are alive.
        """
        self.records, self._next = self._next, []
        for record in self.records:
            record.begin_step()
        self._data = {key: row for key, row in self._data.items() if not row[0].expired()}

    def _number(self, source: Tensor | None) -> int:
        if source is None:  # the size of an operator's result, which is in no tensor
            self._numbers += 1
            return self._numbers - 1
        key = _identity(source)
        known = self._data.get(key)
        if known is None or known[0].expired():
            known = self._data[key] = (storage_ref(parts(source)[0]), self._numbers)
            self._numbers += 1
        return known[1]


def _kind(source: torch.device, target: torch.device) -> TransferKind:
    if source.type == "cpu":
        return "HtoD"
    return "DtoH" if target.type == "cpu" else "DtoD"


def _identity(tensor: Tensor) -> tuple[Any, ...]:
    """Return a key that is equal for tensors with the same memory and version."""
    found = parts(tensor)
    if len(found) != 1:
        return (id(tensor),)
    version = 0 if torch.is_inference(tensor) else tensor._version
    return storage_id(found[0]), TensorBase.storage_offset(found[0]), tuple(found[0].shape), version


def match(records: Iterable[CopyRecord], copies: Iterable[Memcpy]) -> list[Transfer]:
    """Assign measured durations to recorded copies.

    Args:
        records: the recorded copies, in order.
        copies: the profiler's copies, in order.

    Returns:
        The profiler's copies that match no recorded copy.
    """
    open_: dict[tuple[str, int | None], deque[CopyRecord]] = defaultdict(deque)
    for copy in records:
        open_[copy.kind, copy.tensor.nbytes].append(copy)
    unmatched = []
    for event in copies:
        waiting = open_[event.kind, event.nbytes]
        if waiting:
            waiting.popleft().time(event.seconds)
            continue
        tensor = TensorMeta((event.nbytes,), "uint8", event.target)
        unmatched.append(
            Transfer(
                *(event.kind, event.source, event.target, tensor, "forward"),
                operation=event.name,
                seconds=event.seconds,
            )
        )
    return unmatched


class Copies(Listener):
    """Listener that records copies between devices, each with line, module and node."""

    needs = ("transfers",)

    operators = OPERATORS

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._unmatched: list[Transfer] = []  # copies that only the profiler observed
        self._made: list[tuple[Tensor, CopyRecord]] = []  # copies made by the running call
        self._transfers = StepCopies()
        self._live: LiveGraph | None = None  # graph of the running backward
        self._backwards = 0  # number of backwards started in this step
        self._stepped = False  # True if an optimizer has stepped in this training step

    def on_copies_timed(self, event: Sequence[Memcpy]) -> None:
        """Assign the profiler's durations to the copies."""
        self._unmatched = match(self._transfers.records, event)

    def on_backward_start(self, event: BackwardBegan) -> None:
        self._live = event.live
        self._backwards += 1

    def on_backward_end(self, event: BackwardEnded) -> None:
        self._live = None

    def on_operator(self, event: Dispatched) -> None:
        live = self._live  # read only once, because the main thread may end the backward now
        fn = running_node()
        ours = {} if live is None else live.ids
        program = self.program
        if not program.is_here() and fn not in ours:
            # The copy comes from another thread, and from no node of this program's graph. The
            # thread alone does not decide, since the engine runs nodes in threads of its own.
            return
        for record, source, made in self._transfers.see(event):
            frame = user_frame(sys._getframe(1))
            # In a thread of the engine, which runs no user code, the line that called backward is
            # recorded.
            place = program.place(frame) or (None if live is None else live.call.place)
            moment = program.origins.moments + self._backwards
            at = place, program.module, program.in_forward, moment, self._backwards
            record.locate(*at)
            if fn is not None:
                record.attach_to_run(self._backwards, ours.get(fn))
            else:
                label = program.label(source, frame)
                here = sys._getframe(1)
                record.attach_to_call(_operation(here), label, library_of(here))
                # An optimizer that runs on the CPU copies its results into parameters (`copy_`).
                is_new = record.kind == "HtoD" and record.operation != "copy_"
                record.prepares = is_new and self._stepped and not program.steps.running
                if made is not None:
                    self._made.append((made, record))

    def on_call_end(self, event: Called) -> None:
        """Observe the later uses of the copies that a call returned."""
        if self._made:
            returned = {id(tensor) for tensor in tensors(event.result)}
            for made, record in self._made:
                if id(made) in returned:
                    self.program.tracker.add(made, record)
            self._made = []

    def on_optimizer_step_end(self, event: Stepped) -> None:
        self._stepped = True

    def on_resume(self, event: Resumed) -> None:
        self._stepped = self._stepped or event.optimizer is not None

    def on_next_step(self, event: None) -> None:
        self._transfers.split()

    def on_step_end(self, event: None) -> None:
        self._transfers.forget()
        self._backwards, self._stepped = 0, False

    def graph_values(self, graph: Graph, resolver: Resolver) -> GraphValues:
        position = resolver.backward.position
        found = [
            copy.transfer(_node(copy, resolver), resolver.line(copy.place), position)
            for copy in self._transfers.records
        ]
        # The copies that `trace` predicted are kept for nodes that backward has not run.
        ahead = [
            copy
            for copy in graph.transfers
            if copy.node is None or graph.nodes[copy.node].order is None
        ]
        return {"transfers": (*found, *ahead, *self._unmatched)}


def _operation(frame: FrameType) -> str:
    """Return the name for `Transfer.operation` of the call that made a copy.

    Args:
        frame: the frame of the call. Its outer frames are searched as well.
    """
    if is_packing(frame):
        return "pack"
    if is_replicating_module(frame):
        return "replicate"
    name = public_name(running_function())
    return f"Module.{name}" if is_moving_module(frame) else name


def _node(copy: CopyRecord, resolver: Resolver) -> int | None:
    """Return the id of the node that a copy belongs to, in one backward's graph, or None.

    For a copy in backward, this is the node that backward was running. For others it is the node
    that the copy created.
    """
    if copy.run:
        return resolver.ran_node(copy.node, copy.run)
    return next(iter(resolver.nodes(copy.numbers)), None)
