"""Run the first steps of a training script as one rank of many, on tensors without memory.

A rehearsal uses these classes:

    FakeGroups, FakeAccelerator, FakeTensors    process groups, device and tensors without values
    MemoryTracker                               counts memory and FLOPs by role, line and module
    Recording                                   records nodes, lines and collectives of each step
    Rehearsal                                   contains the result
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
from ..internals.fake.groups import RANKS_PER_NODE, FakeGroups, RankTensors
from ..internals.fake.loading import SingleThreadedLoaders, WeightFiles
from ..internals.fake.values import FakeTensors, as_unknown_value
from ..recording.recording import Recording, record
from .blocks import LOOP, StorageBlock, at_moment, peak_of, totals
from .configurations import Sizes, apply_plans, plan_of, watch_meshes
from .memory_tracker import MemoryTracker
from .order import OrderWatch
from .rehearsal import Moment, Rehearsal, collective_stats, named_bytes

_MAX_MOMENTS = 300  # approximate number of moments in the picture
_DEFAULT_MEMORY = 80 * 2**30  # bytes of memory that the simulated device reports by default


class _StopRehearsal(BaseException):
    """An exception that ends the program after the last rehearsed step."""


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
    """Run the first steps of a training run as one rank of many, without GPUs or a network.

    Tensors that `function` creates are fake. They have shapes but no values, and take no memory.
    Collectives return immediately. `function` has to create everything that it uses: the model and,
    as under torchrun, a process group or mesh with any backend.

    Args:
        function: builds a model and trains it. The call is ended after `steps` steps.
        ranks: number of ranks; by default the product of the sizes in `mesh`, or 1.
        mesh: names and sizes of mesh dimensions, innermost last. Process groups that the program's
            own mesh does not name get these names in the result.
        rank: the rank to run as. For a list of ranks, the result is a list of rehearsals.
        steps: number of training steps to run. The result describes the last step. Most optimizers
            create their state at the end of the first step, so the second step has a larger peak.
        device_memory: memory of one device in bytes, for `Rehearsal.fits`.
        values: line -> number that `.item()` returns there, as in `{"train.py:30": 0.5}` or `{"30":
            0.5}`. The key `""` is for all other lines.
        plans: names of plans to apply. A plan changes arguments that the program passes to PyTorch.
            `plans()` lists the names. More names are other numbers of micro-batches, such as
            "micro-batches=4", and sizes of the program's mesh, such as "mesh=16x4".

    Raises:
        ValueError: if `ranks`, `mesh`, `rank`, `steps` or `plans` is invalid.
        RuntimeError: if the program needs the value of a fake tensor. The message contains the
            line, and the entry of `values` that provides this value.

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
        raise ValueError(f"mesh={dict(mesh)} has {size} ranks, but ranks={ranks} was passed.")
    if ranks < 1 or steps < 1:
        raise ValueError(f"ranks={ranks}, steps={steps}: pass 1 or more.")
    for name in plans:
        plan_of(name)  # raises ValueError for an unknown plan
    ranks_to_run = [rank] if isinstance(rank, int) else list(rank)
    for each in ranks_to_run:
        if not 0 <= each < ranks:
            raise ValueError(f"rank={each}: pass a rank from 0 to {ranks - 1}.")
    found = [
        _RankRun(ranks, each, dict(mesh or {}), steps, device_memory, values or {}).run(
            function, tuple(plans)
        )
        for each in ranks_to_run
    ]
    return found[0] if isinstance(rank, int) else found


class _RankRun:
    """The rehearsal of one rank."""

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
        self._tracker = MemoryTracker(self._world.on_host)
        self._tensors = FakeTensors(values)
        self._order = OrderWatch()
        self._meshes: list[Sizes] = []
        self._recording: Recording | None = None
        self._graph = Graph(())
        self._step = 0
        self._gradients = 0
        self._begun = time.perf_counter()

    def run(self, function: Callable[[], object], plans: tuple[str, ...]) -> Rehearsal:
        with record():  # register the hooks of the first recording before any other hook
            pass
        with ExitStack() as world:
            count, memory = min(RANKS_PER_NODE, self._ranks), self._device_memory or _DEFAULT_MEMORY
            device = FakeAccelerator(self._rank % count, count, memory, self._tracker)
            world.enter_context(self._world)
            world.enter_context(device)
            world.enter_context(self._order)
            world.enter_context(SingleThreadedLoaders())
            files = world.enter_context(WeightFiles())
            world.enter_context(RankTensors())
            world.enter_context(self._tensors)
            world.enter_context(self._tracker)
            world.enter_context(device.operators())
            world.enter_context(watch_meshes(self._meshes))
            world.enter_context(apply_plans(plans))
            hook = register_optimizer_step_post_hook(self._on_step)
            world.callback(hook.remove)
            self._record()
            error: BaseException | None = None
            try:
                function()
            except _StopRehearsal:
                pass
            except BaseException as raised:
                # Ignore errors after the last step. They are raised by libraries that shut down.
                if self._step < self._steps:
                    error = raised
            if self._tensors.needs_values:
                error = self._tensors.unknown_values_error()
            self._end(error)
            if device.is_used:
                self._graph = without_devices(self._graph)
            if error is not None:
                explained = as_unknown_value(error)
                raise error if explained is None else explained from None
            return self._result(sorted(self._tensors.printed), sorted(files.unsaved))

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

    def _on_step(self, *_: Any) -> None:
        self._step += 1
        if self._tensors.needs_values:
            raise _StopRehearsal
        if self._step >= self._steps:
            self._tracker.close_step()
            raise _StopRehearsal
        self._end()
        self._tracker.begin_step()
        self._record()

    def _result(self, printed: Sequence[str], unsaved: Sequence[str]) -> Rehearsal:
        tracker = self._tracker
        counted = tracker.counted_blocks
        peak = peak_of(counted, tracker.first_moment)
        at_peak = at_moment(counted, peak.moment)
        return Rehearsal(
            ranks=self._ranks,
            rank=self._rank,
            steps=max(1, self._step),
            graph=self._graph,
            parameters_bytes=tracker.bytes_of("parameter"),
            gradients_bytes=tracker.bytes_of("gradient"),
            optimizer_bytes=tracker.bytes_of("optimizer"),
            buffers_bytes=tracker.bytes_of("buffer"),
            activations_bytes=sum(block.nbytes for block in tracker.activations),
            gathered_bytes=peak_of(
                [block for block in tracker.blocks if block.role == "gathered"],
                tracker.first_moment,
            ).nbytes,
            peak_bytes=peak.nbytes,
            peak_at=", ".join(filter(None, peak.at)),
            flops=tracker.flops,
            seconds=round(time.perf_counter() - self._begun, 3),
            device_memory=self._device_memory,
            at_peak=named_bytes(totals(at_peak, "role")),
            lines=named_bytes(totals(at_peak, "where")),
            saved=named_bytes(totals(tracker.activations, "module")),
            moments=tuple(_moments(tracker, counted, peak.moment)),
            collectives=collective_stats(self._graph, self._groups()),
            order=tuple(self._order.calls),
            printed=tuple(printed),
            unsaved=tuple(unsaved),
            meshes=tuple(self._meshes),
        )

    def _groups(self) -> dict[str, str]:
        """Return ranks of a group -> name of its mesh dimension, for the groups of this rank."""
        found, stride = {}, self._ranks
        for name, size in self._mesh.items():
            stride //= size
            first = self._rank - (self._rank // stride % size) * stride
            found[ranks_text(range(first, first + size * stride, stride))] = name
        return found


def without_devices(graph: Graph) -> Graph:
    """Return the graph without the devices of its tensors.

    The recorded devices are wrong: PyTorch's C++ code reports "cpu" for tensors on the simulated
    device.

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


def _moments(tracker: MemoryTracker, blocks: Sequence[StorageBlock], peak: int) -> list[Moment]:
    """Return the memory at about `_MAX_MOMENTS` moments of the step.

    The step is divided into intervals. The moments are the peak, the start of each phase, and the
    moment with the most memory in each interval.
    """
    first, last = tracker.first_moment, tracker.moment
    changes: list[tuple[int, int, StorageBlock]] = []
    for block in blocks:
        changes.append((block.allocated_at, 1, block))
        changes.append((block.freed_at, -1, block))
    changes.sort(key=lambda change: change[0])
    wanted = {first, last, peak, *[moment for moment, _ in tracker.phases][:_MAX_MOMENTS]}
    wanted.update(_fullest(changes, first, last, max(1, (last - first) // _MAX_MOMENTS)))
    found, now, at, phase = [], Counter[str](), 0, LOOP
    phases = [*tracker.phases]
    for moment in sorted(wanted):
        while at < len(changes) and changes[at][0] <= moment:
            _, sign, block = changes[at]
            now[block.role] += sign * block.nbytes
            at += 1
        while phases and phases[0][0] <= moment:
            phase = phases.pop(0)[1]
        found.append(Moment(phase, named_bytes(sorted(now.items()))))
    return found


def _fullest(
    changes: Sequence[tuple[int, int, StorageBlock]], first: int, last: int, every: int
) -> Iterator[int]:
    """Yield the moment with the most memory in each interval of `every` moments.

    Args:
        changes: (moment, 1 for an allocation or -1 for a free, block), sorted by moment.
        first: the first moment.
        last: the last moment.
        every: length of an interval.
    """
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
