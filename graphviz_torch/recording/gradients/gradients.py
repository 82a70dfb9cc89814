"""The gradient at every node of a backward run, in what order the nodes ran, and for how long.

`seconds` of a node on the CPU is the time from when it has its gradients until the engine has
handed the next node its own: the node's work, its hooks, and the sums of gradients that it takes
part in. On CUDA it is the same time between events on the node's stream; in a graph with several
devices it ends with the node's hooks, and a CPU node of such a graph has None, for the engine's
threads mix. Elsewhere None.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from ...graph import GradientStats, TensorMeta
from ...graph.gc import with_gc_disabled
from ...graph.nodes import CHANGED
from ...internals.functions import TensorBase
from ...internals.guards import watched_operators
from ...internals.hooks.engine import queue_callback
from ...internals.hooks.modes import function_mode_count
from ...internals.hooks.nodes import Hooks
from ...internals.streams import current_device
from ...internals.tensors.metadata import is_custom, tensor_meta
from ...tracing.nodes import GradientEdge
from ..backward import Backward
from ..listener import BackwardBegan, BackwardEnded, Columns, Listener
from ..program import Program
from .cuda_clock import CudaClock
from .statistics import Batch, Descriptions, Kind, alias


class GradientHooks:
    """A context manager with hooks on live nodes, for one backward.

    Args:
        nodes: the nodes, in the order of `Graph.nodes`, and the outputs of each.
        ran: to extend for each node that backward runs by three values: the node, when it was
            entered, and when it was left to itself, None if it is not timed on the CPU.
        devices: those that they are on.
        finite: leave out what is finite, and on the CPU the time and the values of small gradients.
    """

    def __init__(
        self,
        nodes: Iterable[tuple[Any, tuple[TensorMeta | None, ...]]],
        ran: list[Any],
        devices: Collection[str],
        *,
        finite: bool = False,
    ) -> None:
        self._finite = finite
        self._brief = finite and set(devices) == {"cpu"}
        self._nodes = list(nodes)
        self._ran = ran
        cuda = any(device.startswith("cuda") for device in devices)
        self._clock = CudaClock() if cuda else None
        self._mixed = len(devices) > 1
        self._hooks = Hooks()
        self._descriptions = Descriptions(finite=finite)

    def __enter__(self) -> GradientHooks:
        # Equal outputs are one object where there is one output, as most: not hashed for each.
        recipes: dict[tuple[type, int], tuple[Any, ...]] = {}
        hooks = []
        for node, (fn, outputs) in enumerate(self._nodes):
            key = type(fn), id(outputs)
            recipe = recipes.get(key)
            if recipe is None:
                recipe = recipes[key] = self._recipe(type(fn), outputs)
            hooks.append((fn.register_prehook, partial(recipe[0], node, *recipe[1:])))
        self._hooks.put(hooks)
        if self._clock is not None and self._mixed:
            self._hooks.put([(fn.register_hook, self._after) for fn, _ in self._nodes])
        return self

    def __exit__(self, *_: object) -> None:
        self._hooks.remove()
        self._ended()
        self._descriptions.describe_all()  # what came after that
        self._nodes.clear()

    def _ended(self) -> None:
        """Note that the engine has run all nodes, and runs the final callbacks.

        Note that the engine has run all that it is to run, and now runs the final callbacks.
        """
        if self._ran and self._ran[-3] >= 0:
            self._ran.extend((-1, perf_counter(), None))
            if self._clock is not None:
                self._clock.finish()
            self._descriptions.describe_all()

    def fail(self) -> None:
        """Note that the run failed: its last node did not end.

        Note that the run has failed: its last node did not end.
        """
        if self._clock is not None:
            self._clock.abandon()
        if self._ran:
            self._ran[-1] = None

    def unhook(self) -> None:
        """Remove hooks that an interrupt left."""
        self._hooks.remove()

    def add(self, given: Iterable[tuple[int, int, Tensor | None]]) -> None:
        """Describe gradients that no hook received, by node and output_nr."""
        ran = set(self._ran[::3])
        for node, output_nr, gradient in given:
            if gradient is not None and node not in ran:
                kind = self._descriptions.kind(tensor_meta(gradient))
                self._descriptions.see((node, output_nr), gradient, kind)

    def _recipe(self, of: type, outputs: tuple[TensorMeta | None, ...]) -> tuple[Any, ...]:
        """What to call before a node of a class with these outputs, and what with beside it."""
        kind_of = self._descriptions.kind
        kinds = tuple([None if meta is None else kind_of(meta) for meta in outputs])
        leaf, custom = of.__name__ == "AccumulateGrad", is_custom(of)
        kind = kinds[0] if len(kinds) == 1 else None
        if kind is None or not (kind.cpu and kind.batch) or self._clock is not None or custom:
            return self._before, kinds, leaf, custom
        return (self._before_one(kind, kind.batch, leaf),)

    def _before_one(self, kind: Kind, batch: Batch, leaf: bool) -> Callable[..., None]:
        """`_before` of a node with one gradient that waits for others on the CPU, as most.

        It is known by the node alone. What is looked up for all stands around the function.
        """
        slow, describe = self._before, self._descriptions.describe
        ran, waiting = self._ran, kind.waiting.rows
        elements, limit, strided = kind.elements, batch.limit, torch.strided

        def before(node: int, given: tuple[Tensor | None, ...]) -> None:
            began = perf_counter()
            (gradient,) = given
            if (
                type(gradient) is not Tensor
                or gradient.layout is not strided
                or not ran
                or ran[-3] < 0
            ):
                return slow(node, (kind,), leaf, False, given)
            if leaf:
                seen = function_mode_count() or watched_operators()
                gradient = alias(gradient) if seen else TensorBase.detach(gradient)
            try:
                version = gradient._version
            except RuntimeError:  # an inference tensor's
                version = None
            waiting.extend((node, version, gradient))
            base = gradient._base
            # One keeps all of what it is a view of.
            batch.elements += elements if base is None else max(elements, TensorBase.numel(base))
            if batch.elements >= limit:
                describe(batch)
            ran.extend((node, began, perf_counter()))

        return before

    def _before(
        self,
        node: int,
        kinds: tuple[Kind | None, ...],
        leaf: bool,
        custom: bool,
        gradients: tuple[Tensor | None, ...],
    ) -> None:
        entered = perf_counter()
        if not self._ran or self._ran[-3] < 0:  # the latter: in a run within this one
            with suppress(RuntimeError):  # a compiled autograd has none
                queue_callback(self._ended)
        clock, described = self._clock, self._descriptions.times
        event = None if clock is None else clock.stop()
        timed = cuda = False
        if leaf:  # it takes its gradient as its own, without a copy, if nobody else has that tensor
            gradients = tuple(None if given is None else alias(given) for given in gradients)
        for output_nr, gradient in enumerate(gradients):
            if gradient is not None:
                kind = kinds[output_nr] or self._descriptions.kind(tensor_meta(gradient))
                timed = kind.cpu
                if kind.cuda is not None:
                    cuda = True
                    if kind.cuda != current_device():
                        self._descriptions.fetch(gradient, kind.cuda)
                self._descriptions.see((node, output_nr), gradient, kind)
        if custom:  # its backward may change in place what waits
            self._descriptions.describe_all()
        if clock is not None and cuda:
            clock.start(node, event if self._descriptions.times == described else None)
        left = perf_counter() if timed and clock is None else None
        self._ran.extend((node, entered, left))

    def _after(self, *_: object) -> None:
        # What this device runs next may wait for another one.
        if self._clock is not None:
            self._clock.stop()

    def statistics(
        self, outputs: Sequence[Sequence[object]]
    ) -> dict[int, tuple[GradientStats | None, ...]]:
        """`grad_outputs` of each node that backward reached: one copy from each device.

        Args:
            outputs: the outputs of each node.
        """
        rows: dict[int, list[GradientStats | None]] = {}
        found: dict[int, tuple[GradientStats | None, ...]] = {}
        for where, stats in self._descriptions.collect().items():
            if self._finite and not stats.nonfinite:
                continue
            if self._brief:
                stats = stats._replace(values=None)
            if type(where) is int:
                found[where] = (stats,)
                continue
            node, output_nr = where
            if outputs[node][1:]:
                rows.setdefault(node, [None] * len(outputs[node]))[output_nr] = stats
            else:
                found[node] = (stats,)
        return found | {node: tuple(row) for node, row in rows.items()}

    def changed(self) -> set[int]:
        """Return the nodes with a gradient that could not be described."""
        return {each if type(each) is int else each[0] for each in self._descriptions.changed}

    def seconds(self) -> dict[int, float]:
        """Return the duration of each timed node, in seconds. Waits for the CUDA events."""
        found = {} if self._clock is None else self._clock.seconds()
        if not self._brief:
            for node, left, ended in zip(*(self._ran[k::3] for k in (0, 2, 4)), strict=False):
                if left is not None:
                    found[node] = ended - left
        return found


class Gradients(Listener):
    """The gradient at every node; in a light recording only whether it is finite."""

    needs = ("with_gradients",)

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._finite = program.options.light
        self._running: GradientHooks | None = None
        self._asked: list[GradientEdge] = []  # the inputs of `autograd.grad`
        self._runs: dict[int, GradientHooks] = {}  # by graph

    @with_gc_disabled
    def on_backward_start(self, event: BackwardBegan) -> None:
        """Hook every node, if allowed."""
        live, ran = event.live, event.live.ran.rows
        if ran is None:
            return
        self._asked = event.asked
        nodes = zip(live.ids, live.reading.columns["outputs"], strict=True)
        hooks = GradientHooks(nodes, ran, live.devices, finite=self._finite)
        self._running = hooks
        self._runs[live.position] = hooks
        hooks.__enter__()

    def on_backward_end(self, event: BackwardEnded) -> None:
        """Remove the hooks."""
        hooks, self._running = self._running, None
        if hooks is None:
            return
        try:
            if event.error is not None:
                hooks.fail()
            # The engine hands these out without running their nodes.
            ids = event.live.ids
            pairs = zip(self._asked, event.gradients, strict=False)
            hooks.add([(ids[fn], nr, gradient) for (fn, nr), gradient in pairs if fn in ids])
        finally:
            self._asked = []
            hooks.__exit__()

    def on_step_end(self, event: None) -> None:
        self._runs = {}

    def node_columns(self, backward: Backward) -> Columns:
        hooks = self._runs.get(backward.position)
        if hooks is None:
            return {}
        return {
            "grad_outputs": hooks.statistics(backward.reading.columns["outputs"]),
            "order": {node: k for k, node in enumerate(backward.ran or ())},
            "seconds": hooks.seconds(),
            "note": dict.fromkeys(hooks.changed(), CHANGED),
        }

    def close(self) -> None:
        if self._running is not None:
            self._running.unhook()
