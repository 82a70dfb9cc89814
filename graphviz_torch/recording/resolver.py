"""Resolve the facts that listeners noted while the program ran to values of one graph.

While a program runs, a node is known by its sequence number, a leaf by its id(), and a source line
by its position in a code object. In a graph, nodes and leaves are node ids, and lines are texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import replace
from functools import partial
from types import CodeType
from typing import Any

from ..graph import Event, Operand
from ..internals.frames import CodePosition
from .backward import Backward
from .program import Program
from .program.code import codes, find_method_call, find_store, find_variable
from .program.events import (
    Assignment,
    EventRecord,
    MethodCall,
    NodeLine,
    TensorRecord,
    UserLine,
    VariableLine,
)
from .program.source_lines import sources


class Resolver:
    """A converter of recorded data to node ids and texts of one graph.

    Args:
        backward: the backward that becomes the graph.
        program: the recorded program, which knows the line that created each node.
        line: formats a position as text, such as "train.py:41".
    """

    def __init__(
        self, backward: Backward, program: Program, line: Callable[[CodePosition | None], str]
    ) -> None:
        self.backward = backward
        self._program = program
        self.line = line
        self.source = sources(line)  # formats the lines of a call in a library and of its caller
        # Returns the line that created a node, given the node's sequence number.
        self.line_of_node = partial(program.origins.source, text=self.source)
        self.node = backward.node
        self.leaf = backward.reading.leaves.get

    def nodes(self, numbers: Iterable[int], leaves: Iterable[int] = ()) -> tuple[int, ...]:
        """Return the node ids in this graph of nodes, then of leaves; others are skipped.

        The leaves of a set are in the order of the graph: that of id() differs between runs.

        Args:
            numbers: sequence numbers of nodes.
            leaves: id() of leaf tensors.
        """
        found = [i for i in map(self.leaf, leaves) if i is not None]
        if isinstance(leaves, Set):
            found.sort()
        return (*self.backward.node_ids(numbers), *found)

    def ran_node(self, node: int | None, run: int) -> int | None:
        """Return `node` if the backward of this graph ran it; None if another backward did.

        Args:
            node: id of the node in the graph of its backward.
            run: number of that backward in the step, from 1 on.
        """
        return node if run == self.backward.position + 1 else None

    def event(self, record: EventRecord) -> Event:
        """Return an event with its line, its nodes and the values of its latest occurrence."""
        nodes = self.nodes(record.numbers, record.leaves)
        latest = {name: self.value(value) for name, value in record.latest.items()}
        place = record.place
        at = self.value(place) if isinstance(place, MethodCall) else self.line(place)
        latest.setdefault("where", at)
        return replace(record.event, nodes=nodes, times=record.times, **latest)

    def value(self, noted: Any) -> Any:
        """Return the final value of a record or placeholder, or of each one in nested tuples.

        A `TensorRecord` becomes an `Operand`; a `NodeLine`, `UserLine`, `MethodCall`,
        `VariableLine` and `Assignment` become text. Other values are returned unchanged.
        """
        if type(noted) is tuple:
            return tuple([self.value(part) for part in noted])
        if isinstance(noted, NodeLine):
            return self.line_of_node(noted.number)
        if isinstance(noted, UserLine):
            return self.line(noted.place)
        if isinstance(noted, (MethodCall, VariableLine, Assignment)):
            return self.line(self._find(noted, list(codes(self._program, more=noted.around))))
        if isinstance(noted, TensorRecord):
            if noted.number is None:
                return Operand(noted.label, noted.tensor, "", self.leaf(noted.leaf))
            where = self.line_of_node(noted.number)
            return Operand(noted.label, noted.tensor, where, self.node(noted.number))
        return noted

    @staticmethod
    def _find(
        noted: MethodCall | VariableLine | Assignment, every: Sequence[CodeType]
    ) -> CodePosition | None:
        """Return the only position of a call or of an assignment in code; None if unknown."""
        if isinstance(noted, VariableLine):
            return find_variable(every, noted.name)
        if isinstance(noted, Assignment):
            return find_store(every, noted.name)
        place = find_method_call(every, noted.method, noted.owner)
        if place is None and noted.or_any:
            return find_method_call(every, noted.method)
        return place
