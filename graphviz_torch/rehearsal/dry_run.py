"""rehearse(): run a training's first steps as one rank of many, with tensors that have no memory.

FakeGroups ─ FakeAccelerator ─ FakeTensors      a machine that is not there
    Ledger                                      memory and FLOPs, by role, line and module
    record()                                    of each step: nodes, lines, collectives
─► Rehearsal
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, overload

from torch.optim.optimizer import register_optimizer_step_post_hook

from ..graph import Graph
from ..graph.text import ranks_text
from ..internals.fake.accelerator import FakeAccelerator
from ..internals.fake.dtensors import RankTensors
from ..internals.fake.groups import RANKS_PER_NODE, FakeGroups
from ..internals.fake.loaders import SingleThreadedLoaders
from ..internals.fake.values import FakeTensors, as_unknown_value
from ..internals.fake.weights import WeightFiles
from ..recording.recording import Recording, record
from .blocks import LOOP, Block, at_moment, peak_of, totals
from .configurations import plan_of, planned
from .ledger import Ledger
from .meshes import Sizes, watch_meshes
from .order import OrderWatch
from .rehearsal import Moment, Rehearsal, sent, shares

_MOMENTS = 300  # of the picture
_MEMORY = 80 * 2**30  # of a device, for who asks


class _Over(BaseException):
    """The last step has ended: the program need not go on."""


@overload
def rehearse(
    function: Callable[[], object],
    *,
    ranks: int | None = ...,
    mesh: Mapping[str, int] | None = ...,
    rank: int = ...,
    steps: int = ...,
    device_memory: int | None = ...,
    values: Mapping[str, float] | None = ...,
    plans: Sequence[str] = ...,
) -> Rehearsal: ...
@overload
def rehearse(
    function: Callable[[], object],
    *,
    ranks: int | None = ...,
    mesh: Mapping[str, int] | None = ...,
    rank: Sequence[int],
    steps: int = ...,
    device_memory: int | None = ...,
    values: Mapping[str, float] | None = ...,
    plans: Sequence[str] = ...,
) -> list[Rehearsal]: ...
def rehearse(
    function: Callable[[], object],
    *,
    ranks: int | None = None,
    mesh: Mapping[str, int] | None = None,
    rank: int | Sequence[int] = 0,
    steps: int = 2,
    device_memory: int | None = None,
    values: Mapping[str, float] | None = None,
    plans: Sequence[str] = (),
) -> Rehearsal | list[Rehearsal]:
    """Run the first steps of a training as one rank of many, without GPU, network and memory.

    The tensors that `function` makes are fake: they have shapes, and no values. Its process groups
    end every collective at once. So it builds the model, too, and as under torchrun it makes its
    process group or mesh, of any backend.

    Args:
        function: builds the model and trains it. It is ended after the last step.
        ranks: how many there would be; the product of `mesh`, where that is given, or else 1.
        mesh: name and size of its dimensions, the innermost last: names the groups of ranks that
            the program's own mesh does not name.
        rank: which one it is; several give a list.
        steps: how many are run; an optimizer ends one. The last is told of. The state of most
            optimizers is made by the first, and so only the second has the peak of a training.
        device_memory: bytes that a device has.
        values: what `.item()` gives, by line: `{"train.py:30": 0.5}`, or `{"30": 0.5}`; `""` at
            every other line.
        plans: what is changed on the way from the program to PyTorch, by the names that `plans()`
            gives, "micro-batches=4", or "mesh=16x4" for the sizes of the program's mesh.

    Raises:
        ValueError: for ranks, a mesh, steps or plans that cannot be.
        RuntimeError: where the program needs what only values tell: which line, and what to give.

    >>> import torch
    >>> def train():
    ...     model = torch.nn.Linear(1000, 1000, bias=False)
    ...     optimizer = torch.optim.AdamW(model.parameters())
    ...     for _ in range(10):
    ...         model(torch.ones(5, 1000)).sum().backward()
    ...         optimizer.step()
    ...         optimizer.zero_grad()
    >>> found = rehearse(train)
    >>> found.parameters_bytes, found.gradients_bytes, found.optimizer_bytes
    (4000000, 4000000, 8000004)
    """
    size = math.prod((mesh or {}).values())
    ranks = size if ranks is None else ranks
    if mesh and size != ranks:
        raise ValueError(f"mesh={dict(mesh)} has {size} ranks, and ranks={ranks}.")
    if ranks < 1 or steps < 1:
        raise ValueError(f"ranks={ranks}, steps={steps}: pass 1 or more.")
    for name in plans:
        plan_of(name)  # it raises for what is not one
    asked = [rank] if isinstance(rank, int) else list(rank)
    for each in asked:
        if not 0 <= each < ranks:
            raise ValueError(f"rank={each}: ranks are counted from 0, and there are {ranks}.")
    found = [
        _Run(ranks, each, dict(mesh or {}), steps, device_memory, values or {}).run(
            function, tuple(plans)
        )
        for each in asked
    ]
    return found[0] if isinstance(rank, int) else found


class _Run:
    """One rank's rehearsal."""

    def __init__(
        self,
        ranks: int,
        rank: int,
        mesh: dict[str, int],
        steps: int,
        device_memory: int | None,
        values: Mapping[str, float],
    ) -> None:
        self._ranks, self._rank, self._mesh, self._steps = ranks, rank, mesh, steps
        self._device_memory = device_memory
        self._world = FakeGroups(ranks, rank)
        self._ledger = Ledger(self._world.on_host)
        self._tensors = FakeTensors(values)
        self._order = OrderWatch()
        self._meshes: list[Sizes] = []
        self._recording: Recording | None = None
        self._graph = Graph(())
        self._step = 0
        self._gradients = 0
        self._begun = time.perf_counter()

    def run(self, function: Callable[[], object], plans: tuple[str, ...]) -> Rehearsal:
        with record():  # what the first recording registers cannot be registered inside a hook
            pass
        with ExitStack() as world:
            count, memory = min(RANKS_PER_NODE, self._ranks), self._device_memory or _MEMORY
            device = FakeAccelerator(self._rank % count, count, memory, self._ledger)
            world.enter_context(self._world)
            world.enter_context(device)
            world.enter_context(self._order)
            world.enter_context(SingleThreadedLoaders())
            world.enter_context(WeightFiles())
            world.enter_context(RankTensors())
            world.enter_context(self._tensors)
            world.enter_context(self._ledger)
            world.enter_context(device.operators())
            world.enter_context(watch_meshes(self._meshes))
            world.enter_context(planned(plans))
            hook = register_optimizer_step_post_hook(self._stepped)
            world.callback(hook.remove)
            self._record()
            error: BaseException | None = None
            try:
                function()
            except _Over:
                pass
            except BaseException as raised:
                if self._step < self._steps:  # else a library's end of what has ended
                    error = raised
            if self._tensors.needs_values:
                error = self._tensors.unknown_values_error()
            self._end(error)
            if device.is_used:
                self._graph = without_devices(self._graph)
            if error is not None:
                said = as_unknown_value(error)
                raise error if said is None else said from None
            return self._result(sorted(self._tensors.printed))

    def _record(self) -> None:
        self._recording = record(gradients=False, memory=True, notes=False)
        self._recording.__enter__()

    def _end(self, error: BaseException | None = None) -> None:
        recording, self._recording = self._recording, None
        if recording is not None:
            recording.__exit__(type(error) if error else None, error, None)
            graphs = recording.graphs
            if graphs:
                self._graph = graphs[-1]

    def _stepped(self, *_: Any) -> None:
        self._step += 1
        if self._tensors.needs_values:
            raise _Over
        if self._step >= self._steps:
            self._ledger.close_step()
            raise _Over
        self._end()
        self._ledger.begin_step()
        self._record()

    def _result(self, printed: Sequence[str]) -> Rehearsal:
        ledger = self._ledger
        counted = ledger.counted
        peak = peak_of(counted, ledger.first_moment)
        at_peak = at_moment(counted, peak.moment)
        return Rehearsal(
            ranks=self._ranks,
            rank=self._rank,
            steps=max(1, self._step),
            graph=self._graph,
            parameters_bytes=ledger.bytes_of("parameter"),
            gradients_bytes=ledger.bytes_of("gradient"),
            optimizer_bytes=ledger.bytes_of("optimizer"),
            buffers_bytes=ledger.bytes_of("buffer"),
            activations_bytes=sum(block.nbytes for block in ledger.activations),
            gathered_bytes=peak_of(
                [block for block in ledger.blocks if block.role == "gathered"], ledger.first_moment
            ).nbytes,
            peak_bytes=peak.nbytes,
            peak_at=", ".join(filter(None, peak.at)),
            flops=ledger.flops,
            seconds=round(time.perf_counter() - self._begun, 3),
            device_memory=self._device_memory,
            at_peak=shares(totals(at_peak, "role")),
            lines=shares(totals(at_peak, "where")),
            saved=shares(totals(ledger.activations, "module")),
            moments=tuple(_moments(ledger, counted, peak.moment)),
            collectives=sent(self._graph, self._groups()),
            order=tuple(self._order.asked),
            printed=tuple(printed),
            meshes=tuple(self._meshes),
        )

    def _groups(self) -> dict[str, str]:
        """The dimensions of the mesh, by the ranks in the group of this one."""
        found, stride = {}, self._ranks
        for name, size in self._mesh.items():
            stride //= size
            first = self._rank - (self._rank // stride % size) * stride
            found[ranks_text(range(first, first + size * stride, stride))] = name
        return found


def without_devices(graph: Graph) -> Graph:
    """The graph without the devices that autograd names: the script's device is not there, and what
    it puts there is on the CPU for PyTorch's C++.

    >>> from graphviz_torch.graph import Node, TensorMeta
    >>> x = Node(0, "AccumulateGrad", (TensorMeta((8,), "float32", "cpu"),), "x", leaf="tensor")
    >>> print(without_devices(Graph((x,))).nodes[0].outputs[0])
    f32[8]
    """
    return replace(
        graph,
        nodes=tuple(
            node._replace(outputs=tuple(meta and meta._replace(device="") for meta in node.outputs))
            for node in graph.nodes
        ),
        parameters=tuple(
            replace(each, tensor=each.tensor._replace(device="")) for each in graph.parameters
        ),
    )


def _moments(ledger: Ledger, blocks: Sequence[Block], peak: int) -> list[Moment]:
    """The memory over the step: of every few moments the one with most, each phase's first, and
    the peak."""
    first, last = ledger.first_moment, ledger.moment
    changes: list[tuple[int, int, Block]] = []
    for block in blocks:
        changes.append((block.born, 1, block))
        changes.append((block.died, -1, block))
    changes.sort(key=lambda change: change[0])
    wanted = {first, last, peak, *[moment for moment, _ in ledger.phases][:_MOMENTS]}
    wanted.update(_fullest(changes, first, last, max(1, (last - first) // _MOMENTS)))
    found, now, at, phase = [], Counter[str](), 0, LOOP
    phases = [*ledger.phases]
    for moment in sorted(wanted):
        while at < len(changes) and changes[at][0] <= moment:
            _, sign, block = changes[at]
            now[block.role] += sign * block.nbytes
            at += 1
        while phases and phases[0][0] <= moment:
            phase = phases.pop(0)[1]
        found.append(Moment(phase, shares(sorted(now.items()))))
    return found


def _fullest(
    changes: Sequence[tuple[int, int, Block]], first: int, last: int, every: int
) -> Iterator[int]:
    """Of each so many moments the one at which most memory is there."""
    now = at = 0
    for start in range(first, last + 1, every):
        most, best = -1, start
        for moment in range(start, min(start + every, last + 1)):
            while at < len(changes) and changes[at][0] <= moment:
                now += changes[at][1] * changes[at][2].nbytes
                at += 1
            if now > most:
                most, best = now, moment
        yield best
