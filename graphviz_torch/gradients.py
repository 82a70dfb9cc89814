"""What each gradient looked like when it reached a node's output, and how long each node took.

Statistics are reduced on the gradient's own device and brought over in one copy for each device.
Norms of float32 gradients are float32 sums; 16-bit gradients are summed as float32. Small gradients
wait for others of their shape, a few at a time, and so live that much longer. A complex
gradient is described by its absolute values, a sparse one as the dense tensor that it stands for.
Not described: gradients without values (meta, fake, batched by vmap) or of a kind that PyTorch has
no norm for, and one that a hook changed in place while it waited.

`seconds` of a node on the CPU is the time from when it has its gradients until the engine has
handed the next node its own: the node's work, its hooks, and the sums of gradients that it takes
part in. On CUDA it is the time between two events on the node's stream, around it; a CPU node of
such a graph has None, for the engine's threads mix. Elsewhere None.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from itertools import compress
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from .dispatch import unseen
from .graph import GradientStats, TensorMeta
from .metadata import is_custom
from .reductions import COLUMNS, SMALL, Numbers, Scratch, flat, numbers, on_cpu, rows_on_cpu, table
from .tracer import tensor_meta

_BATCHED = 1 << 17  # elements: smaller gradients are described together with others of their shape
_PENDING = 1 << 18  # elements of one shape that may wait: 1 MB of float32

_DENSE = torch.strided

Where = tuple[int, int]  # node and output_nr
# Numbers of a gradient, the values that are kept, and what tensor it is.
Row = tuple[Numbers, "tuple[Any, ...] | None", TensorMeta]


class _Batch:
    """Gradients of one kind that wait to be described together."""

    __slots__ = ("cpu", "cuda", "gradients", "limit", "meta", "versions", "wheres")

    def __init__(self, meta: TensorMeta, alone: bool) -> None:
        self.meta = meta
        self.cpu = meta.device == "cpu"
        self.cuda = meta.device.startswith("cuda")
        elements = math.prod(meta.shape)
        few = alone or not 0 < elements <= _BATCHED
        self.limit = 1 if few else -(-_PENDING // elements)
        self.clear()

    def clear(self) -> None:
        self.wheres: list[Where] = []
        self.gradients: list[Tensor] = []
        self.versions: list[int] = []


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
        self._handles: list[Any] = []
        # In the order of the run: the node, if it is timed on the CPU, when it was entered and left
        # to itself.
        self._stamps: list[tuple[int, bool, float, float]] = []
        self._events: dict[int, tuple[Any, Any]] = {}
        self._batches: dict[Any, _Batch] = {}  # by what the gradients are like
        self._scratch = Scratch()
        self._found: dict[Where, Row] = {}
        # For each device: what was reduced there, and whose it is: kept values and shape.
        self._reduced: dict[torch.device, list[Tensor]] = {}
        self._whose: dict[torch.device, list[tuple[list[Where], int, TensorMeta]]] = {}

    def __enter__(self) -> Gradients:
        before, after = self._before, self._after
        self._handles = [
            fn.register_prehook(partial(before, node, outputs, is_custom(type(fn))))
            for node, (fn, outputs) in enumerate(self._nodes)
        ]
        if self._cuda:
            for node, (fn, _) in enumerate(self._nodes):
                self._handles.append(fn.register_hook(partial(after, node)))
        return self

    def __exit__(self, *_: object) -> None:
        self._stamps.append((-1, False, perf_counter(), 0.0))
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._describe_all()
        self._batches.clear()
        self._nodes.clear()
        self._scratch = Scratch()

    @property
    def order(self) -> list[int]:
        """The nodes that backward ran, in its order."""
        return [node for node, _, _, _ in self._stamps[:-1]]

    def add(self, node: int, output_nr: int, gradient: Tensor | None) -> None:
        """Describe a gradient that no hook was given."""
        if gradient is not None and all(stamp[0] != node for stamp in self._stamps):
            self._see(self._batch(gradient), (node, output_nr), gradient)

    def _before(
        self,
        node: int,
        outputs: tuple[TensorMeta | None, ...],
        custom: bool,
        gradients: tuple[Tensor | None, ...],
    ) -> None:
        entered = perf_counter()
        timed = False
        for output_nr, gradient in enumerate(gradients):
            if gradient is not None:
                batch = self._batches.get(outputs[output_nr])
                # The engine sees to it that a dense gradient is like the output.
                if batch is None or gradient.layout is not _DENSE or type(gradient) is not Tensor:
                    batch = self._batch(gradient)
                self._see(batch, (node, output_nr), gradient)
                timed = batch.cpu
                if batch.cuda and node not in self._events:
                    self._events[node] = (_event(), _event())
        if custom:  # its backward may change in place what waits
            self._describe_all()
        if self._cuda and node in self._events:
            self._events[node][0].record()
        self._stamps.append((node, timed and not self._cuda, entered, perf_counter()))

    def _after(self, node: int, inputs: Any, outputs: Any) -> None:
        if node in self._events:
            self._events[node][1].record()

    def _see(self, batch: _Batch, where: Where, gradient: Tensor) -> None:
        batch.wheres.append(where)
        batch.gradients.append(gradient)
        batch.versions.append(gradient._version)
        if len(batch.gradients) >= batch.limit:
            self._describe(batch)

    def _batch(self, gradient: Tensor) -> _Batch:
        meta = tensor_meta(gradient)
        dense = gradient.layout is _DENSE and not gradient.is_nested
        key: Any = meta if dense and type(gradient) is Tensor else (type(gradient), dense, meta)
        batch = self._batches.get(key)
        if batch is None:
            batch = self._batches[key] = _Batch(meta, alone=not dense)
        return batch

    def _describe_all(self) -> None:
        for batch in self._batches.values():
            self._describe(batch)

    def _describe(self, batch: _Batch) -> None:
        wheres, gradients, versions = batch.wheres, batch.gradients, batch.versions
        batch.clear()
        if any(g._version != v for g, v in zip(gradients, versions, strict=True)):
            # A hook changed one in place after it arrived: what it was is lost.
            kept = [g._version == v for g, v in zip(gradients, versions, strict=True)]
            wheres, gradients = list(compress(wheres, kept)), list(compress(gradients, kept))
        if not gradients:
            return
        # Our own operators are no part of the user's program: no graph, no mode sees them, and
        # one that PyTorch does not have for this kind of tensor is not to end it.
        with (
            suppress(Exception),
            torch.no_grad(),
            torch._C.DisableTorchFunction(),
            unseen(),
        ):
            if type(gradients[0]) is Tensor:
                with torch._C._DisableTorchDispatch():
                    self._reduce(wheres, gradients, batch.meta)
            else:  # a subclass needs its dispatch
                self._reduce(wheres, gradients, batch.meta)

    def _reduce(self, wheres: list[Where], gradients: list[Tensor], meta: TensorMeta) -> None:
        first = gradients[0]
        if not _has_values(first):
            return
        elements = first.numel()
        dense = first.layout is _DENSE and not first.is_nested
        keep = elements <= SMALL and dense and not first.is_complex()
        if elements == 0:
            self._found[wheres[0]] = (0.0, 0.0, 0.0, 0.0, 0, 0), None, meta
        elif type(first) is not Tensor or not first.is_cpu:
            rows = torch.stack([flat(gradient) for gradient in gradients])
            reduced = table(rows, elements)
            if keep:
                reduced = torch.cat([reduced, rows], dim=1)
            self._reduced.setdefault(first.device, []).append(reduced.reshape(-1))
            self._whose.setdefault(first.device, []).append((wheres, keep * elements, meta))
        elif elements > _BATCHED or not dense or first.is_complex():
            for where, gradient in zip(wheres, gradients, strict=True):
                self._found[where] = on_cpu(flat(gradient), elements, self._scratch), None, meta
        else:
            rows, beside = self._scratch.rows(gradients)
            kept = [tuple(row) for row in rows.tolist()] if keep else [None] * len(rows)
            for where, found, values in zip(wheres, rows_on_cpu(rows, beside), kept, strict=True):
                self._found[where] = found, values, meta

    def statistics(self, outputs: list[int]) -> dict[int, tuple[GradientStats | None, ...]]:
        """`grad_outputs` of each node that backward reached: one copy from each device.

        Args:
            outputs: the number of outputs of each node.
        """
        self._fetch()
        rows: dict[int, list[GradientStats | None]] = {}
        found: dict[int, tuple[GradientStats | None, ...]] = {}
        for (node, output_nr), (row, values, meta) in self._found.items():
            stats = GradientStats(*row, values, meta)
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
                    self._found[where] = numbers(row[at:middle]), values, meta
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


def _has_values(gradient: Tensor) -> bool:
    from torch._subclasses.fake_tensor import FakeTensor

    if type(gradient) is Tensor and gradient.layout == torch.strided:
        # Private (2.13): true for tensors batched by vmap, and for meta ones.
        return not torch._C._dispatch_isTensorSubclassLike(gradient)
    return not (gradient.is_meta or isinstance(gradient, FakeTensor))
