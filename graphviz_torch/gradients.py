"""What each gradient looked like when it reached a node's output, and how long each node took.

Statistics are reduced on the gradient's own device and brought over in one copy for each device.
Norms of float32 gradients are float32 sums; 16-bit gradients are summed as float32. A complex
gradient is described by its absolute values, a sparse one as the dense tensor that it stands for.
Not described: gradients without values (meta, fake, batched by vmap).

`seconds` of a node on the CPU is the time from when it has its gradients until the engine has
handed the next node its own: the node's work, its hooks, and the sums of gradients that it takes
part in. On CUDA it is the time between two events on the node's stream, around it; a CPU node of
such a graph has None, for the engine's threads mix. Elsewhere None.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from .dispatch import unseen
from .graph import GradientStats, TensorMeta
from .tracer import tensor_meta

SMALL = 16  # elements: the values of a gradient this small are kept
_BATCHED = 16384  # elements: smaller gradients are described together with others of their shape
_PENDING = 1 << 17  # elements of one shape that may wait: they are in the cache still
_WIDTH, _BLOCK = 4096, 64  # elements of a row and rows of a block: 1 MB of float32
_COLUMNS = 6  # norm, max_abs, mean, nonzero, nan, inf

Where = tuple[int, int]  # node and output_nr


class Gradients:
    """A context with hooks on live nodes, for one backward run.

    Args:
        fns: the nodes, in the order of `Graph.nodes`.
        cuda: is one of them on a CUDA device.
    """

    def __init__(self, fns: Sequence[Any], cuda: bool) -> None:
        self._fns = fns
        self._cuda = cuda
        self._handles: list[Any] = []
        # In the order of the run: the node, if it is timed on the CPU, when it was entered and left
        # to itself.
        self._stamps: list[tuple[int, bool, float, float]] = []
        self._events: dict[int, tuple[Any, Any]] = {}
        self._waiting: dict[Any, tuple[list[Where], list[Tensor]]] = {}
        # For each device: what was reduced there, and whose it is: kept values and shape.
        self._reduced: dict[torch.device, list[Tensor]] = {}
        self._whose: dict[torch.device, list[tuple[list[Where], int, TensorMeta]]] = {}
        self._found: dict[Where, GradientStats] = {}

    def __enter__(self) -> Gradients:
        for node, fn in enumerate(self._fns):
            self._handles.append(fn.register_prehook(partial(self._before, node)))
            if self._cuda:
                self._handles.append(fn.register_hook(partial(self._after, node)))
        return self

    def __exit__(self, *_: object) -> None:
        self._stamps.append((-1, False, perf_counter(), 0.0))
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._fns = ()
        self._describe_waiting()

    @property
    def order(self) -> list[int]:
        """The nodes that backward ran, in its order."""
        return [node for node, _, _, _ in self._stamps[:-1]]

    def add(self, node: int, output_nr: int, gradient: Tensor | None) -> None:
        """Describe a gradient that no hook was given."""
        if gradient is not None and all(stamp[0] != node for stamp in self._stamps):
            self._see((node, output_nr), gradient)

    def _before(self, node: int, gradients: tuple[Tensor | None, ...]) -> None:
        entered = perf_counter()
        timed = False
        for output_nr, gradient in enumerate(gradients):
            if gradient is not None:
                self._see((node, output_nr), gradient)
                timed = gradient.is_cpu
                if gradient.is_cuda and node not in self._events:
                    self._events[node] = (_event(), _event())
        if node in self._events:
            self._events[node][0].record()
        self._stamps.append((node, timed and not self._cuda, entered, perf_counter()))

    def _after(self, node: int, inputs: Any, outputs: Any) -> None:
        if node in self._events:
            self._events[node][1].record()

    def _see(self, where: Where, gradient: Tensor) -> None:
        elements = gradient.numel()
        if elements == 0:
            self._found[where] = GradientStats(0.0, 0.0, 0.0, 0.0, tensor=tensor_meta(gradient))
        elif elements > _BATCHED or gradient.layout is not torch.strided or gradient.is_nested:
            self._describe([where], [gradient])
        else:
            key = (gradient.shape, gradient.dtype, gradient.device)
            waiting = self._waiting.get(key)
            if waiting is None:
                waiting = self._waiting[key] = ([], [])
            waiting[0].append(where)
            waiting[1].append(gradient)
            if len(waiting[1]) * elements > _PENDING:
                del self._waiting[key]
                self._describe(*waiting)

    def _describe_waiting(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for wheres, gradients in waiting.values():
            self._describe(wheres, gradients)

    def _describe(self, wheres: list[Where], gradients: list[Tensor]) -> None:
        first = gradients[0]
        with _aside(first):
            if not _has_values(first):
                return
            meta = tensor_meta(first)
            rows = _rows(gradients)
            kept = rows.shape[1] if first.numel() <= SMALL and not first.is_complex() else 0
            table = _describe_rows(rows, first.numel())
            if kept:
                table = torch.cat([table, rows], dim=1)
            self._reduced.setdefault(first.device, []).append(table.reshape(-1))
        self._whose.setdefault(first.device, []).append((wheres, kept, meta))

    def statistics(self, outputs: list[int]) -> dict[int, tuple[GradientStats | None, ...]]:
        """`grad_outputs` of each node that backward reached: one copy from each device.

        Args:
            outputs: the number of outputs of each node.
        """
        for device, tables in self._reduced.items():
            with _aside(tables[0]):
                numbers = torch.cat(tables).cpu().tolist()
            at = 0
            for wheres, kept, meta in self._whose[device]:
                elements = math.prod(meta.shape)
                for where in wheres:
                    norm, max_abs, mean, nonzero, nan, inf = numbers[at : at + _COLUMNS]
                    at += _COLUMNS
                    values = tuple(numbers[at : at + kept]) if kept else None
                    at += kept
                    self._found[where] = GradientStats(
                        *(norm, max_abs, mean, 1 - nonzero / elements),
                        *(int(nan), int(inf), values, meta),
                    )
        self._reduced, self._whose = {}, {}
        rows: dict[int, list[GradientStats | None]] = {}
        for (node, output_nr), stats in self._found.items():
            rows.setdefault(node, [None] * outputs[node])[output_nr] = stats
        return {node: tuple(row) for node, row in rows.items()}

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


def _aside(tensor: Tensor) -> ExitStack:
    """Where our own operators are no part of the user's program: no graph, no mode sees them."""
    stack = ExitStack()
    stack.enter_context(torch.no_grad())
    stack.enter_context(torch._C.DisableTorchFunction())
    stack.enter_context(unseen())
    if type(tensor) is Tensor:  # a subclass needs its dispatch
        stack.enter_context(torch._C._DisableTorchDispatch())
    return stack


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _has_values(gradient: Tensor) -> bool:
    from torch._subclasses.fake_tensor import FakeTensor

    if type(gradient) is Tensor and gradient.layout == torch.strided:
        # Private (2.13): true for tensors batched by vmap, and for meta ones.
        return not torch._C._dispatch_isTensorSubclassLike(gradient)
    return not (gradient.is_meta or isinstance(gradient, FakeTensor))


def _rows(gradients: list[Tensor]) -> Tensor:
    """A row for each gradient with its elements; zeros that a sparse layout omits are left out."""
    first = gradients[0]
    if first.layout == torch.strided:
        turned = first.dim() == 2 and not first.is_contiguous()  # their order does not matter
        one = first.t() if turned and first.numel() > SMALL else first
        rows = torch.stack(gradients) if len(gradients) > 1 else one.detach()
        rows = rows.reshape(len(gradients), -1)
    else:
        values = first.coalesce() if first.layout == torch.sparse_coo else first
        rows = values.values().reshape(1, -1)
    return rows.abs() if rows.is_complex() else rows


def _describe_rows(rows: Tensor, elements: int) -> Tensor:
    """The columns for each row, as float64; `elements` counts those that are left out too."""
    if rows.dtype in (torch.float16, torch.bfloat16):
        rows = rows.float()
    if rows.device.type == "cpu":
        # Reading a flag on the CPU is no copy: the costly columns are made where they are needed.
        parts = _blocks(rows[0]) if len(rows) == 1 else _parts(rows, torch.empty_like(rows))
        if bool(torch.isfinite(parts[:, 0]).all()):
            parts[:, 2] /= elements
            return torch.nn.functional.pad(parts, (0, 2)).double()
    wide = rows.double() if rows.device.type != "mps" else rows
    finite = torch.isfinite(wide)
    clean = torch.where(finite, wide, 0.0)
    nan = torch.isnan(wide).sum(1)
    inf = torch.isinf(wide).sum(1)
    columns = [
        torch.linalg.vector_norm(clean, dim=1),
        clean.abs().amax(1),
        clean.sum(1) / (elements - nan - inf).clamp(min=1),
        torch.count_nonzero(wide, dim=1),
        nan,
        inf,
    ]
    return torch.stack([column.to(wide.dtype) for column in columns], dim=1)


def _parts(rows: Tensor, buffer: Tensor) -> Tensor:
    """Norm, largest absolute value, sum and count of non-zeros of each row, NaN if one has NaN."""
    # Five times as fast as count_nonzero along a dimension; rows are short, so the sum is exact.
    nonzero = torch.ne(rows, 0, out=buffer).sum(1)
    high = torch.maximum(rows.amax(1), rows.amin(1).neg_())
    return torch.stack([torch.linalg.vector_norm(rows, dim=1), high, rows.sum(1), nonzero], dim=1)


def _blocks(row: Tensor) -> Tensor:
    """`_parts` of one long row, in blocks: read from memory once, and then from the cache."""
    whole = len(row) - len(row) % _WIDTH
    blocks = list(torch.split(row[:whole].view(-1, _WIDTH), _BLOCK)) if whole else []
    buffer = row.new_empty(_BLOCK, _WIDTH)
    parts = [_parts(block, buffer[: len(block)]) for block in blocks]
    if whole < len(row):
        parts.append(_parts(row[None, whole:], buffer[:1, : len(row) - whole]))
    table = torch.cat(parts).double()
    norm = torch.linalg.vector_norm(table[:, 0])
    return torch.stack([norm, table[:, 1].amax(), table[:, 2].sum(), table[:, 3].sum()])[None]
