"""Decide which parts of a graph are isomorphic: equal operations with equal edges inside the part.

A part is a group that is being built. A position is the index of an operation in topological order.
Groups are made of consecutive operations, so every part is a range of positions.

An exponent counts, because `pow 2` differs from `pow 3`. An index does not: each step of an
unrolled loop selects another row of the input, but the steps are still isomorphic. So are blocks
that slice their weights from one stacked tensor.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Any, Final

from ...graph import Edge, Graph, Node, TensorMeta
from .call_groups import Item, Part, flatten, split

_CALL_NUMBER = re.compile(r"#\d+$")  # matches "#2" in "attn#2"
_ANY_NUMBER = re.compile(r"[#\d]+")  # matches "#2" in "attn#2" and "3" in "layers.3"

_Outputs = tuple[TensorMeta | None, ...]


class Structure:
    """The operations of a graph in order, and an integer id for each distinct structure."""

    def __init__(self, graph: Graph, edges: Sequence[Edge], order: list[int]) -> None:
        self.nodes = nodes = graph.nodes
        self._edges = edges
        self.operations = [i for i in order if not nodes[i].leaf]
        count = len(self.operations)
        self.position = position = [-1] * len(nodes)  # node id -> position; -1 for a leaf
        for at, i in enumerate(self.operations):
            position[i] = at
        # Position -> the operation's inputs. An input from a leaf is (input_nr, id of the leaf's
        # outputs). An input from another operation is (difference of the two positions, output_nr,
        # input_nr).
        self.reads: list[list[tuple[int, ...]]] = [[] for _ in range(count)]
        # Position -> first and last position of the operations whose results this operation reads.
        self._first, self._last = list(range(count)), [-1] * count
        self._known: dict[object, int] = {}  # structure -> id
        self._outputs: dict[int, _Outputs] = {}  # id of a leaf's outputs -> the outputs
        self._read(edges)
        # Position -> id of the operation's name, attributes and outputs. The ids in `_whole` also
        # depend on the operation's inputs.
        self._computes = self._operation_ids()
        # id in `_computes` -> key that is equal for operations that differ only in sizes
        self._unsized: dict[int, object] = {}
        known = self._known
        whole = [
            known.setdefault((kind, *read), len(known))
            for kind, read in zip(self._computes, self.reads, strict=True)
        ]
        self._whole = tuple(whole)
        # content of a part, with inputs from outside -> id of its structure
        self._found: dict[tuple[object, ...], int] = {}

    def _read(self, edges: Sequence[Edge]) -> None:
        nodes, position = self.nodes, self.position
        reads, first, last = self.reads, self._first, self._last
        # `id()` of a tuple of outputs (many nodes share one) -> id of these outputs
        outputs: dict[int, int] = {}
        alone = only_part_used(nodes, edges)
        for edge in edges:
            source, end = edge.source, position[edge.target]
            if end < 0:
                continue
            start = position[source]
            if start < 0:
                made = nodes[source].outputs
                number = outputs.get(id(made))
                if number is None:
                    number = outputs[id(made)] = self._intern(made)
                    self._outputs[number] = made
                reads[end].append((edge.input_nr, number))
                continue
            output_nr = 0 if source in alone else edge.output_nr
            reads[end].append((end - start, output_nr, edge.input_nr))
            if start < first[end]:
                first[end] = start
            if start > last[end]:
                last[end] = start

    def _operation_ids(self) -> list[int]:
        """Return an id for each operation, the same for equal names, attributes and outputs."""
        # Operations are compared by `id()` of their outputs first, because hashing outputs is slow.
        kinds: dict[tuple[str, int, tuple[str, ...]], int] = {}
        found: list[int] = []
        for i in self.operations:
            node = self.nodes[i]
            key = node.name, id(node.outputs), node.attributes
            kind = kinds.get(key)
            if kind is None:
                attributes = distinguishing(node.name, node.attributes)
                kind = kinds[key] = self._intern((node.name, node.outputs, attributes))
            found.append(kind)
        return found

    def _intern(self, structure: object) -> int:
        return self._known.setdefault(structure, len(self._known))

    @cached_property
    def crossing(self) -> list[int]:
        """For each position, the number of results computed before it and used at it or later."""
        steps = [0] * (len(self.operations) + 2)
        # position -> last position that uses the result
        farthest = list(range(len(self.operations)))
        for end, reads in enumerate(self.reads):
            for start in [end - read[0] for read in reads if len(read) == 3]:
                if end > farthest[start]:
                    farthest[start] = end
        for start, end in enumerate(farthest):
            steps[start + 1] += 1
            steps[end + 1] -= 1
        return list(accumulate(steps))

    @cached_property
    def _parameters(self) -> set[tuple[int, int]]:
        """Return (position, input_nr) of each input that is a parameter."""
        nodes, position = self.nodes, self.position
        reads = [edge for edge in self._edges if nodes[edge.source].leaf == "parameter"]
        return {(position[edge.target], edge.input_nr) for edge in reads}

    def span(self, items: Sequence[Item]) -> tuple[int, int]:
        """Return the range (start, end) of the positions of items."""
        start = end = 0
        for item in items:
            start, end = self._place(item)
            if start < end:
                break
        for item in reversed(items):
            first, last = self._place(item)
            if first < last:
                return start, last
        return start, end

    def _place(self, item: Item) -> tuple[int, int]:
        """Return the range of the positions of an item; (0, 0) if it contains no operation."""
        if isinstance(item, Part):
            return item.span
        at = self.position[item]
        return (at, at + 1) if at >= 0 else (0, 0)

    def close(self, part: Part) -> None:
        """Set `span` and `structure` of a part. Its items must not change after this call."""
        part.parts, part.nodes = split(part.items)
        position = self.position
        places = [] if part.parts else [at for i in part.nodes if (at := position[i]) >= 0]
        start, end = (min(places), max(places) + 1) if places else self.span(part.items)
        part.span = start, end
        groups = tuple([(row_name(inner, part), inner.structure) for inner in part.parts])
        leaves = () if start < end else tuple([self.nodes[i].outputs for i in flatten([part])])
        # Fast path: parts whose inputs are all equal, including those from outside, are isomorphic.
        whole = part.module_class, groups, leaves, self._whole[start:end]
        structure = self._found.get(whole)
        if structure is None:
            inside = self._structure_inside(start, end)
            structure = self._intern((part.module_class, groups, leaves, *inside))
            self._found[whole] = structure
        part.structure = structure

    def _structure_inside(self, start: int, end: int) -> list[int]:
        """Return an id for each operation in a range, which ignores edges from outside."""
        inside = [*self._whole[start:end]]
        for p in range(start, end):
            if self._first[p] < start or self._last[p] >= end:
                reads = self._reads_inside(p, start, end)
                inside[p - start] = self._intern((self._computes[p], *reads))
        return inside

    def _reads_inside(self, p: int, start: int, end: int) -> list[tuple[int, ...]]:
        return [r for r in self.reads[p] if len(r) == 2 or p - end < r[0] <= p - start]

    def unite(self, parts: Sequence[Part]) -> None:
        """Make parts isomorphic if they differ only in the size of one axis.

        Such parts get the same `structure`. One example are the experts of a mixture: a router
        selects a different number of rows for each. Another one are the steps of a loop over a
        growing sequence. The parameters of such parts have equal shapes.
        """
        if len({part.module_class for part in parts}) == len(parts):
            return
        near: dict[object, list[Part]] = {}
        for part in parts:
            start, end = part.span
            if start < end:
                kind = part.kind, part.module_class, end - start, len(part.parts)
                near.setdefault(kind, []).append(part)
        for some in near.values():
            if len({part.structure for part in some}) > 1:
                alike: dict[object, list[Part]] = {}
                for part in some:
                    alike.setdefault(self.size_free_structure(part), []).append(part)
                for same in alike.values():
                    if self.differ_in_one_axis(same):
                        for part in same:
                            part.structure = same[0].structure

    def size_free_structure(self, part: Part, start: int | None = None) -> tuple[Any, ...]:
        """Return a key that is equal for parts that differ only in sizes.

        Args:
            part: the part.
            start: position of the first operation to include; None includes all.
        """
        first, end = part.span
        start = first if start is None else start
        groups: list[object] = []
        around = [part]
        for outer in around:  # the loop appends the parts inside
            for inner in outer.parts:
                place = inner.span[0] - start, inner.span[1] - start
                name = row_name(inner, outer)
                groups.append((name, inner.module_class, *place, len(inner.parts)))
            around += outer.parts
        computes: list[object] = []
        for p in range(start, end):
            reads = self._reads_inside(p, start, end)
            reads = [r for r in reads if len(r) == 3 or (p, r[0]) not in self._parameters]
            node = self.nodes[self.operations[p]]
            if node.operation == "add":  # the order of an addition's inputs does not matter
                reads = sorted([read[:-1] for read in reads])
            kind = self._computes[p]
            if kind not in self._unsized:
                self._unsized[kind] = without_sizes(node)
            computes.append((self._unsized[kind], *reads))
        return (*groups, *computes)

    def _outside_inputs(self, p: int, start: int) -> dict[int, tuple[_Outputs, bool]]:
        """Return the inputs of an operation from outside of its part.

        Args:
            p: position of the operation.
            start: position at which the part begins.

        Returns:
            input_nr -> (outputs of the source, True if the source is a leaf).
        """
        found: dict[int, tuple[_Outputs, bool]] = {}
        for read in self.reads[p]:
            if len(read) == 2:
                found[read[0]] = self._outputs[read[1]], True
            elif p - read[0] < start:
                outputs = self.nodes[self.operations[p - read[0]]].outputs
                found[read[2]] = outputs[read[1] : read[1] + 1], False
        return found

    def differ_in_one_axis(self, parts: Sequence[Part]) -> bool:
        """Return True if corresponding outputs of parts differ in the size of at most one axis.

        The parts must have equal `size_free_structure`, and the shapes of their parameters must be
        equal. If one part reads a parameter, the other part may read a tensor that was computed
        from this parameter, as in the inner steps of MAML.
        """
        spans = {part.structure: part.span for part in parts}.values()
        least = min([end - start for start, end in spans])
        starts = [end - least for _, end in spans]
        for at in range(least):
            places = [start + at for start in starts]
            if not differ_in_one_axis([self.nodes[self.operations[p]].outputs for p in places]):
                return False
            reads = [
                self._outside_inputs(p, start) for p, start in zip(places, starts, strict=True)
            ]
            for nr in {nr for read in reads for nr, (_, leaf) in read.items() if leaf}:
                if len({read.get(nr, (None, False))[0] for read in reads}) > 1:
                    return False
        return True


def row_name(part: Part, outer: Part) -> str:
    """Return a module's name without numbers, for comparisons; "" if the part is not a module.

    Usually only the call number is removed. Inside a run of consecutive modules, all numbers are.
    """
    if part.kind != "module":
        return ""
    return (
        without_numbers(part.name.text)
        if outer.kind == "run"
        else without_call_number(part.name.text)
    )


@lru_cache(maxsize=4096)  # names recur often in a model
def without_call_number(name: str) -> str:
    """Remove the call number from the name of a module: "attn" for "attn#2"."""
    return _CALL_NUMBER.sub("", name)


@lru_cache(maxsize=4096)
def without_numbers(name: str) -> str:
    """Remove all numbers from the name of a module."""
    return _ANY_NUMBER.sub("", name)


# (prefix of the autograd name, attributes to ignore). Most of these attributes say where a slice
# begins or ends. The size of a slice is compared anyway, because it is in the output's shape. The
# prefix "" applies to all operations: their random generator state and name of the data are
# ignored.
_PLACES: Final[tuple[tuple[str, frozenset[str]], ...]] = (
    ("Select", frozenset(("index", "idx"))),  # x[3], x.select(0, 3), select_scatter, select_copy
    ("Slice", frozenset(("start", "end"))),  # x[3:5], narrow, tensor_split, slice_scatter
    ("Narrow", frozenset(("start",))),  # narrow_copy
    ("AsStrided", frozenset(("storage_offset",))),
    ("", frozenset(("seed", "philox_seed", "philox_offset", "data"))),
)
# Operations that return a tuple of slices. If only one slice is used, its output_nr is ignored,
# like the index of a select.
_PARTS: Final = ("Unbind", "Split", "UnsafeSplit", "Chunk")


@lru_cache(maxsize=4096)
def distinguishing(name: str, attributes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the attributes that count when operations are compared.

    Args:
        name: autograd's name of the operation.
        attributes: all attributes of the operation.

    >>> distinguishing("SelectBackward0", ("dim=0", "index=3"))
    ('dim=0',)
    >>> distinguishing("PowBackward0", ("exponent=3",))
    ('exponent=3',)
    """
    places = frozenset().union(*(names for start, names in _PLACES if name.startswith(start)))
    return tuple([text for text in attributes if text.partition("=")[0] not in places])


def only_part_used(nodes: Sequence[Node], edges: Sequence[Edge]) -> set[int]:
    """Return nodes that split a tensor into parts, if only one is used, as in `x.unbind()[3]`."""
    dividing = {name for name in {node.name for node in nodes} if name.startswith(_PARTS)}
    used: dict[int, set[int]] = {}
    for edge in edges if dividing else ():
        if nodes[edge.source].name in dividing:
            used.setdefault(edge.source, set()).add(edge.output_nr)
    return {i for i, outputs in used.items() if len(outputs) == 1}


# Attributes of an addition of the constant 0, as in `total = 0; total += loss`.
ADDED_ZERO: Final = ("other=0", "other=0.0")


def without_sizes(node: Node) -> tuple[object, ...]:
    """Return a key for an operation that does not depend on the sizes of its outputs."""
    metas = [meta and (meta.dtype, meta.device, len(meta.shape)) for meta in node.outputs]
    attributes = distinguishing(node.name, node.attributes)
    return node.name, tuple(metas), tuple([each for each in attributes if each not in ADDED_ZERO])


def differ_in_one_axis(outputs: Sequence[_Outputs]) -> bool:
    """Return True if the shapes of corresponding outputs differ in at most one axis.

    >>> few, many = (TensorMeta((rows, 4), "float32", "cpu") for rows in (3, 9))
    >>> differ_in_one_axis([(few,), (many,)])
    True
    >>> differ_in_one_axis([(few,), (many._replace(shape=(9, 5)),)])
    False
    """
    if len(set(outputs)) == 1:
        return True
    for column in zip(*outputs, strict=True):
        metas = [meta for meta in column if meta is not None]
        shapes = [meta.shape for meta in metas]
        if len({(len(meta.shape), meta.dtype, meta.device) for meta in metas}) > 1:
            return False
        if sum([len(set(sizes)) > 1 for sizes in zip(*shapes, strict=True)]) > 1:
            return False
    return True
