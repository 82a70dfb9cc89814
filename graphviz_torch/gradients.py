"""What each gradient looked like when it reached a node's output, and how long each node took.

Statistics are reduced on the gradient's own device and brought over in one copy for each device.
Norms of float32 gradients are float32 sums; 16-bit gradients are summed as float32. A complex
gradient is described by its absolute values, a sparse one as the dense tensor that it stands for.
Not described: gradients without values (meta, fake, batched by vmap).

`seconds` of a node on the CPU is the time between the moment it was handed its gradients and the
moment it handed on its own; on CUDA, between two events on its stream; elsewhere None. What other
hooks of the node take is in it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .dispatch import unseen
from .graph import GradientStats, TensorMeta
from .tracer import tensor_meta

SMALL = 16  # elements: the values of a gradient this small are kept
_BATCHED = 16384  # elements: smaller gradients are described together with others of their shape
_PENDING = 1 << 21  # elements that may wait
_COLUMNS = 6  # norm, max_abs, mean, nonzero, nan, inf

Where = tuple[int, int]  # node and output_nr


class Gradients:
    """Hooks on live nodes for one backward run.

    Args:
        fns: the nodes, in the order of `Graph.nodes`.
    """

    def __init__(self, fns: Sequence[Any]) -> None:
        self.order: list[int] = []  # nodes, as backward ran them
        self._fns = fns
        self._handles: list[Any] = []
        self._started: dict[int, float] = {}
        self._seconds: dict[int, float] = {}
        self._events: dict[int, tuple[Any, Any]] = {}
        self._waiting: dict[Any, tuple[list[Where], list[Tensor]]] = {}
        self._waiting_elements = 0
        self._metas: dict[Where, TensorMeta] = {}
        self._constant: dict[Where, GradientStats] = {}
        # For each device: what was reduced there, and whose it is: positions, kept values.
        self._reduced: dict[torch.device, list[Tensor]] = {}
        self._whose: dict[torch.device, list[tuple[list[Where], int]]] = {}

    def __enter__(self) -> Gradients:
        handles = self._handles
        for i, fn in enumerate(self._fns):
            handles.append(fn.register_prehook(partial(self._before, i)))
            handles.append(fn.register_hook(partial(self._after, i)))
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._fns = ()
        self._describe_waiting()

    def add(self, node: int, output_nr: int, gradient: Tensor | None) -> None:
        """Describe a gradient that no hook was given."""
        if gradient is not None and (node, output_nr) not in self._metas:
            self._see((node, output_nr), gradient)
            self._describe_waiting()

    def _before(self, node: int, gradients: tuple[Tensor | None, ...]) -> None:
        self.order.append(node)
        cuda = False
        for output_nr, gradient in enumerate(gradients):
            if gradient is not None:
                self._see((node, output_nr), gradient)
                cuda = cuda or gradient.is_cuda
        if cuda:
            events = self._events[node] = (_event(), _event())
            events[0].record()
        elif gradients and type(gradients[0]) is Tensor and gradients[0].is_cpu:
            self._started[node] = time.perf_counter()

    def _after(self, node: int, inputs: Any, outputs: Any) -> None:
        if node in self._started:
            self._seconds[node] = time.perf_counter() - self._started[node]
        elif node in self._events:
            self._events[node][1].record()

    def _see(self, where: Where, gradient: Tensor) -> None:
        self._metas[where] = tensor_meta(gradient)
        if gradient.numel() == 0:
            self._constant[where] = GradientStats(0.0, 0.0, 0.0, 0.0, tensor=self._metas[where])
        elif type(gradient) is not Tensor and not _has_values(gradient):
            return
        elif gradient.is_meta or gradient.layout != torch.strided or gradient.numel() > _BATCHED:
            if not gradient.is_meta:
                self._describe([where], [gradient])
        else:
            key = gradient.shape, gradient.dtype, gradient.device, type(gradient)
            waiting = self._waiting.get(key)
            if waiting is None:
                waiting = self._waiting[key] = ([], [])
            waiting[0].append(where)
            waiting[1].append(gradient)
            self._waiting_elements += gradient.numel()
            if self._waiting_elements > _PENDING:
                self._describe_waiting()

    def _describe_waiting(self) -> None:
        waiting, self._waiting, self._waiting_elements = self._waiting, {}, 0
        for wheres, gradients in waiting.values():
            self._describe(wheres, gradients)

    def _describe(self, wheres: list[Where], gradients: list[Tensor]) -> None:
        first = gradients[0]
        with _aside(first):
            rows = _rows(gradients)
            kept = rows.shape[1] if first.numel() <= SMALL and not first.is_complex() else 0
            table = _describe_rows(rows, first.numel())
            if kept:
                table = torch.cat([table, rows.to(table.dtype)], dim=1)
            self._reduced.setdefault(first.device, []).append(table.reshape(-1))
        self._whose.setdefault(first.device, []).append((wheres, kept))

    def statistics(self, outputs: list[int]) -> dict[int, tuple[GradientStats | None, ...]]:
        """`grad_outputs` of each node that backward reached: one copy from each device.

        Args:
            outputs: the number of outputs of each node.
        """
        found = dict(self._constant)
        for device, tables in self._reduced.items():
            with _aside(tables[0]):
                numbers = torch.cat(tables).cpu().tolist()
            at = 0
            for wheres, kept in self._whose[device]:
                for where in wheres:
                    found[where] = self._stats(where, numbers[at : at + _COLUMNS + kept])
                    at += _COLUMNS + kept
        self._constant, self._reduced, self._whose = found, {}, {}
        rows: dict[int, list[GradientStats | None]] = {}
        for (node, output_nr), stats in found.items():
            rows.setdefault(node, [None] * outputs[node])[output_nr] = stats
        return {node: tuple(row) for node, row in rows.items()}

    def seconds(self) -> dict[int, float]:
        """Duration of each node that was timed. Waits for the CUDA events."""
        for node, (start, end) in self._events.items():
            end.synchronize()
            self._seconds[node] = start.elapsed_time(end) / 1000
        self._events.clear()
        return self._seconds

    def _stats(self, where: Where, numbers: list[float]) -> GradientStats:
        norm, max_abs, mean, nonzero, nan, inf = numbers[:_COLUMNS]
        meta = self._metas[where]
        count = 1
        for n in meta.shape:
            count *= n
        return GradientStats(
            norm,
            max_abs,
            mean,
            1 - nonzero / count,
            int(nan),
            int(inf),
            tuple(numbers[_COLUMNS:]) or None,
            meta,
        )


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

    return not isinstance(gradient, FakeTensor)


def _rows(gradients: list[Tensor]) -> Tensor:
    """A row for each gradient with its elements; zeros that a sparse layout omits are left out."""
    first = gradients[0]
    if first.layout == torch.strided:
        rows = torch.stack(gradients) if len(gradients) > 1 else first.detach()
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
        norm = torch.linalg.vector_norm(rows, dim=1)
        if bool(torch.isfinite(norm).all()):
            low, high = torch.aminmax(rows, dim=1)
            nonzero = torch.count_nonzero(rows, dim=1)
            zero = torch.zeros_like(norm)
            columns = [norm, torch.maximum(-low, high), rows.sum(1) / elements, nonzero, zero, zero]
            return torch.stack([column.double() for column in columns], dim=1)
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
