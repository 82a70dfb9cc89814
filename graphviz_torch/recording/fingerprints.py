"""Record fingerprints of forward results and leaves, computed on the tensors' own devices.

Results of calls that created nodes, and results of modules, are read when they are computed. Roots
of backward and leaves are read when backward begins. Only every k-th row and column of a large leaf
is read. Tensors inside compiled regions, results without a node, and tensors without dense memory
of their own have no fingerprint.

Small tensors are cloned and queued, and then reduced together with others of the same shape. Large
tensors are not queued. 16-bit tensors are converted to float32, and complex tensors to their real
and imaginary parts. No matrix products are computed, because a program may have reduced their
precision.

The projection vectors are equal on every machine. They are computed from cosines, sines and squares
of the index, without a random generator:

    wave    cosine and sine of a whole number of turns along a dimension. If the elements are
            shifted cyclically along the dimension, the length of the pair (projection on the
            cosine, projection on the sine) does not change.
    noise   pseudo-random numbers. If two elements along the dimension are exchanged, the projection
            changes.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from itertools import repeat
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from ..graph import Fingerprint
from ..graph.immutable import NamedTuple
from ..internals.exceptions import ignore_exceptions
from ..internals.functions import TensorBase
from ..internals.guards import no_functions
from ..internals.hooks.calls import Called
from ..internals.hooks.modules import ModuleEnded
from ..internals.probes import run_unobserved, unobserved
from ..internals.tensors.memory import is_dense, may_be_read
from ..internals.tensors.pytree import tensors
from .backward import Backward
from .listener import BackwardBegan, Listener
from .live import LiveGraph
from .program import Program
from .recorder import Columns

# The key of a result is (sequence number, output_nr, False), and the key of a leaf is (node id,
# index of the graph, True).
_Key = tuple[int, int, bool]
_MAX_LEAF = 1 << 18  # about this many elements of a larger leaf are read


class ResultFingerprints(Listener):
    """Listener that records fingerprints of results, without waiting for a device."""

    needs = ("fingerprints",)

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._prints: Fingerprints[_Key] = Fingerprints()
        self._read: set[int] = set()  # sequence numbers of nodes whose results were read

    def on_call_end(self, event: Called) -> None:
        """Read the result of a call that created a node."""
        if event.end == event.start:
            return
        result = event.result
        if type(result) is Tensor:
            with no_functions():
                if result.requires_grad:
                    self._see(event.end - 1, result.output_nr, result)
        else:
            self._see_each(result)

    def on_module_end(self, event: ModuleEnded) -> None:
        """Read a module's results, unless an observed call returned them.

        Compiled regions and custom Functions create results without an observed call.
        """
        if event.output is not None:
            self._see_each(event.output, again=False)

    def on_backward_start(self, event: BackwardBegan) -> None:
        """Read the roots of the backward, unless they were read before."""
        self._see_each(list(event.outputs), again=False)

    def on_graph_read(self, live: LiveGraph) -> None:
        """Read the leaves of the graph."""
        leaves = set(live.reading.leaves.values())
        with no_functions():
            for fn, node in live.ids.items():
                if node in leaves:
                    self._prints.see((node, live.position, True), _sample(fn.variable))

    def node_columns(self, backward: Backward) -> Columns:
        rows: dict[int, dict[int, Fingerprint]] = {}
        for (number, position, leaf), value in self._prints.fetch().items():
            if leaf and position == backward.position:
                rows[number] = {0: value}
            elif not leaf and (node := backward.node(number)) is not None:
                rows.setdefault(node, {})[position] = value
        return {"fingerprints": {node: _tuple(row) for node, row in rows.items()}}

    def on_step_end(self, event: None) -> None:
        self._prints, self._read = Fingerprints(), set()

    def close(self) -> None:
        """Drop all queued tensors."""
        self._prints = Fingerprints()

    def _see_each(self, value: Any, *, again: bool = True) -> None:
        with no_functions():
            for tensor in tensors(value):
                if not is_dense(tensor) or not tensor.requires_grad or tensor.grad_fn is None:
                    continue
                with ignore_exceptions():
                    number = tensor.grad_fn._sequence_nr()
                    if again or number not in self._read:
                        self._see(number, tensor.output_nr, tensor)

    def _see(self, number: int, output_nr: int, tensor: Tensor) -> None:
        self._prints.see((number, output_nr, False), tensor)
        self._read.add(number)


def _tuple(row: dict[int, Fingerprint]) -> tuple[Fingerprint | None, ...]:
    return tuple(row.get(i) for i in range(max(row) + 1))


def _sample(leaf: Tensor) -> Tensor:
    """Return every k-th row and column of a large leaf; a smaller leaf is returned whole."""
    if not is_dense(leaf) or TensorBase.numel(leaf) <= _MAX_LEAF:
        return leaf
    step = math.ceil(math.sqrt(TensorBase.numel(leaf) / _MAX_LEAF))
    leaf = TensorBase.detach(leaf)
    return leaf[::step, ::step] if TensorBase.dim(leaf) > 1 else leaf[:: step * step]


_MAX_QUEUED = 1 << 14  # tensors with more elements are not queued
_QUEUE_SIZE = 1 << 20  # number of elements, on all devices together, at which the queue is emptied
_BLOCK = 1 << 22  # number of elements that are read at a time, and size of temporary tensors
_MAX_ROWS = 1 << 14  # fingerprints are copied to the CPU once more than this many are on devices
_DIGITS = 9  # number of significant digits that distinguishes all float32 values

_new: Any = tuple.__new__  # creates a Fingerprint without a Python-level call
Key = TypeVar("Key", bound=Hashable)


class Fingerprints(Generic[Key]):
    """Fingerprints of the tensors that were passed to `see`, by key."""

    def __init__(self) -> None:
        self._vectors = VectorTable()
        # (shape, dtype, device) -> keys and clones of the queued small tensors.
        self._copies: dict[Any, tuple[list[Key], list[Tensor]]] = {}
        self._waiting = 0
        # (device, dtype) -> the keys of tensors, their numbers of elements, and twelve numbers for
        # each tensor, which are still on the device.
        self._rows: dict[Any, tuple[list[Key], list[int], list[Tensor]]] = {}
        self._count = 0
        self._found: dict[Key, Fingerprint] = {}

    def see(self, key: Key, tensor: Tensor) -> None:
        """Compute the fingerprint of a tensor's current values, unless they cannot be read."""
        dtype = tensor.dtype
        if not may_be_read(tensor) or not (dtype.is_floating_point or dtype.is_complex):
            return
        run_unobserved(self._see, key, tensor)

    def _see(self, key: Key, tensor: Tensor) -> None:
        if tensor.dtype.is_complex:
            tensor = torch.view_as_real(torch.resolve_conj(tensor))
        count = TensorBase.numel(tensor)
        if not count:
            self._found[key] = Fingerprint(0, 0.0, 0.0, 0.0, 0.0)
        elif count > _MAX_QUEUED:
            self._note([key], count, self._large(tensor))
        else:
            kind = tensor.shape, tensor.dtype, tensor.device
            group = self._copies.get(kind)
            if group is None:
                group = self._copies[kind] = [], []
            group[0].append(key)
            group[1].append(torch.clone(tensor, memory_format=torch.contiguous_format))
            self._waiting += count
            if self._waiting > _QUEUE_SIZE:
                self._read_copies()

    def fetch(self) -> dict[Key, Fingerprint]:
        """Return all fingerprints by key, after one copy from each device."""
        with unobserved():
            self._wait()
            self._read_copies()
            self._copy_rows()
        return self._found

    def _read_copies(self) -> None:
        groups, self._copies, self._waiting = self._copies, {}, 0
        for (shape, dtype, _), (keys, copies) in groups.items():
            columns = shape[-1] if shape else 1
            stacked = TensorBase.to(
                TensorBase.view(torch.stack(copies), len(copies), -1, columns), _wide(dtype)
            )
            self._note(
                keys, shape.numel(), _numbers(stacked, self._vectors.for_shape(shape, stacked))
            )

    def _large(self, tensor: Tensor) -> Tensor:
        """Return the twelve fingerprint numbers of a large tensor, as a tensor of shape [1, 12]."""
        columns = tensor.shape[-1]
        rows, wide = TensorBase.reshape(tensor, -1, columns), _wide(tensor.dtype)
        vectors = self._vectors.for_shape(tensor.shape, TensorBase.new_empty(rows, 0, dtype=wide))
        size = max(_BLOCK // columns, 1)
        parts = []
        for start in range(0, rows.shape[0], size):
            here = slice(start, start + size)
            part = vectors._replace(down=vectors.down[:, here], rows=vectors.rows[here])
            parts.append(_numbers(TensorBase.to(rows[here], wide)[None], part))
        if len(parts) == 1:
            return parts[0]
        whole = torch.cat(parts)
        added = torch.sum(whole, 0)
        added[7] = torch.linalg.vector_norm(whole[:, 7])
        added[8], added[9] = torch.amin(whole[:, 8]), torch.amax(whole[:, 9])
        return added[None]

    def _note(self, keys: Sequence[Key], count: int, numbers: Tensor) -> None:
        kind = numbers.device, numbers.dtype
        group = self._rows.setdefault(kind, ([], [], []))
        group[0].extend(keys)
        group[1].extend(repeat(count, len(keys)))
        group[2].append(numbers)
        self._count += len(keys)
        if self._count > _MAX_ROWS:
            self._wait()
            self._copy_rows()

    def _wait(self) -> None:
        """Wait for all CUDA streams that may have computed the tensors."""
        for device in {kind[0] for kind in self._rows} | {kind[2] for kind in self._copies}:
            if device.type == "cuda":
                torch.cuda.synchronize(device)

    def _copy_rows(self) -> None:
        groups, self._rows, self._count = self._rows, {}, 0
        for keys, counts, numbers in groups.values():
            here = TensorBase.numpy(TensorBase.cpu(torch.cat(numbers))).astype(np.float64)
            self._found.update(zip(keys, _fingerprints(counts, here), strict=True))


def _wide(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype.itemsize >= 4 else torch.float32


def _numbers(rows: Tensor, vectors: Vectors) -> Tensor:
    """Return the twelve fingerprint numbers of each of n matrices, as a tensor [n, 12].

    The numbers are projections on the vectors, norms, extremes, and the sum of cubes.

    Args:
        rows: the matrices, [n, rows, columns].
        vectors: the projection vectors for one matrix.
    """
    both = (1, 2)
    return torch.cat(
        [
            torch.sum(torch.sum(rows, 1)[:, None] * vectors.along, 2),
            torch.sum(torch.sum(rows, 2)[:, None] * vectors.down, 2),
            torch.stack(
                [
                    torch.sum(torch.sum(rows * vectors.columns, 2) * vectors.rows, 1),
                    torch.linalg.vector_norm(rows, dim=both),
                    torch.amin(rows, both),
                    torch.amax(rows, both),
                    torch.linalg.vector_norm(rows, 1, dim=both),
                    torch.sum(TensorBase.mul_(rows * rows, rows), both),
                ],
                1,
            ),
        ],
        1,
    )


@np.errstate(all="ignore")  # no warnings for non-finite values, which are part of a fingerprint
def _fingerprints(counts: list[int], numbers: Any) -> list[Fingerprint]:
    norm = numbers[:, 7]
    total = numbers[:, 0] / np.array(counts)
    cubes = np.where(norm > 0, numbers[:, 11] / norm / norm, 0.0)
    columns = [norm, total, numbers[:, 8], numbers[:, 9], *numbers[:, 1:7].T, numbers[:, 10], cubes]
    rows = _round(np.stack(columns, 1)).tolist()
    return [
        _new(Fingerprint, (count, *row[:4], tuple(row[4:])))
        for count, row in zip(counts, rows, strict=True)
    ]


def _round(values: Any) -> Any:
    """Return values rounded to nine significant digits, with NaN replaced by inf."""
    power = np.floor(np.log10(np.abs(values)))
    scale = 10.0 ** (_DIGITS - 1 - power)
    short = np.round(values * scale) / scale
    short = np.where(np.isfinite(short), short, np.where(np.isfinite(values), 0.0, values))
    # NaN is not equal to NaN, but fingerprints of equal tensors have to be equal.
    return np.where(np.isnan(short), np.inf, short)


_GOLDEN = (math.sqrt(5) - 1) / 2
_ROOT = math.sqrt(2) - 1
_MAX_CACHED = 1 << 20  # largest number of elements of all cached vectors together


class Vectors(NamedTuple):
    """The projection vectors for tensors of one shape.

    A tensor is viewed as a matrix. The last dimension becomes the columns, and all other dimensions
    together become the rows.
    """

    along: Tensor  # [3, columns]: ones, and cosine and sine along the last dimension
    columns: Tensor  # [columns]: noise
    down: Tensor  # [3, rows]: cosine, sine along the second-last dimension, noise along the first
    rows: Tensor  # [rows]: noise


class VectorTable:
    """A cache of projection vectors by shape, dtype and device."""

    def __init__(self) -> None:
        self._known: OrderedDict[object, Vectors] = OrderedDict()
        self._size = 0

    def for_shape(self, shape: tuple[int, ...], like: Tensor) -> Vectors:
        """Return the vectors for a shape, in the dtype and on the device of `like`."""
        if like.is_cpu and self is not CPU_VECTORS:
            return CPU_VECTORS.for_shape(shape, like)
        key = shape, like.dtype, like.device
        found = self._known.get(key)
        if found is None:
            found = _make_vectors(shape, like.dtype, like.device)
            self._known[key] = found
            self._size += _size(found)
            while self._size > _MAX_CACHED:
                self._size -= _size(self._known.popitem(last=False)[1])
        return found


CPU_VECTORS = VectorTable()  # shared by all recordings


def _make_vectors(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Vectors:
    columns = shape[-1] if shape else 1
    rows = math.prod(shape[:-1])
    near, first = (shape[-2], shape[0]) if len(shape) > 1 else (1, 1)
    places, lines = (torch.arange(n, dtype=torch.float64, device="cpu") for n in (columns, rows))
    along = torch.stack([torch.ones_like(places), *_wave(places, columns)])
    blocks = torch.floor(lines * first / rows)
    down = torch.stack([*_wave(lines % near, near), _noise(blocks, _GOLDEN)])
    made = along, _noise(places, _GOLDEN), down, _noise(lines, _ROOT)
    return Vectors(*(TensorBase.to(one, device, dtype) for one in made))


def _wave(places: Tensor, size: int) -> tuple[Tensor, Tensor]:
    turns = max(round(_GOLDEN**2 * size), 1)
    while math.gcd(turns, size) > 1:  # with a common divisor, the wave would have a shorter period
        turns -= 1
    angles = places * turns % size * (2 * math.pi / size)
    return torch.cos(angles), torch.sin(angles)


def _noise(places: Tensor, seed: float) -> Tensor:
    counted = places + 1
    return math.sqrt(3) * (2 * torch.frac(counted * torch.frac(counted * seed)) - 1)


def _size(vectors: Vectors) -> int:
    return sum(TensorBase.numel(one) for one in vectors)
