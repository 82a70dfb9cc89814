"""Find where two runs diverge: the first result that differs, with its line and module.

Both runs are recorded with `record(fingerprints=True)`. They are runs of one program before and
after a change, or of two programs that should compute the same results.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property

from ..graph import Edge, Graph, GraphLike, Node, graph_of
from ..graph.immutable import immutable
from ..graph.text import print_text, printable
from ..graph.units import count_text, number_text
from .changes import Change
from .diff import GraphDiff, Mark, diff
from .difference_kinds import DivergencePoint, order_text
from .matching import match
from .value_pairs import ValuePairs, distance, shape_of, value_of

# Maximum number of candidates for the counterpart of a node that are compared.
_MAX_CANDIDATES = 24
# Two results that were not matched by structure are unrelated if they differ by more than this.
_UNRELATED_DISTANCE = 0.5
# A node causes a difference if the difference of its result exceeds the difference of its inputs by
# this factor.
_JUMP = 8


@immutable(slots=False)
class FirstDifference:
    """The first result of the second graph that differs from the first graph.

    The object is False in a boolean context if all results are equal.

    >>> import torch
    >>> from graphviz_torch import record
    >>> from graphviz_torch.compare import first_difference
    >>> x = torch.linspace(-2, 2, 64, requires_grad=True)
    >>> with record(fingerprints=True) as before:
    ...     torch.nn.functional.gelu(x * 2).sum().backward()
    >>> with record(fingerprints=True) as after:
    ...     torch.nn.functional.gelu(x * 2, approximate="tanh").sum().backward()
    >>> first_difference(before, after).kind
    'another approximation of GELU: none before, tanh after'
    """

    a: Graph
    b: Graph
    equal: int  # number of results before the divergence that are equal in both graphs
    equal_to: float  # largest relative difference among these equal results
    # id in a of the node at which the runs diverge; None if the node in b has no counterpart in a
    before: int | None = None
    after: int | None = None  # id in b of the node at which the runs diverge
    # relative difference of the results of these two nodes; None if there is no counterpart
    relative: float | None = None
    at_end: float | None = None  # relative difference of the first outputs of a and b
    kind: str = ""  # sentence on the cause of the difference; "" if unknown
    titles: tuple[str, str] = ("", "")

    def __bool__(self) -> bool:
        return self.after is not None or self.before is not None

    def to_text(self) -> str:
        """Return a text: the result at which the runs diverge, the cause, and both nodes."""
        lines = [self._head()]
        if self.kind:
            lines.append(f"  {self.kind}")
        for title, word, graph, node in (
            (self.titles[0], "before", self.a, self.before),
            (self.titles[1], "after", self.b, self.after),
        ):
            if node is not None:
                one = graph.nodes[node]
                metas = ", ".join(str(meta) for meta in one.outputs if meta is not None)
                lines.append(f"  {title or word}: {_node_text(one)} {metas}".rstrip())
        return "\n".join(map(printable, lines))

    _repr_pretty_ = print_text

    def __str__(self) -> str:
        return self.to_text()

    def __repr__(self) -> str:
        return f"<FirstDifference: {printable(self._head())}>"

    def _head(self) -> str:
        if not self:
            return f"{_equal(self.equal_to)} in {count_text(self.equal, 'result')}"
        node = (
            self.b.nodes[self.after] if self.after is not None else self.a.nodes[self.before or 0]
        )
        start = f"{_equal(self.equal_to)} up to" if self.equal else "not equal from"
        there = [
            f"relative difference {_rough(self.relative)} there"
            if self.relative is not None
            else "the first graph has no such result"
        ]
        if self.at_end is not None:
            there.append(f"{_rough(self.at_end)} at the {_end(self.b)}")
        return f"{start} {_node_text(node)}: {', '.join(there)}"

    @cached_property
    def difference(self) -> GraphDiff:
        """A diff for drawing, which marks only the node where the two graphs diverge as changed."""
        found = diff(self.a, self.b, gradient_tolerance=math.inf, titles=self.titles)
        changed: tuple[Change, ...] = ()
        if self.after is not None and self.after not in found.added:
            to_a = {b: a for a, b in found.pairs}
            before, after = (
                _norm_text(graph.nodes[node])
                for graph, node in ((self.a, to_a[self.after]), (self.b, self.after))
            )
            changed = (Change(to_a[self.after], self.after, "value", before, after),)
        return replace(found, changed=changed)

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """(id in a, id in b) of nodes matched by structure."""
        return self.difference.pairs

    @property
    def changed(self) -> tuple[Change, ...]:
        """A tuple with the change of the node where the runs diverge; () if the node was added."""
        return self.difference.changed

    @property
    def added_edges(self) -> tuple[Edge, ...]:
        """Edges that only b has, with node ids of b."""
        return self.difference.added_edges

    @property
    def removed_edges(self) -> tuple[Edge, ...]:
        """Edges that only a has, with node ids of a."""
        return self.difference.removed_edges

    @property
    def direction(self) -> str:
        """Title of the picture: the first line of `to_text()`."""
        return self._head()

    def union(self) -> Graph:
        """Return a graph to draw that contains both graphs.

        The node where the runs diverge has a note.
        """
        graph = self.difference.union()
        notes = {
            node: self.kind or "the runs diverge here"
            for node, mark in self.marks().items()
            if mark == "changed"
        }
        return graph.annotate(note=notes) if notes else graph

    def marks(self) -> dict[int, Mark]:
        """Return id of a node in `union()` -> "added", "removed" or "changed"."""
        marks = self.difference.marks()
        if self.after is not None and not self.changed:
            gone = len([m for m in marks.values() if m == "removed"])
            kept = [n for n in range(len(self.b.nodes) + gone) if marks.get(n) != "removed"]
            marks[kept[self.after]] = "changed"
        return marks


def first_difference(
    a: GraphLike,
    b: GraphLike,
    *,
    tolerance: float | None = None,
    titles: tuple[str, str] = ("", ""),
) -> FirstDifference:
    """Return the first result that differs between two recorded runs, with its node in each graph.

    Nodes are matched by structure. If names and shapes differ, they are matched by value, so that a
    model can be compared with the same model written in other code.

    A result of the second graph differs if two things are true: no result of the first graph has
    the same elements, and the results computed from it, up to an output, differ as well.

    Args:
        a, b: runs, recorded with `record(fingerprints=True)`.
        tolerance: relative difference up to which two results are equal. The default is the
            rounding error of their dtype, 1e-5 for float32 and 5e-2 for bfloat16.
        titles: names of the two runs.

    Raises:
        ValueError: if a run was recorded without fingerprints, or `tolerance` is negative.

    >>> import torch
    >>> from graphviz_torch import record
    >>> x = torch.linspace(-2, 2, 64, requires_grad=True)
    >>> with record(fingerprints=True) as recording:
    ...     (x * 2).sin().sum().backward()
    >>> first_difference(recording, recording)
    <FirstDifference: no difference in 4 results>
    """
    if tolerance is not None and not tolerance >= 0:
        raise ValueError(f"tolerance={tolerance} is not a relative difference: pass 0 or more.")
    a, b = graph_of(a), graph_of(b)
    for name, graph in (("first", a), ("second", b)):
        if not any(node.fingerprints for node in graph.nodes):
            raise ValueError(
                f"the {name} graph has no fingerprints: record it with record(fingerprints=True), "
                "and with gradients on."
            )
    to_b = match(a, b)
    to_a = {j: i for i, j in to_b.items()}
    before, after = ValuePairs(a, b, to_b, tolerance), ValuePairs(b, a, to_a, tolerance)
    differing_nodes = after.differing_nodes()
    place = _jump(after, differing_nodes) if differing_nodes else _first_differing_result(after)
    differing = before.differing_nodes()
    equal = [i for i, state in enumerate(after.states) if state in ("equal", "moved")]
    if place is None:
        worst = max((after.distances.get(i, 0.0) for i in equal), default=0.0)
        moved = _first_moved_result(after, [node for node, _ in b.outputs])
        if moved is None:
            return FirstDifference(a, b, len(equal), worst, titles=titles)
        place = moved
    else:
        moved = _first_moved_result(after, [place])
    kind = ""
    if moved is not None:
        place = moved
        partner: int | None = after.partners[moved]
        values = value_of(a.nodes[after.partners[moved]]), value_of(b.nodes[moved])
        if values[0] is not None and values[1] is not None:
            kind = order_text(values[0], values[1], a.nodes[after.partners[moved]], b.nodes[moved])
    else:
        partner = _partner(before, after, place, differing)
        kind = DivergencePoint(before, after, partner, place).kind()
        if not kind and after.distances.get(place, math.inf) < _JUMP * after.error_before(place):
            kind = "no single place: the difference grows from one result to the next"
    known = [after.distances.get(i, 0.0) for i in equal if i < place and i != moved]
    partner_distance = (
        None if partner is None else _value_distance(a.nodes[partner], b.nodes[place])
    )
    if after.pairs.get(place) != partner:
        if partner_distance is None:  # results of different sizes cannot be compared
            partner = None
        elif partner_distance > _UNRELATED_DISTANCE:
            partner_distance = None
    return FirstDifference(
        a,
        b,
        len(known),
        max(known, default=0.0),
        partner,
        place,
        partner_distance,
        _at_end(a, b),
        kind,
        titles,
    )


def _jump(pairs: ValuePairs, differing_nodes: list[int]) -> int:
    """Return the first node whose result differs much more than the inputs of the node.

    If there is no such node, return the first differing node.
    """
    for node in differing_nodes:
        found = pairs.distances.get(node)
        if found is None or found > _JUMP * pairs.error_before(node):
            return node
    return differing_nodes[0]


def _first_differing_result(pairs: ValuePairs) -> int | None:
    """Return the first node whose result differs, although the outputs are equal.

    Return None if no node differs, or if a node of either graph has no match.
    """
    same_program = len(pairs.pairs) == len(pairs.own_graph.nodes) == len(pairs.other_graph.nodes)
    if not same_program:
        return None
    return next(
        (
            n
            for n in sorted(pairs.distances)
            if pairs.states[n] == "other" and not pairs.own_graph.nodes[n].leaf
        ),
        None,
    )


def _first_moved_result(pairs: ValuePairs, ends: list[int]) -> int | None:
    """Return the first node whose result has the elements of its match in different positions.

    The search starts at `ends`, and continues upstream as long as this is true. Return None if
    there is no such node.
    """
    found: set[int] = set()
    stack, entered = [*ends], set()
    while stack:
        node = stack.pop()
        for source in pairs.known_inputs(node):
            if source not in entered:
                entered.add(source)
                if pairs.states[source] == "moved":
                    found.add(source)
                    stack.append(source)
    return min(found, default=None)


def _partner(before: ValuePairs, after: ValuePairs, place: int, differing: list[int]) -> int | None:
    """Return the counterpart, in the first graph, of the node at which the runs diverge.

    Args:
        before: the nodes of the first graph, with their matches.
        after: the nodes of the second graph, with their matches.
        place: id in the second graph of the node at which the runs diverge.
        differing: ids in the first graph of the nodes with different results.
    """
    node, other = after.own_graph.nodes[place], after.pairs.get(place)
    value = value_of(node)
    if other is not None and (other in differing or not differing):
        candidate = value_of(before.own_graph.nodes[other])
        if candidate is not None and value is not None and candidate.elements == value.elements:
            return other
    nodes = before.own_graph.nodes
    near = [i for i in differing if nodes[i].scope == nodes[differing[0]].scope] or differing
    found = [(i, _value_distance(nodes[i], node)) for i in near]
    same = [(far, i) for i, far in found if far is not None][:_MAX_CANDIDATES]
    return min(same)[1] if same else next(iter(differing), None)


def _value_distance(a: Node, b: Node) -> float | None:
    first, second = value_of(a), value_of(b)
    if first is None or second is None or first.elements != second.elements:
        return None
    found = distance(first, second, places=shape_of(a) == shape_of(b))
    return found if math.isfinite(found) else None


def _at_end(a: Graph, b: Graph) -> float | None:
    if not a.outputs or not b.outputs:
        return None
    return _value_distance(a.nodes[a.outputs[0][0]], b.nodes[b.outputs[0][0]])


def _end(graph: Graph) -> str:
    node = graph.nodes[graph.outputs[0][0]]
    return "loss" if "loss" in (node.label or node.title) or not shape_of(node) else "output"


def _node_text(node: Node) -> str:
    name = node.label or node.title
    inside = (
        f"{node.scope}: {name}" if node.scope and not node.label.startswith(node.scope) else name
    )
    return f"{inside} ({node.where})" if node.where else inside


def _norm_text(node: Node) -> str:
    value = value_of(node)
    return "not recorded" if value is None else f"norm {number_text(value.norm, 6)}"


def _equal(to: float) -> str:
    """Return a text such as "equal to within 1e-6" for a relative difference."""
    return "no difference" if to == 0 else f"equal to within 1e{math.ceil(math.log10(to))}"


def _rough(value: float) -> str:
    """Format a number with one digit."""
    return number_text(float(f"{value:.0e}"), 1).replace(".00e", "e")
