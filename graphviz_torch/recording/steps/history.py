"""Find the variable that keeps graphs of earlier steps alive, as a list of losses does.

A node is alive as long as any result that was computed from it. A few nodes of each graph are
marked: a mark is a weak reference to the node's hook dictionary, which is freed with the node. A
step ends when an optimizer steps. A graph is compared only with graphs whose loss was created at
the same line and reaches the same optimized parameters, because one function may run backward for
two losses.
"""

from __future__ import annotations

import gc
import weakref
from collections import OrderedDict
from collections.abc import Callable, Container, Iterator, Mapping, Set
from dataclasses import field
from functools import partial
from typing import Any

from ...graph import RetainedGraphs
from ...graph.immutable import NamedTuple, mutable
from ...internals.frames import CodePosition
from ...internals.hooks.dispatch import sequence_number
from ...internals.hooks.nodes import hook_dictionaries
from ...internals.tensors.references import tensors_made_since
from ...tracing.nodes import GradFn
from ...tracing.tracer import collect_nodes
from ..listener import BackwardBegan, Listener, StepValues
from ..live import LiveGraph
from ..program import Program
from ..program.code import codes, find_method_call
from ..resolver import Resolver

Numbers = Mapping[GradFn, int]  # sequence numbers of live nodes

# Graphs of earlier steps are reported if at least this number is alive. One is normal, because a
# variable such as `loss` keeps the graph of the previous step until it is assigned again.
STEPS = 2
_MAX_MARKS = 8  # number of marked nodes per graph; several, as only a part of a graph may be alive


class _Mark:
    __slots__ = ("hooks", "number", "step")

    def __init__(self, hooks: OrderedDict[Any, Any], number: int, step: int) -> None:
        self.hooks = weakref.ref(hooks)  # hook dictionary of the node
        self.number = number  # sequence number of the node
        self.step = step  # number of optimizer steps before the graph's backward

    def alive(self) -> bool:
        """Return True if the node is alive."""
        return self.hooks() is not None


Marks = list[_Mark]
# A holder, that is, a tensor that keeps graphs alive: the sequence number of its node, the name of
# its variable, and the marks of the nodes that it keeps alive.
_Holder = tuple[int | None, str, list[_Mark]]


class Retention(NamedTuple):
    """Graphs of earlier steps that are alive at a later backward of the same line."""

    steps: int  # number of earlier steps whose graphs are alive
    # Sequence number of the node of the holder, the tensor that keeps the earlier graphs alive.
    number: int | None = None
    label: str = ""  # the program's name for the holder
    source: str = ""  # the line that created the holder
    inside: bool = False  # True if the running backward runs nodes of the earlier graphs


class _Alive(NamedTuple):
    """A graph of an earlier backward, with weak marks on some nodes that show if it is alive."""

    step: int  # number of optimizer steps before the graph's backward
    marks: Marks
    reached: frozenset[int]  # id() of the leaves that the graph's backward reached


@mutable
class _BackwardsOfLine:
    """The backwards that one line called, for losses that one line created."""

    first: int = 0  # nodes from this sequence number on are newer than the line's last backward
    graphs: list[_Alive] = field(default_factory=list)
    enough: int = STEPS  # search for the holder again at this number of steps with live graphs
    # The holder found last, as `number`, `label` and `source` of a `Retention`.
    holder: tuple[int | None, str, str] | None = None
    holder_marks: Marks = field(default_factory=list)  # marks of nodes that the holder kept alive

    def previous_graphs(self, step: int, updated: Set[int], reached: Set[int]) -> list[_Alive]:
        """Return the graphs of earlier steps in memory that reached the same optimized parameters.

        Args:
            step: number of optimizer steps so far.
            updated: id() of the parameters that optimizers update.
            reached: id() of the leaves that the new graph reaches.
        """
        alive = (one._replace(marks=[m for m in one.marks if m.alive()]) for one in self.graphs)
        self.graphs = [one for one in alive if one.marks]
        same = updated & reached
        return [one for one in self.graphs if one.step < step and updated & one.reached == same]


class GraphHistory(Listener):
    """Listener that searches, at every backward, for earlier graphs that are still in memory."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._lines: dict[tuple[CodePosition | None, str], _BackwardsOfLine] = {}
        self._begins = sequence_number()
        self._first = 0  # nodes from this sequence number on are newer than the last backward
        self._found: dict[int, Retention | None] = {}  # by index of the graph
        self._going_on: set[int] = set()  # indices of graphs that contain nodes of earlier steps

    def on_backward_start(self, event: BackwardBegan) -> None:
        live = event.live
        known = zip(live.ids, live.numbers, strict=True)
        nodes = {fn: number for fn, number in known if number >= 0}
        self._found[live.position] = self._look(nodes, live)

    def on_step_end(self, event: None) -> None:
        self._found, self._going_on = {}, set()

    def step_values(self, resolver: Resolver) -> StepValues:
        position = resolver.backward.position
        if position not in self._found:
            return {}
        retained, goes_on = self._value(self._found[position], resolver), position in self._going_on
        return {"retained": retained, "continues_previous": goes_on}

    def _value(self, retention: Retention | None, resolver: Resolver) -> RetainedGraphs | None:
        if retention is None:
            return None
        steps, number, label, source, inside = retention
        if number is None:
            return RetainedGraphs(steps, label)
        node = resolver.node(number) if inside else None
        added = (
            find_method_call(codes(self.program), "append", label) if label and not inside else None
        )
        return RetainedGraphs(steps, label, source, node, resolver.line(added))

    def _look(self, nodes: Numbers, live: LiveGraph) -> Retention | None:
        """Find retained graphs, and mark some nodes of the new graph.

        Args:
            nodes: the nodes of the graph without leaves, in topological order.
            live: the graph that is about to run backward.
        """
        step = live.call.step
        made = self.program.source(max(nodes.values(), default=-1))
        line = self._lines.setdefault((live.call.place, made), _BackwardsOfLine())
        before = partial(line.previous_graphs, step, self.program.steps.ever, live.reached)
        begins = max(line.first, self._begins)
        if min(nodes.values(), default=begins) < begins:
            self._going_on.add(live.position)
        retention = self._retention(line, before, nodes, live.own)
        # Older nodes upstream of a cut, which this backward does not run, belong to another graph.
        first, own = max(line.first, self._first), live.own
        new = [fn for fn, n in nodes.items() if n >= (line.first if fn in own else first)]
        some = new[:: -(-len(new) // _MAX_MARKS) or 1]
        found = zip(some, hook_dictionaries(some), strict=True)
        marks = [_Mark(hooks, nodes[fn], step) for fn, hooks in found]
        line.graphs.append(_Alive(step, marks, live.reached))
        line.first = self._first = sequence_number()
        return retention

    def _retention(
        self,
        line: _BackwardsOfLine,
        graphs_before: Callable[[], list[_Alive]],
        nodes: Numbers,
        running: Container[GradFn],
    ) -> Retention | None:
        before = graphs_before()
        count = _steps(before)
        if count < STEPS:
            return None
        if any(number < line.first for number in nodes.values()):
            inside, junction = _steps_inside(nodes, running, _marks(before), line.first)
            if len(inside) >= STEPS:
                return Retention(len(inside), junction, "", self._source(junction), inside=True)
        if count < line.enough:
            known = line.holder is not None and all(mark.alive() for mark in line.holder_marks)
            return Retention(count, *line.holder) if known and line.holder else None
        line.holder = None
        if gc.isenabled():
            gc.collect()  # frees graphs in unreachable cycles, which must not be reported
            before = graphs_before()
        line.enough = 2 * max(count, line.enough)
        count = _steps(before)
        if count < STEPS:
            return None
        number, name, marks = self._holder(_marks(before), running)
        if number is None:  # no holder was found, so search again soon
            line.enough = count + max(1, count // 2)
        # The line is looked up now, because lines of old nodes are forgotten later.
        line.holder, line.holder_marks = (number, name, self._source(number)), marks
        return Retention(count, *line.holder)

    def _source(self, number: int | None) -> str:
        return "" if number is None else self.program.source(number)

    def _holder(self, marks: Mapping[int, _Mark], running: Container[GradFn]) -> _Holder:
        """Return the tensor that keeps the graphs of the most training steps alive.

        The result has the number None if no tensor keeps the graphs of several steps alive.

        Args:
            marks: the marks of live graphs, by sequence number.
            running: the nodes that the backward runs.
        """
        tensors = [each for each in tensors_made_since(min(marks)) if each[1] not in running]
        # Sorted from new to old, so that predecessors of several tensors count for the newest one.
        tensors.sort(key=lambda each: -each[0])
        ids, edges = collect_nodes([fn for _, fn, _ in tensors])
        sources: list[list[int]] = [[] for _ in ids]
        for source, target, _, _ in edges:
            sources[target].append(source)
        marked = {i: mark for fn, i in ids.items() if (mark := _mark_on(fn, marks)) is not None}
        visited: set[int] = set()
        holders: dict[str, _Holder] = {}
        for number, fn, tensor in tensors:
            found = [marked[i] for i in _predecessors(ids[fn], sources, visited) if i in marked]
            if found:
                name = self.program.variable(tensor)
                key = name or self.program.source(number) or str(number)
                holders.setdefault(key, (number, name, []))[2].extend(found)
        best = max(holders.values(), key=_step_count, default=None)
        if best is None or _step_count(best) < STEPS:
            return None, "", list(marks.values())
        return best


def _marks(graphs: list[_Alive]) -> dict[int, _Mark]:
    """Return the marks on nodes of graphs in memory, by sequence number of the node."""
    return {mark.number: mark for one in graphs for mark in one.marks}


def _steps(graphs: list[_Alive]) -> int:
    return len({one.step for one in graphs})


def _step_count(holder: _Holder) -> int:
    return len({mark.step for mark in holder[2]})


def _steps_inside(
    nodes: Numbers, running: Container[GradFn], marks: Mapping[int, _Mark], first: int
) -> tuple[set[int], int | None]:
    """Find nodes from earlier training steps that a backward is about to run.

    Args:
        nodes: sequence numbers of the graph's nodes, in topological order.
        running: the nodes that the backward runs.
        marks: the marks of live graphs, by sequence number.
        first: nodes from this sequence number on are new.

    Returns:
        The earlier steps with such nodes, and the sequence number of the first new node that
        depends on one of them.
    """
    behind: set[GradFn] = set()
    steps: set[int] = set()
    junction = None
    for fn, number in nodes.items():
        if fn not in running:
            continue
        mark = _mark_on(fn, marks)
        if mark is not None:
            steps.add(mark.step)
        if mark is not None or any(source in behind for source, _ in fn.next_functions):
            behind.add(fn)
            if number >= first and junction is None:
                junction = number
    return steps, junction


def _predecessors(start: int, sources: list[list[int]], visited: set[int]) -> Iterator[int]:
    """Yield a node and the unvisited nodes it was computed from; add all to `visited`.

    Args:
        start: index of the node.
        sources: for each node, the indices of the nodes from which it was computed.
        visited: the nodes that were visited.
    """
    stack = [start]
    while stack:
        node = stack.pop()
        if node not in visited:
            visited.add(node)
            stack.extend(sources[node])
            yield node


def _mark_on(fn: GradFn, marks: Mapping[int, _Mark]) -> _Mark | None:
    """Return the mark that was put on a node in an earlier step; None if it has no mark.

    The hook dictionaries are compared, because nodes of two threads may have the same number.
    """
    mark = marks.get(fn._sequence_nr())
    return mark if mark is not None and hook_dictionaries([fn])[0] is mark.hooks() else None
