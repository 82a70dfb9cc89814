"""Follow axes through a graph: the original axes in a dimension, and the axis of the samples.

An atom is an axis with an id and a size. A dimension is a tuple of atoms, slowest first. A view
splits and joins dimensions, a permute moves them, a matrix product keeps the rows of its first
operand and the columns of its second. Dimensions of unknown origin get new atoms.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import field
from functools import lru_cache
from itertools import count

from ..graph import Node, TensorMeta
from ..graph.immutable import mutable
from ..graph.nodes import VIEWS
from .graph_reading import Reading

Atom = tuple[int, int]  # id, size
Dimension = tuple[Atom, ...]
Axes = tuple[Dimension, ...]

LAYERS = ("mm", "addmm", "linear", "convolution")  # operations that multiply by a weight
_PRODUCTS = {"mm", "bmm", "addmm", "baddbmm"}
_MULTI_LAYER_RNNS = ("cudnn_rnn", "miopen_rnn")  # one node computes all layers and their states
_REDUCING = {"sum", "mean", "max", "min", "amax", "amin", "logsumexp", "linalg_vector_norm"}


def keeps_order(reading: Reading) -> bool:
    """Return True if each view joins whole dimensions, or splits joined dimensions as they were.

    If so, no view breaks an axis. Most graphs pass this cheap check; the others need `AxisReading`.
    """
    joined: dict[int, set[tuple[int, ...]]] = {}
    split: dict[int, set[tuple[int, ...]]] = {}
    # Pairs of shapes that were checked, by id of their tuples.
    known: set[tuple[int, int, int]] = set()
    for node in reading.of_operations(VIEWS):
        edges = [edge for edge in reading.inputs[node.id] if edge.input_nr == 0]
        if not edges:
            continue
        made, given = node.outputs, reading.graph.nodes[edges[0].source].outputs
        number = edges[0].output_nr
        if (id(given), number, id(made)) in known:
            continue
        known.add((id(given), number, id(made)))
        before, after = _shape(given, number), _shape(made)
        for old, new in _blocks(before, after):
            if len(old) > 1 and len(new) > 1:
                return False
            if len(old) > 1:
                joined.setdefault(new[0], set()).add(old)
            elif len(new) > 1:
                split.setdefault(old[0], set()).add(new)
    return all(joined[whole] == parts for whole, parts in split.items() if whole in joined)


def _shape(outputs: Sequence[TensorMeta | None], number: int = 0) -> tuple[int, ...]:
    meta = outputs[number] if number < len(outputs) else None
    return () if meta is None else tuple(meta.shape)


def _blocks(
    before: Sequence[int], after: Sequence[int]
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield the smallest groups of dimensions, before and after, with equal numbers of elements."""
    left, right = ([size for size in shape if size != 1] for shape in (before, after))
    i = j = 0
    while i < len(left) and j < len(right):
        start, other = i, j
        one, two = left[i], right[j]
        i, j = i + 1, j + 1
        while one != two and (i < len(left) if one < two else j < len(right)):
            if one < two:
                one, i = one * left[i], i + 1
            else:
                two, j = two * right[j], j + 1
        yield tuple(left[start:i]), tuple(right[other:j])


@mutable
class BrokenView:
    """A view that puts a part of one axis and another axis into the same dimension."""

    node: int
    before: tuple[int, ...]  # shape of the input
    after: tuple[int, ...]  # shape of the result


@mutable(slots=False)
class AxisReading:
    """The axes of each node's first result, and the views that break axes."""

    reading: Reading
    axes: list[Axes] = field(default_factory=list)
    broken: list[BrokenView] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._numbers = count()
        self._nodes, self._inputs = self.reading.graph.nodes, self.reading.inputs
        for node in self._nodes:
            self.axes.append(self._axes(node))

    def shape(self, node: int, output: int = 0) -> tuple[int, ...]:
        return _shape(self._nodes[node].outputs, output)

    def _fresh(self, shape: tuple[int, ...]) -> Axes:
        return tuple([((next(self._numbers), size),) if size != 1 else () for size in shape])

    def _input(self, node: int, number: int = 0) -> Axes | None:
        """Return the axes of a node's input; None if they are unknown.

        Args:
            node: id of the node.
            number: index of the input.
        """
        for edge in self._inputs[node]:
            # The second condition guards against a file whose nodes are not in topological order.
            if edge.input_nr == number and edge.source < node:
                source = self._nodes[edge.source]
                if edge.output_nr == 0 or source.operation in ("unbind", "split", "chunk"):
                    return self.axes[edge.source]
                if source.operation in _MULTI_LAYER_RNNS:
                    return self._states(source, edge.output_nr)
        return None

    def _states(self, rnn: Node, output: int) -> Axes | None:
        """Return the axes (layers, batch, features) of a recurrent layer's last states.

        The result for a packed sequence has no batch axis, so all axes of its states are new.

        Args:
            rnn: the node of the recurrent layer.
            output: index of the node's output.
        """
        shape, own = self.shape(rnn.id, output), self.axes[rnn.id]
        fresh = self._fresh(shape)
        if len(shape) != 3 or len(own) != 3:
            return fresh
        return fresh[0], own[batch_axis(rnn)], fresh[2]

    def _axes(self, node: Node) -> Axes:
        shape = self.shape(node.id)
        if node.leaf or not shape:
            return self._fresh(shape)
        given = self._input(node.id)
        found: Axes | None = None
        if given is not None:
            found = self._axes_after_move(node, given, shape)
        if found is None:
            found = self._axes_after_compute(node, shape)
        return found if _sizes(found) == shape else self._fresh(shape)

    def _axes_after_move(self, node: Node, given: Axes, shape: tuple[int, ...]) -> Axes | None:
        """Return the axes after an operation that only moves or selects values; None for others.

        Args:
            node: the node of the operation.
            given: the axes of the operation's input.
            shape: shape of the result.
        """
        operation, rank = node.operation, len(given)
        if operation in VIEWS:
            return self._axes_after_view(node, given, shape)
        if operation == "t":
            return given[::-1]
        if operation == "transpose":
            one, other = number(node, "dim0"), number(node, "dim1")
            if one is None or other is None:
                return None
            moved = list(given)
            moved[one % rank], moved[other % rank] = moved[other % rank], moved[one % rank]
            return tuple(moved)
        if operation == "permute":
            order = numbers(node, "dims")
            return tuple(given[i % rank] for i in order) if len(order) == rank else None
        if operation in ("unsqueeze", "squeeze"):
            kept = [dimension for dimension in given if dimension]
            return tuple(() if size == 1 else kept.pop(0) for size in shape) if kept else None
        if operation in ("select", "unbind"):
            dim = number(node, "dim")
            return None if dim is None else given[: dim % rank] + given[dim % rank + 1 :]
        if operation in _REDUCING and (over := numbers(node, "dim")):
            gone = {dim % rank for dim in over}
            left = [() if i in gone else each for i, each in enumerate(given)]
            return tuple(
                left if len(shape) == rank else [d for i, d in enumerate(given) if i not in gone]
            )
        if operation in ("slice", "split", "chunk", "narrow", "expand", "gather"):
            if len(shape) != rank:
                return None
            quadruples = zip(given, self._fresh(shape), _sizes(given), shape, strict=True)
            return tuple([old if size == now else new for old, new, size, now in quadruples])
        return None

    def _axes_after_compute(self, node: Node, shape: tuple[int, ...]) -> Axes:
        if node.operation in _PRODUCTS:
            fresh = self._fresh(shape)
            first = 1 if node.operation in ("addmm", "baddbmm") else 0
            one, other = self._input(node.id, first), self._input(node.id, first + 1)
            rows = one[:-1] if one is not None and len(one) == len(shape) else fresh[:-1]
            known = other is not None and len(other) == len(shape)
            columns = other[-1:] if known and other is not None else fresh[-1:]
            if set(columns[0]) & {atom for dimension in rows for atom in dimension}:
                columns = fresh[-1:]  # queries and keys have the same axis, as in self-attention
            if one is None and known and other is not None and len(shape) == 3:
                rows = other[:1] + fresh[1:-1]
            return rows + columns
        if node.operation == "convolution" and (one := self._input(node.id)) is not None:
            return one[:1] + self._fresh(shape[1:])
        if is_recurrent(node) and (one := self._input(node.id)) is not None:
            return one[: len(shape) - 1] + self._fresh(shape[-1:])
        # The node is an elementwise operation, or an operation along an axis that the result keeps.
        for edge in self._inputs[node.id]:
            given = self._input(node.id, edge.input_nr)
            if given is not None and self.shape(edge.source, edge.output_nr) == shape:
                return given
        return self._fresh(shape)

    def _axes_after_view(self, node: Node, given: Axes, shape: tuple[int, ...]) -> Axes | None:
        atoms = [atom for dimension in given for atom in dimension]
        queue, found = atoms[::-1], []
        # For each split axis whose first part was joined with another axis, the id of the second
        # part.
        torn: set[int] = set()
        for size in shape:
            dimension: list[Atom] = []
            left = size
            while left > 1:
                if not queue:
                    return None
                number, length = queue.pop()
                if left % length == 0:
                    dimension.append((number, length))
                    left //= length
                elif length % left == 0:
                    rest = (next(self._numbers), length // left)
                    dimension.append((next(self._numbers), left))
                    queue.append(rest)
                    if len(dimension) > 1:
                        torn.add(rest[0])
                    left = 1
                else:
                    self._break(node, given, shape)
                    return None
            if dimension and dimension[0][0] in torn and len(dimension) > 1:
                self._break(node, given, shape)
            found.append(tuple(dimension))
        return tuple(found)

    def _break(self, node: Node, given: Axes, shape: tuple[int, ...]) -> None:
        self.broken.append(BrokenView(node.id, _sizes(given), shape))


def is_recurrent(node: Node) -> bool:
    """Return True if the node computes one or several recurrent layers."""
    return node.operation.endswith("rnn_layer") or node.operation in _MULTI_LAYER_RNNS


def batch_axis(rnn: Node) -> int:
    """Return the batch dimension of a recurrent node's result, 0 or 1.

    The other of these two dimensions is time.

    A node that computes a single layer takes (time, batch, features), even if its module has
    `batch_first=True`.
    """
    multi_layer = rnn.operation in _MULTI_LAYER_RNNS
    return 0 if multi_layer and attribute(rnn, "batch_first") == "True" else 1


def _sizes(axes: Axes) -> tuple[int, ...]:
    return tuple(
        [part[0][1] if len(part) == 1 else math.prod([size for _, size in part]) for part in axes]
    )


def attribute(node: Node, name: str) -> str:
    """Return an attribute of a node as text, such as "-1" for "dim=-1"; "" if it has none."""
    key = f"{name}="
    for text in node.attributes:
        if text.startswith(key):
            return text.removeprefix(key)
    return ""


def number(node: Node, name: str) -> int | None:
    """Return the only integer in a node's attribute; None if there is not exactly one.

    Args:
        node: the node.
        name: name of the attribute, such as "dim".
    """
    found = numbers(node, name)
    return found[0] if len(found) == 1 else None


def numbers(node: Node, name: str) -> list[int]:
    """Return the integers of a node's attribute, such as [1, 0] for "dims=(1, 0)"."""
    return [*_numbers(attribute(node, name))]


@lru_cache(maxsize=4096)  # many nodes of a model have equal attributes
def _numbers(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.strip("()").split(",")]
    return tuple([int(part) for part in parts if part.lstrip("-").isdigit()])


LOSSES = {"nll_loss", "mse_loss", "smooth_l1_loss", "l1_loss", "huber_loss"}
LOSSES |= {"binary_cross_entropy_with_logits", "binary_cross_entropy"}


def losses_of(reading: Reading) -> list[Node]:
    """Return the nodes of losses through which a backward ran."""
    return [n for n in reading.graph.nodes if n.operation in LOSSES and n.order is not None]


def counts_of_samples(reading: Reading) -> set[int]:
    """Return the batch sizes of the losses."""
    shapes = (_first_shape(reading, node.id) for node in losses_of(reading))
    return {shape[0] for shape in shapes if shape}


def sample_axes(reading: Reading, axes: list[Axes]) -> list[Dimension]:
    """Return the axis of the samples of each loss, the first axis of its input."""
    every = (_axes_of_samples(reading, axes, node.id) for node in losses_of(reading))
    return [dims[0] for dims in every if dims and dims[0]]


def _first_shape(reading: Reading, node: int) -> tuple[int, ...]:
    source = next((e.source for e in reading.inputs[node] if e.input_nr == 0), None)
    return () if source is None else shape_of(reading, source)


def _axes_of_samples(reading: Reading, axes: list[Axes], node: int) -> Axes:
    source = next((e.source for e in reading.inputs[node] if e.input_nr == 0), None)
    return () if source is None else axes[source]


def axis_reading(reading: Reading) -> AxisReading:
    """Return the axes of a graph; they are computed once and cached."""
    found: AxisReading | None = reading.__dict__.get("_axes")
    if found is None:
        # A weak reference to the reading avoids a reference cycle.
        found = reading.__dict__["_axes"] = AxisReading(weakref.proxy(reading))
    return found


def shape_of(reading: Reading, node: int) -> tuple[int, ...]:
    """Return the shape of a node's first output; () if it is unknown."""
    meta = reading.meta(node)
    return () if meta is None else tuple(meta.shape)
