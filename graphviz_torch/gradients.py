"""What each gradient looked like when it reached a node's output, and how long each node took.

Statistics are reduced on the gradient's own device and brought over in one copy for each device.
Norms of float32 gradients are float32 sums; 16-bit gradients are summed as float32. Small gradients
wait for others, a megabyte of them on the CPU and 16 on another device, and so live that much
longer. A complex gradient is described by its absolute values, a sparse one as the dense tensor
that it stands for. Not described: gradients without values (meta, fake, batched by vmap) or of a
kind that PyTorch has no norm for, and one that a hook changed in place while it waited.

`seconds` of a node on the CPU is the time from when it has its gradients until the engine has
handed the next node its own: the node's work, its hooks, and the sums of gradients that it takes
part in. On CUDA it is the time between two events on the node's stream, around it; a CPU node of
such a graph has None, for the engine's threads mix. Elsewhere None.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from .dispatch import unseen
from .graph import GradientStats, TensorMeta
from .hooks import Hooks
from .metadata import is_custom
from .reductions import COLUMNS, SMALL, flat, numbers, on_cpu, table, together
from .tracer import tensor_meta

_ALONE = 1 << 17  # elements: a gradient with more of them does not wait for others
_WAITING = 1 << 18  # elements that may wait on the CPU: 1 MB of float32
_WAITING_ELSEWHERE = 1 << 22  # on another device: 16 MB
_TOGETHER = frozenset(("float32", "float64", "float16", "bfloat16"))

_new: Any = tuple.__new__  # GradientStats from a row of its fields, without a call of Python's

Where = tuple[int, int]  # node and output_nr


class _Kind:
    """Gradients of one shape, dtype and device."""

    __slots__ = ("cpu", "cuda", "elements", "group", "meta", "room")

    def __init__(self, meta: TensorMeta, room: _Room) -> None:
        self.meta = meta
        self.room = room
        self.cpu = meta.device == "cpu"
        self.cuda = meta.device.startswith("cuda")
        known = all(size >= 0 for size in meta.shape)
        self.elements = math.prod(meta.shape) if known else _ALONE + 1
        # What it can be reduced together with; None: nothing.
        self.group: str | TensorMeta | None = None
        if 0 < self.elements <= _ALONE:
            if not self.cpu:
                self.group = meta
            elif meta.dtype in _TOGETHER:
                self.group = meta.dtype


# Whose a gradient is, the gradient, its version when it arrived, and its kind.
Seen = tuple[Where, Tensor, int, _Kind]


class _Room:
    """Gradients of one device that wait to be described together."""

    __slots__ = ("elements", "limit", "waiting")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.clear()

    def clear(self) -> None:
        self.elements = 0
        self.waiting: list[Seen] = []


class Gradients:
    """A context with hooks on live nodes, for one backward run.

    Args:
        nodes: the nodes, in the order of `Graph.nodes`, and the outputs of each.
        cuda: is one of them on a CUDA device.
    """

    def __init__(
        self, nodes: Iterable[tuple[Any, tuple[TensorMeta | None, ...]]], cuda: bool
    ) -> None:
        self._nodes = list(nodes)
        self._cuda = cuda
        self._hooks = Hooks()
        # In the order of the run: the node, if it is timed on the CPU, when it was entered and left
        # to itself.
        self._stamps: list[tuple[int, bool, float, float]] = []
        self._events: dict[int, tuple[Any, Any]] = {}
        self._kinds: dict[TensorMeta, _Kind] = {}
        self._rooms: dict[str, _Room] = {}  # by device
        self._found: dict[Where, GradientStats] = {}
        # For each device: what was reduced there, and whose it is: kept values and shape.
        self._reduced: dict[torch.device, list[Tensor]] = {}
        self._whose: dict[torch.device, list[tuple[list[Where], int, TensorMeta]]] = {}

    def __enter__(self) -> Gradients:
        before, after = self._before, self._after
        kinds = {
            outputs: tuple(None if meta is None else self._kind(meta) for meta in outputs)
            for outputs in {outputs for _, outputs in self._nodes}
        }
        self._hooks.put(
            (fn.register_prehook, partial(before, node, kinds[outputs], is_custom(type(fn))))
            for node, (fn, outputs) in enumerate(self._nodes)
        )
        if self._cuda:
            self._hooks.put(
                (fn.register_hook, partial(after, node)) for node, (fn, _) in enumerate(self._nodes)
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._stamps.append((-1, False, perf_counter(), 0.0))
        self._hooks.remove()
        self._describe_all()
        self._nodes.clear()

    @property
    def order(self) -> list[int]:
        """The nodes that backward ran, in its order."""
        return [node for node, _, _, _ in self._stamps[:-1]]

    def add(self, node: int, output_nr: int, gradient: Tensor | None) -> None:
        """Describe a gradient that no hook was given."""
        if gradient is not None and all(stamp[0] != node for stamp in self._stamps):
            self._see((node, output_nr), gradient, self._kind(tensor_meta(gradient)))

    def _before(
        self,
        node: int,
        kinds: tuple[_Kind | None, ...],
        custom: bool,
        gradients: tuple[Tensor | None, ...],
    ) -> None:
        entered = perf_counter()
        timed = False
        for output_nr, gradient in enumerate(gradients):
            if gradient is not None:
                kind = kinds[output_nr] or self._kind(tensor_meta(gradient))
                self._see((node, output_nr), gradient, kind)
                timed = kind.cpu
                if kind.cuda and node not in self._events:
                    self._events[node] = (_event(), _event())
        if custom:  # its backward may change in place what waits
            self._describe_all()
        if self._cuda and node in self._events:
            self._events[node][0].record()
        self._stamps.append((node, timed and not self._cuda, entered, perf_counter()))

    def _after(self, node: int, inputs: Any, outputs: Any) -> None:
        if node in self._events:
            self._events[node][1].record()

    def _kind(self, meta: TensorMeta) -> _Kind:
        known = self._kinds.get(meta)
        if known is None:
            room = self._rooms.get(meta.device)
            if room is None:
                limit = _WAITING if meta.device == "cpu" else _WAITING_ELSEWHERE
                room = self._rooms[meta.device] = _Room(limit)
            known = self._kinds[meta] = _Kind(meta, room)
        return known

    def _see(self, where: Where, gradient: Tensor, kind: _Kind) -> None:
        seen = where, gradient, gradient._version, kind
        if kind.group is None:
            self._describe([seen])
            return
        room = kind.room
        room.waiting.append(seen)
        room.elements += kind.elements
        if room.elements >= room.limit:
            self._describe_all()

    def _describe_all(self) -> None:
        for room in self._rooms.values():
            waiting = room.waiting
            room.clear()
            self._describe(waiting)

    def _describe(self, gradients: list[Seen]) -> None:
        groups: dict[Any, list[Seen]] = {}
        for seen in gradients:
            where, gradient, version, kind = seen
            if gradient._version == version:  # else a hook changed it: what it was is lost
                key = kind.group if _is_plain(gradient) else None
                groups.setdefault(key or where, []).append(seen)
        for group in groups.values():
            # Our own operators are no part of the user's program: no graph, no mode sees them, and
            # one that PyTorch does not have for this kind of tensor is not to end it.
            with (
                suppress(Exception),
                torch.no_grad(),
                torch._C.DisableTorchFunction(),
                unseen(),
            ):
                if type(group[0][1]) is Tensor:
                    with torch._C._DisableTorchDispatch():
                        self._reduce(group)
                else:  # a subclass needs its dispatch
                    self._reduce(group)

    def _reduce(self, group: list[Seen]) -> None:
        where, first, _, kind = group[0]
        if _is_plain(first) and first.is_cpu and kind.group is not None:
            gradients = [seen[1] for seen in group]
            lengths = list(map(Tensor.numel, gradients))
            rows = together(gradients, lengths)
            for (where, _, _, kind), (row, values) in zip(group, rows, strict=True):
                self._found[where] = _new(GradientStats, (*row, values, kind.meta))
        elif _has_values(first):
            self._reduce_like([seen[0] for seen in group], [seen[1] for seen in group])

    def _reduce_like(self, wheres: list[Where], gradients: list[Tensor]) -> None:
        """Describe gradients that look the same; one, if there is any doubt."""
        first = gradients[0]
        meta = tensor_meta(first)
        elements = first.numel()
        keep = elements <= SMALL and _is_plain(first) and not first.is_complex()
        if elements == 0:
            self._found[wheres[0]] = GradientStats(0.0, 0.0, 0.0, 0.0, 0, 0, None, meta)
        elif type(first) is Tensor and first.is_cpu:
            row = flat(first)
            values = tuple(row.tolist()) if keep else None
            found = on_cpu(row, elements)
            self._found[wheres[0]] = GradientStats(*found, values, meta)
        else:
            rows = torch.stack([flat(gradient) for gradient in gradients])
            reduced = table(rows, elements)
            if keep:
                reduced = torch.cat([reduced, rows], dim=1)
            self._reduced.setdefault(first.device, []).append(reduced.reshape(-1))
            self._whose.setdefault(first.device, []).append((wheres, keep * elements, meta))

    def statistics(self, outputs: Sequence[int]) -> dict[int, tuple[GradientStats | None, ...]]:
        """`grad_outputs` of each node that backward reached: one copy from each device.

        Args:
            outputs: the number of outputs of each node.
        """
        self._fetch()
        rows: dict[int, list[GradientStats | None]] = {}
        found: dict[int, tuple[GradientStats | None, ...]] = {}
        for (node, output_nr), stats in self._found.items():
            if outputs[node] == 1:
                found[node] = (stats,)
            else:
                rows.setdefault(node, [None] * outputs[node])[output_nr] = stats
        return found | {node: tuple(row) for node, row in rows.items()}

    def _fetch(self) -> None:
        """Bring over what was reduced on other devices."""
        for device, tables in self._reduced.items():
            row: list[float] = []
            with suppress(Exception), torch.no_grad(), torch._C.DisableTorchFunction(), unseen():
                row = torch.cat(tables).cpu().tolist()
            if not row:  # a tensor subclass that has no values to give
                continue
            at = 0
            for wheres, kept, meta in self._whose[device]:
                for where in wheres:
                    middle, end = at + COLUMNS, at + COLUMNS + kept
                    values = tuple(row[middle:end]) if kept else None
                    self._found[where] = GradientStats(*numbers(row[at:middle]), values, meta)
                    at = end
        self._reduced, self._whose = {}, {}

    def seconds(self) -> dict[int, float]:
        """Duration of each node that was timed. Waits for the CUDA events."""
        found = {}
        for node, (start, end) in self._events.items():
            end.synchronize()
            found[node] = start.elapsed_time(end) / 1000
        for (node, timed, _, left), (_, _, entered, _) in zip(
            self._stamps, self._stamps[1:], strict=False
        ):
            if timed:
                found[node] = entered - left
        return found


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _is_plain(gradient: Tensor) -> bool:
    """Is it a dense tensor with values of its own."""
    # Private (2.13): true for tensors batched by vmap, for nested and for meta ones.
    return (
        type(gradient) is Tensor
        and gradient.layout is torch.strided
        and not torch._C._dispatch_isTensorSubclassLike(gradient)
    )


def _has_values(gradient: Tensor) -> bool:
    from torch._subclasses.fake_tensor import FakeTensor

    if type(gradient) is Tensor and gradient.layout == torch.strided and not gradient.is_nested:
        return _is_plain(gradient)
    return not (gradient.is_meta or isinstance(gradient, FakeTensor))
