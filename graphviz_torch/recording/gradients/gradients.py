"""Record the gradient at every node of a backward, the nodes' order, and their durations.

The recording hooks every node. On the CPU, `Node.seconds` is the time between the hook of the node
and the hook of the next node. It contains the node's work, the program's hooks on the node, and the
accumulation of its gradients. On CUDA it is the time between two events, which are recorded on the
node's stream when these hooks run. If a graph has nodes on several devices, the engine's threads
run at the same time. The duration of a CUDA node then ends with the node's hooks, and CPU nodes
have no duration. Nodes on other devices never have a duration.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from operator import attrgetter
from time import perf_counter
from types import MethodType
from typing import Any

import torch
from torch import Tensor

from ...graph import GradientStats
from ...graph.gc import with_gc_disabled
from ...graph.nodes import CHANGED
from ...internals.functions import TensorBase
from ...internals.guards import dispatch_mode_count
from ...internals.hooks.engine import queue_callback
from ...internals.hooks.modes import function_mode_count
from ...internals.hooks.nodes import Hooks
from ...internals.streams import current_device
from ...internals.tensors.metadata import Outputs, is_custom, tensor_meta
from ...tracing.nodes import GradientEdge
from ..backward import Backward
from ..listener import BackwardBegan, BackwardEnded, Listener
from ..program import Program
from ..recorder import Columns
from .cuda_clock import CudaClock
from .statistics import Descriptions, GradientClass, PendingBatch, alias


class GradientHooks:
    """A context manager with hooks on the autograd nodes of a graph, for one backward.

    Args:
        fns: the nodes in the order of `Graph.nodes`.
        outputs: the metadata of each node's outputs.
        ran: list to which the hook of each node that runs appends three values: the node's id, the
            time at which the hook began, and the time at which it ended (None if the node is not
            timed on the CPU).
        devices: devices of the nodes.
        finite: True to leave out finite gradients. On the CPU, durations and the values of small
            gradients are then left out as well.
    """

    def __init__(
        self,
        fns: Iterable[Any],
        outputs: Sequence[Outputs],
        ran: list[Any],
        devices: Collection[str],
        *,
        finite: bool = False,
    ) -> None:
        self._finite = finite
        self._brief = finite and set(devices) == {"cpu"}
        self._fns, self._outputs = list(fns), outputs
        self._ran = ran
        cuda = any(device.startswith("cuda") for device in devices)
        self._clock = CudaClock() if cuda else None
        self._mixed = len(devices) > 1
        self._hooks = Hooks()
        self._descriptions = Descriptions(finite=finite)

    def __enter__(self) -> GradientHooks:
        # The keys contain the id() of an outputs tuple, because hashing the tuple would be slower.
        # Nodes with equal single outputs share the same tuple.
        fns, outputs = self._fns, self._outputs
        keys = list(zip(map(type, fns), map(id, outputs), strict=True))
        prehooks = {
            key: self._choose_prehook(key[0], metas)
            for key, metas in dict(zip(keys, outputs, strict=True)).items()
        }
        # A method that is bound to the id takes a quarter of the instructions of a `partial`.
        hooks = map(MethodType, map(prehooks.__getitem__, keys), count())
        self._hooks.put(zip(map(attrgetter("register_prehook"), fns), hooks, strict=False))
        if self._clock is not None and self._mixed:
            self._hooks.put([(fn.register_hook, self._posthook) for fn in fns])
        return self

    def __exit__(self, *_: object) -> None:
        self._hooks.remove()
        self._on_engine_end()
        self._descriptions.describe_all()  # gradients that arrived after `_on_engine_end`
        self._fns.clear()

    def _on_engine_end(self) -> None:
        """Record the time at which all nodes have run.

        The engine calls this before the callbacks that were queued later.
        """
        if self._ran and self._ran[-3] >= 0:
            self._ran.extend((-1, perf_counter(), None))
            if self._clock is not None:
                self._clock.finish()
            self._descriptions.describe_all()

    def fail(self) -> None:
        """Discard the duration of the last node, because the node raised an exception."""
        if self._clock is not None:
            self._clock.abandon()
        if self._ran:
            self._ran[-1] = None

    def unhook(self) -> None:
        """Remove the hooks that an interrupt left."""
        self._hooks.remove()

    def add(self, given: Iterable[tuple[int, int, Tensor | None]]) -> None:
        """Compute the statistics of gradients of nodes whose hooks did not run.

        Args:
            given: tuples of node id, output_nr and gradient.
        """
        ran = set(self._ran[::3])
        for node, output_nr, gradient in given:
            if gradient is not None and node not in ran:
                kind = self._descriptions.kind(tensor_meta(gradient))
                self._descriptions.see((node, output_nr), gradient, kind)

    def _choose_prehook(self, of: type, outputs: Outputs) -> Callable[..., None]:
        """Return the hook that runs before nodes of class `of`. Its first argument is the id."""
        kind_of = self._descriptions.kind
        kinds = tuple([None if meta is None else kind_of(meta) for meta in outputs])
        leaf, custom = of.__name__ == "AccumulateGrad", is_custom(of)
        kind = kinds[0] if len(kinds) == 1 else None
        if kind is None or not (kind.cpu and kind.batch) or self._clock is not None or custom:
            return partial(self._prehook, kinds, leaf, custom)
        return self._make_fast_prehook(kind, kind.batch, leaf)

    def _make_fast_prehook(
        self, kind: GradientClass, batch: PendingBatch, leaf: bool
    ) -> Callable[..., None]:
        """Return a faster `_prehook` for nodes whose only gradient is queued on the CPU.

        Most nodes are of this kind. The gradient's key is the node's id, without an output_nr.
        Attributes are looked up here, so that the returned function does not look them up.

        Args:
            kind: class of the gradient.
            batch: the batch of `kind`.
            leaf: True if the nodes are AccumulateGrad nodes.
        """
        slow, describe = self._prehook, self._descriptions.describe
        ran, waiting = self._ran, kind.waiting.rows
        elements, limit, strided = kind.elements, batch.limit, torch.strided

        def prehook(node: int, given: tuple[Tensor | None, ...]) -> None:
            began = perf_counter()
            (gradient,) = given
            if (
                type(gradient) is not Tensor
                or gradient.layout is not strided
                or not ran
                or ran[-3] < 0
            ):
                return slow((kind,), leaf, False, node, given)
            if leaf:
                seen = function_mode_count() or dispatch_mode_count()
                gradient = alias(gradient) if seen else TensorBase.detach(gradient)
            try:
                version = gradient._version
            except RuntimeError:  # inference tensors have no version
                version = None
            waiting.extend((node, version, gradient))
            base = gradient._base
            # While a view is queued, its whole base stays alive.
            batch.elements += elements if base is None else max(elements, TensorBase.numel(base))
            if batch.elements >= limit:
                describe(batch)
            ran.extend((node, began, perf_counter()))

        return prehook

    def _prehook(
        self,
        kinds: tuple[GradientClass | None, ...],
        leaf: bool,
        custom: bool,
        node: int,
        gradients: tuple[Tensor | None, ...],
    ) -> None:
        entered = perf_counter()
        # This is the first node, or the first node after a nested backward.
        if not self._ran or self._ran[-3] < 0:
            with suppress(RuntimeError):  # compiled autograd has no callbacks
                queue_callback(self._on_engine_end)
        clock, described = self._clock, self._descriptions.times
        event = None if clock is None else clock.stop()
        timed = cuda = False
        # AccumulateGrad stores a gradient in `.grad` without a copy only if nothing else refers to
        # the tensor. An alias of the gradient is therefore queued.
        if leaf:
            gradients = tuple(None if given is None else alias(given) for given in gradients)
        for output_nr, gradient in enumerate(gradients):
            if gradient is not None:
                kind = kinds[output_nr] or self._descriptions.kind(tensor_meta(gradient))
                timed = kind.cpu
                if kind.cuda is not None:
                    cuda = True
                    if kind.cuda != current_device():
                        self._descriptions.wait_for(gradient, kind.cuda)
                self._descriptions.see((node, output_nr), gradient, kind)
        if custom:  # a custom backward may change queued gradients in place
            self._descriptions.describe_all()
        if clock is not None and cuda:
            clock.start(node, event if self._descriptions.times == described else None)
        left = perf_counter() if timed and clock is None else None
        self._ran.extend((node, entered, left))

    def _posthook(self, *_: object) -> None:
        # The node's duration ends here, because the next node may wait for another device.
        if self._clock is not None:
            self._clock.stop()

    def statistics(
        self, outputs: Sequence[Sequence[object]]
    ) -> dict[int, tuple[GradientStats | None, ...]]:
        """Return `Node.grad_outputs` by node id, after one copy from each device.

        Nodes that backward did not reach are left out.

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

    def changed_nodes(self) -> set[int]:
        """Return the ids of nodes with a gradient that was changed in place while it was queued."""
        return {each if type(each) is int else each[0] for each in self._descriptions.changed}

    def seconds(self) -> dict[int, float]:
        """Wait for the CUDA events, and return the nodes' durations in seconds, by node id."""
        found = {} if self._clock is None else self._clock.seconds()
        if not self._brief:
            for node, left, ended in zip(*(self._ran[k::3] for k in (0, 2, 4)), strict=False):
                if left is not None:
                    found[node] = ended - left
        return found


class Gradients(Listener):
    """Listener that records the gradient at every node, or non-finite gradients only."""

    needs = ("with_gradients",)

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._finite = program.options.light
        self._running: GradientHooks | None = None
        self._asked: list[GradientEdge] = []  # gradient edges of the `inputs` of `autograd.grad`
        self._runs: dict[int, GradientHooks] = {}  # by index of the graph

    @with_gc_disabled
    def on_backward_start(self, event: BackwardBegan) -> None:
        """Add a hook to every node, if hooks are allowed."""
        live, ran = event.live, event.live.ran.rows
        if ran is None:
            return
        self._asked = event.asked
        outputs = live.reading.columns["outputs"]
        hooks = GradientHooks(live.ids, outputs, ran, live.devices, finite=self._finite)
        self._running = hooks
        self._runs[live.position] = hooks
        hooks.__enter__()

    def on_backward_end(self, event: BackwardEnded) -> None:
        """Remove the hooks from the nodes."""
        hooks, self._running = self._running, None
        if hooks is None:
            return
        try:
            if event.error is not None:
                hooks.fail()
            # `autograd.grad` returns the gradients of its inputs without running the inputs' nodes.
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
            "note": dict.fromkeys(hooks.changed_nodes(), CHANGED),
        }

    def close(self) -> None:
        if self._running is not None:
            self._running.unhook()
