"""What operations compute and read, and which parts of a graph are of the same structure.

A position is the place of an operation in the order of the tree. Cutting keeps the order, so every
part holds consecutive positions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Any

from ...graph import Edge, Graph, TensorMeta
from .attributes import distinguishing, only_part_used
from .outlines import differ_in_one_axis, unsized
from .part_tree import Item, Part, flatten, split

# The number of a call, in the name of a module.
_CALL = re.compile(r"#\d+$")
_NUMBER = re.compile(r"[#\d]+")  # the same, and that of a module in a row

_Outputs = tuple[TensorMeta | None, ...]


class Structure:
    """The operations of a graph by position, and by number what is of the same structure."""

    def __init__(self, graph: Graph, edges: Sequence[Edge], order: list[int]) -> None:
        self.nodes = nodes = graph.nodes
        self._edges = edges
        self.operations = [i for i in order if not nodes[i].leaf]
        count = len(self.operations)
        self.position = position = [-1] * len(nodes)  # of each node; -1 of a leaf
        for at, i in enumerate(self.operations):
            position[i] = at
        # Of each position what the operation reads: of a leaf which input, and the number of its
        # outputs; else how far before, which output, which input.
        self.reads: list[list[tuple[int, ...]]] = [[] for _ in range(count)]
        # The first and the last position among those.
        self._first, self._last = list(range(count)), [-1] * count
        self._known: dict[object, int] = {}  # structure -> its number
        self._outputs: dict[int, _Outputs] = {}  # of a leaf, by their number
        self._read(edges)
        # Of each position: the number of what it computes, and of that with all that it reads.
        self._computes = self._kinds()
        self._unsized: dict[int, object] = {}  # by that number: the same without sizes
        known = self._known
        whole = [
            known.setdefault((kind, *read), len(known))
            for kind, read in zip(self._computes, self.reads, strict=True)
        ]
        self._whole = tuple(whole)
        self._found: dict[tuple[object, ...], int] = {}  # by all that a part reads: its structure

    def _read(self, edges: Sequence[Edge]) -> None:
        nodes, position = self.nodes, self.position
        reads, first, last = self.reads, self._first, self._last
        outputs: dict[int, int] = {}  # by id, for most nodes share theirs: their number
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
                    number = outputs[id(made)] = self._number(made)
                    self._outputs[number] = made
                reads[end].append((edge.input_nr, number))
                continue
            output_nr = 0 if source in alone else edge.output_nr
            reads[end].append((end - start, output_nr, edge.input_nr))
            if start < first[end]:
                first[end] = start
            if start > last[end]:
                last[end] = start

    def _kinds(self) -> list[int]:
        """The number of what each operation computes. Outputs go by id: they are slow to hash."""
        kinds: dict[tuple[str, int, tuple[str, ...]], int] = {}
        found: list[int] = []
        for i in self.operations:
            node = self.nodes[i]
            key = node.name, id(node.outputs), node.attributes
            kind = kinds.get(key)
            if kind is None:
                attributes = distinguishing(node.name, node.attributes)
                kind = kinds[key] = self._number((node.name, node.outputs, attributes))
            found.append(kind)
        return found

    def _number(self, structure: object) -> int:
        return self._known.setdefault(structure, len(self._known))

    @cached_property
    def crossing(self) -> list[int]:
        """How many results pass between each position and the one before it."""
        steps = [0] * (len(self.operations) + 2)
        farthest = list(range(len(self.operations)))  # of each position: the last that reads it
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
        """The positions that read a parameter, and input_nr."""
        nodes, position = self.nodes, self.position
        reads = [edge for edge in self._edges if nodes[edge.source].leaf == "parameter"]
        return {(position[edge.target], edge.input_nr) for edge in reads}

    def span(self, items: Sequence[Item]) -> tuple[int, int]:
        """The positions of items: from, and up to."""
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
        """Where an item lies; (0, 0) for one that holds no operation."""
        if isinstance(item, Part):
            return item.span
        at = self.position[item]
        return (at, at + 1) if at >= 0 else (0, 0)

    def close(self, part: Part) -> None:
        """Fill in where the part lies and its structure, once its items are final."""
        part.parts, part.nodes = split(part.items)
        position = self.position
        places = [] if part.parts else [at for i in part.nodes if (at := position[i]) >= 0]
        start, end = (min(places), max(places) + 1) if places else self.span(part.items)
        part.span = start, end
        groups = tuple([(called(inner, part), inner.structure) for inner in part.parts])
        leaves = () if start < end else tuple([self.nodes[i].outputs for i in flatten([part])])
        # Where parts read the same at the same distance, be it from outside, they are alike.
        whole = part.module_class, groups, leaves, self._whole[start:end]
        structure = self._found.get(whole)
        if structure is None:
            inside = self._inside(start, end)
            structure = self._number((part.module_class, groups, leaves, *inside))
            self._found[whole] = structure
        part.structure = structure

    def _inside(self, start: int, end: int) -> list[int]:
        """Of these positions as `_whole`, without the edges that come from outside."""
        inside = [*self._whole[start:end]]
        for p in range(start, end):
            if self._first[p] < start or self._last[p] >= end:
                reads = self._reads_inside(p, start, end)
                inside[p - start] = self._number((self._computes[p], *reads))
        return inside

    def _reads_inside(self, p: int, start: int, end: int) -> list[tuple[int, ...]]:
        return [r for r in self.reads[p] if len(r) == 2 or p - end < r[0] <= p - start]

    def unite(self, parts: Sequence[Part]) -> None:
        """Give the same structure to parts that differ in the size of one axis alone.

        So do the experts of a mixture, each called on the rows that its router gives it, and the
        steps of a loop over a sequence that grows. Their parameters have the same shapes.
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
                    alike.setdefault(self.outline(part), []).append(part)
                for same in alike.values():
                    if self.differ_in_one_axis(same):
                        for part in same:
                            part.structure = same[0].structure

    def outline(self, part: Part, start: int | None = None) -> tuple[Any, ...]:
        """What parts must have in common, whatever the sizes are on which they compute.

        Args:
            start: the position of the first operation to tell of; None: that of the part.
        """
        first, end = part.span
        start = first if start is None else start
        groups: list[object] = []
        around = [part]
        for outer in around:  # which grows
            for inner in outer.parts:
                place = inner.span[0] - start, inner.span[1] - start
                name = called(inner, outer)
                groups.append((name, inner.module_class, *place, len(inner.parts)))
            around += outer.parts
        computes: list[object] = []
        for p in range(start, end):
            reads = self._reads_inside(p, start, end)
            reads = [r for r in reads if len(r) == 3 or (p, r[0]) not in self._parameters]
            node = self.nodes[self.operations[p]]
            if node.operation == "add":  # in whichever order
                reads = sorted([read[:-1] for read in reads])
            kind = self._computes[p]
            if kind not in self._unsized:
                self._unsized[kind] = unsized(node)
            computes.append((self._unsized[kind], *reads))
        return (*groups, *computes)

    def _read_by(self, p: int, start: int) -> dict[int, tuple[_Outputs, bool]]:
        """What an operation reads from before `start`, by input_nr: tensors, and is it a leaf."""
        found: dict[int, tuple[_Outputs, bool]] = {}
        for read in self.reads[p]:
            if len(read) == 2:
                found[read[0]] = self._outputs[read[1]], True
            elif p - read[0] < start:
                outputs = self.nodes[self.operations[p - read[0]]].outputs
                found[read[2]] = outputs[read[1] : read[1] + 1], False
        return found

    def differ_in_one_axis(self, parts: Sequence[Part]) -> bool:
        """Do parts of one outline differ in no more than one axis of what each operation computes?

        Their parameters are of the same shapes. Where one reads a parameter, another may read what
        a step before made of it, as in the inner steps of MAML.
        """
        spans = {part.structure: part.span for part in parts}.values()
        least = min([end - start for start, end in spans])
        starts = [end - least for _, end in spans]
        for at in range(least):
            places = [start + at for start in starts]
            if not differ_in_one_axis([self.nodes[self.operations[p]].outputs for p in places]):
                return False
            reads = [self._read_by(p, start) for p, start in zip(places, starts, strict=True)]
            for nr in {nr for read in reads for nr, (_, leaf) in read.items() if leaf}:
                if len({read.get(nr, (None, False))[0] for read in reads}) > 1:
                    return False
        return True


def called(part: Part, outer: Part) -> str:
    """The name that modules of one row share; "" for what is not a module."""
    if part.kind != "module":
        return ""
    return unnumbered(part.name.text) if outer.kind == "run" else uncalled(part.name.text)


@lru_cache(maxsize=4096)  # a model has many alike
def uncalled(name: str) -> str:
    """The name of a module without the number of the call."""
    return _CALL.sub("", name)


@lru_cache(maxsize=4096)
def unnumbered(name: str) -> str:
    """The same without its number in a row of modules."""
    return _NUMBER.sub("", name)
