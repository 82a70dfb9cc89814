"""Explain the first difference between two runs, if the two graphs show its cause.

Each private method of `DivergencePoint` looks for one cause, and returns a sentence, or "" if it is
not the cause.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..graph import Fingerprint, Node
from ..graph.units import number_text
from .value_pairs import (
    ALONG,
    FIRST,
    MOVED_DISTANCE,
    NEAR,
    TRANSPOSES,
    ValuePairs,
    distance,
    equal_projections,
    is_identifying,
    shape_of,
    value_of,
)

# A node causes a difference if the difference of its result exceeds the difference of its inputs by
# this factor.
_JUMP_FACTOR = 8
_SAME_TOLERANCE = 1e-5  # maximum relative difference of two results with the same elements
_EQUAL_TOLERANCE = 1e-4  # maximum relative difference of two equal numbers
# Attributes that are not compared, because they follow from shapes or do not affect values.
_SHAPE_ATTRIBUTES = {
    "normalized_shape",
    "inplace",
    "start",
    "end",
    "step",
    "alpha",
    "beta",
    "dtype",
}
_GELU_ERROR = 1e-3  # maximum absolute difference between the exact GELU and the tanh formula


class DivergencePoint:
    """The two nodes at which two runs diverge.

    Args:
        before: the nodes of the first graph, with their matches in the second.
        after: the nodes of the second graph, with their matches in the first.
        a: id of the node in the first graph; None if it has no counterpart.
        b: id of the node in the second graph.
    """

    def __init__(self, before: ValuePairs, after: ValuePairs, a: int | None, b: int) -> None:
        self.before, self.after = before, after
        self.a: Node | None = None if a is None else before.own_graph.nodes[a]
        self.b: Node = after.own_graph.nodes[b]
        self.value_a = None if self.a is None else value_of(self.a)
        self.value_b = value_of(self.b)
        self.near_a = [] if a is None else _nearby_nodes(before, a)
        self.near_b = _nearby_nodes(after, b)

    def kind(self) -> str:
        """Return a sentence on the first cause that applies; "" if none does."""
        for answer in (
            self._finite,
            self._attribute,
            self._gelu,
            self._dropout,
            self._epsilon,
            self._bias,
            self._weight,
            self._order,
            self._scale,
            self._outside_cause,
        ):
            if text := answer():
                return text
        return ""

    def _finite(self) -> str:
        """Return a sentence if only one of the two results contains NaN or Inf."""
        known = [value is None or is_identifying(value) for value in (self.value_a, self.value_b)]
        if known[0] == known[1]:
            return ""
        return "NaN or Inf before and not after" if known[1] else "NaN or Inf after and not before"

    def _attribute(self) -> str:
        """Return a sentence if an attribute of the two operations differs."""
        if self.a is None or self.a.operation != self.b.operation:
            return ""
        of_a, of_b = _attributes(self.a), _attributes(self.b)
        for name in (name for name in of_a if name in of_b and name not in _SHAPE_ATTRIBUTES):
            before, after = of_a[name], of_b[name]
            if before != after:
                what = _NAMES.get(name, f"another {name}")
                return f"{what}: {before} before, {after} after"
        return ""

    def _gelu(self) -> str:
        """Return a sentence if the two graphs use different formulas for GELU."""
        formula_a, formula_b = (_formula(near) for near in (self.near_a, self.near_b))
        if not formula_a or not formula_b or formula_a == formula_b:
            return ""
        # The values are compared as well. This is not needed if only one graph contains the
        # constant of a GELU formula.
        by_hand = bool(_constants(self.near_b)) != bool(_constants(self.near_a))
        if not by_hand and self.value_a is not None and self.value_b is not None:
            least = abs(self.value_a.least - self.value_b.least)
            if least > _GELU_ERROR or self.value_a.elements != self.value_b.elements:
                return ""
        return f"another approximation of GELU: {formula_a} before, {formula_b} after"

    def _dropout(self) -> str:
        """Return a sentence if dropout is active in one run only, or has other random numbers."""
        acts = [
            next(filter(None, map(_dropout_of, near)), "") for near in (self.near_a, self.near_b)
        ]
        if acts[0] and acts[1]:
            return f"dropout with other random numbers: {acts[1]}"
        if acts[0] or acts[1]:
            lacks = self.after if acts[0] else self.before
            # If this run uses dropout elsewhere, the two nodes may not correspond.
            if any(map(_dropout_of, lacks.own_graph.nodes)):
                return ""
            where = "before and not after" if acts[0] else "after and not before"
            return f"dropout acts {where}: {acts[0] or acts[1]}"
        return ""

    def _epsilon(self) -> str:
        """Return a sentence if two norm layers have different epsilons."""
        readers = [self.after.own_graph.nodes[i] for i in self.after.readers(self.b.id)]
        epsilon_a = _epsilon(self.before, self.near_a)
        epsilon_b = _epsilon(self.after, [*self.near_b, *readers])
        if epsilon_a and epsilon_b and float(epsilon_a) != float(epsilon_b):
            return f"another epsilon: {epsilon_a} before, {epsilon_b} after"
        normal = [one is not None and "norm" in one.operation for one in (self.a, self.b)]
        known = [bool(epsilon_a), bool(epsilon_b)]
        if all(normal) and not any(known) and self._inputs_equal() and self._is_near():
            return "another epsilon, because all inputs of the norm are equal"
        return ""

    def _bias(self) -> str:
        """Return a sentence if only one run adds a bias."""
        leaves_a, leaves_b = _leaves(self.before, self.near_a), _leaves(self.after, self.near_b)
        if self.a is None or len(leaves_a) == len(leaves_b):
            return ""
        if not all(any(word in one.operation for word in _ADDS) for one in (self.a, self.b)):
            return ""  # the two nodes may not correspond
        more, fewer, word = (leaves_a, leaves_b, "after")
        if len(leaves_b) > len(leaves_a):
            more, fewer, word = (leaves_b, leaves_a, "before")
        names = [leaf.label for leaf in more if leaf.label.rpartition(".")[2].endswith("bias")]
        names = names[sum(leaf.label.endswith("bias") for leaf in fewer) :]
        return f"a missing bias: {names[0]} is not added {word}" if names else ""

    def _weight(self) -> str:
        """Return a sentence if a weight has another value, or if only one run transposes it."""
        leaves_a, leaves_b = _leaves(self.before, self.near_a), _leaves(self.after, self.near_b)
        missing = [leaf for leaf in leaves_b if self.after.states[leaf.id] == "other"]
        for leaf in missing:
            if any(_is_transposed(value_of(one), value_of(leaf), one, leaf) for one in leaves_a):
                return f"a transposed weight: {leaf.label or 'a leaf'}"
            tied = [
                one.label
                for one in leaves_a
                if shape_of(one) == shape_of(leaf)
                and one.label
                and len(self.before.readers(one.id)) > 1
            ]
            if tied and len(self.after.readers(leaf.id)) == 1:
                return (
                    f"weights that are tied before ({tied[0]}) and not after: "
                    f"{leaf.label or 'a leaf'} is a weight of its own"
                )
            named = any(one.leaf and one.label == leaf.label for one in self.before.own_graph.nodes)
            if not named and (self.a is None or self.a.operation != self.b.operation):
                return ""  # the two nodes may not correspond
            return f"another weight: {leaf.label or 'a leaf'} has another value"
        return self._transposed_weight(leaves_a, leaves_b)

    def _transposed_weight(self, leaves_a: list[Node], leaves_b: list[Node]) -> str:
        """Return a sentence if a square weight has equal values, but only one run transposes it.

        Args:
            leaves_a: leaves that the node of the first graph uses.
            leaves_b: leaves that the node of the second graph uses.
        """
        for leaf in leaves_b:
            for one in leaves_a:
                if one.id != self.after.partners.get(leaf.id) or len(shape_of(leaf)) != 2:
                    continue
                turned = _is_transposed(value_of(one), value_of(leaf), one, leaf)
                before = _is_transposed_before_use(self.before, one.id, self.near_a)
                after = _is_transposed_before_use(self.after, leaf.id, self.near_b)
                if before is not None and after is not None and (before != after) != turned:
                    return f"a transposed weight: {leaf.label or 'a leaf'}"
        return ""

    def _order(self) -> str:
        """Return a sentence if the results have the same elements in different positions."""
        if self.value_a is None or self.value_b is None or self.a is None:
            return ""
        # The tolerance is small: a permutation causes no rounding, and a softmax with another mask
        # returns nearly the same elements.
        if distance(self.value_a, self.value_b, places=False) > _SAME_TOLERANCE:
            return ""
        if distance(self.value_a, self.value_b, places=True) < MOVED_DISTANCE:
            return ""
        return order_text(self.value_a, self.value_b, self.a, self.b)

    def _scale(self) -> str:
        """Return a sentence if one result is a multiple of the other, or one run multiplies."""
        if self.value_a is not None and self.value_b is not None:
            factor = scale(self.value_a, self.value_b)
            if factor is not None:
                return f"a scale: {number_text(factor)} times as large after"
        for pairs, nodes, word in (
            (self.after, [self.b], "after and not before"),
            (self.before, self.near_a[-1:], "before and not after"),
        ):
            for node in nodes:
                for source in pairs.known_inputs(node.id):
                    first, second = value_of(pairs.own_graph.nodes[source]), value_of(node)
                    factor = None if first is None or second is None else scale(first, second)
                    if factor is not None:
                        return f"a scale: times {number_text(factor)} {word}"
        return ""

    def _outside_cause(self) -> str:
        """Return a likely cause outside of the graph, such as a mask, if all inputs are equal."""
        if not self._inputs_equal():
            return ""
        operation = self.b.operation
        for words, what in _OUTSIDE:
            if any(word in operation for word in words):
                return f"{what}, because all inputs that the graph shows are equal"
        return ""

    def _inputs_equal(self) -> bool:
        inputs = self.after.known_inputs(self.b.id)
        equal = all(self.after.states[i] in ("equal", "unknown") for i in inputs)
        found = self.after.distances.get(self.b.id, math.inf)
        clear = found > _JUMP_FACTOR * self.after.error_before(self.b.id)
        return bool(inputs) and equal and clear

    def _is_near(self) -> bool:
        if self.value_a is None or self.value_b is None:
            return False
        return distance(self.value_a, self.value_b, places=True) < 0.5


def order_text(a: Fingerprint, b: Fingerprint, node_a: Node, node_b: Node) -> str:
    """Return a text on how the order of elements differs between two results."""
    shape = shape_of(node_b)
    if any(word in node_b.operation for word in ("softmax", "masked_fill", "where")):
        return "another mask, or the same elements in another order"
    if _is_transposed(a, b, node_a, node_b):
        return "the same elements, transposed"
    if shape_of(node_a) != shape or not shape:
        return "the same elements in another order"
    last, near = len(shape) - 1, len(shape) - 2
    along, before, first = (
        equal_projections(a, b, part, _EQUAL_TOLERANCE) for part in (ALONG, NEAR, FIRST)
    )
    if along and not before:
        turned = _length(a.projections[NEAR]), _length(b.projections[NEAR])
        shifted = abs(turned[0] - turned[1]) <= _EQUAL_TOLERANCE * max(a.norm, b.norm)
        rows = f"a permutation of rows: the same ones in another order along dimension {near}"
        if shifted:
            return f"{rows}, shifted: as padding left and right does"
        if len(shape) > 2 and first:
            return f"{rows}, within each sample: as padding left and right does"
        return rows
    if along and before and not first:
        return "a permutation of rows: the same ones in another order along dimension 0"
    if not along and before and "pad" in node_b.operation:
        return f"padding on another side: the same elements further on along dimension {last}"
    if not along and before:
        return f"a permutation of columns: another order along dimension {last}"
    return "the same elements in another order"


def scale(a: Fingerprint, b: Fingerprint) -> float | None:
    """Return the factor between result `a` and its multiple `b`; None if `b` is not a multiple."""
    if (
        not (is_identifying(a) and is_identifying(b))
        or a.elements != b.elements
        or a.norm == 0
        or b.norm == 0
    ):
        return None
    if a.elements < 4:
        return None
    size = b.norm / a.norm
    for factor in (size, -size):
        low, high = sorted((a.least * factor, a.greatest * factor))
        *places, sizes, cubes = a.projections
        times = a._replace(
            norm=a.norm * size,
            mean=a.mean * factor,
            least=low,
            greatest=high,
            projections=(*(each * factor for each in places), sizes * size, cubes * factor),
        )
        if (
            distance(times, b, places=True) <= _EQUAL_TOLERANCE
            and abs(factor - 1) > _EQUAL_TOLERANCE
        ):
            return factor
    return None


# Attribute -> text for two different values of the attribute.
_NAMES = {
    "eps": "another epsilon",
    "approximate": "another approximation of GELU",
    "is_causal": "another mask: is_causal",
    "p": "another dropout",
    "dropout_p": "another dropout",
    "scale": "another scale",
    "other": "another number",
}
# Words in the names of operations that may add a bias.
_ADDS = ("mm", "add", "linear", "conv", "norm", "view", "mv", "dot")
# (words in an operation's name, likely cause outside of the graph if the result differs).
_OUTSIDE = (
    (("embedding", "index", "gather", "slice", "select"), "other indices or positions"),
    (("scaled_dot_product", "attention"), "another mask or scale"),
    (("softmax", "masked_fill", "where"), "another mask"),
    (("add", "sub"), "another mask or constant is added"),
    (("mul", "div"), "another factor"),
)


def _nearby_nodes(pairs: ValuePairs, node: int) -> list[Node]:
    """Return a node and the nodes upstream, up to the nearest results that both runs contain."""
    found: dict[int, None] = {node: None}
    stack = [node]
    while stack and len(found) < 64:
        for edge in pairs.inputs[stack.pop()]:
            source = edge.source
            open_here = pairs.states[source] in ("other", "unknown")
            if source not in found and open_here and not pairs.own_graph.nodes[source].leaf:
                found[source] = None
                stack.append(source)
    return [pairs.own_graph.nodes[i] for i in found]


def _attributes(node: Node) -> dict[str, str]:
    pairs = (text.partition("=") for text in node.attributes)
    return {name: value for name, _, value in pairs}


def _formula(near: Sequence[Node]) -> str:
    """Return the formula for GELU that nodes use: "tanh", "sigmoid", or "none" for the exact one.

    Return "" if the nodes do not compute GELU.
    """
    names = {node.operation for node in near}
    for node in near:
        if node.operation == "gelu":
            return _attributes(node).get("approximate", "none")
    if "erf" in names:
        return "none"
    return _constants(near)


def _constants(near: Sequence[Node]) -> str:
    """Return "tanh" or "sigmoid" if some nodes use the constant of this GELU formula, else ""."""
    constants = {value for node in near for value in _attributes(node).values()}
    if "0.044715" in constants:
        return "tanh"
    return "sigmoid" if "1.702" in constants else ""


def _dropout_of(node: Node) -> str:
    found = _attributes(node)
    if found.get("training", found.get("train")) == "True" and float(found.get("p", "0")) > 0:
        return f"p={found['p']}"
    if float(found.get("dropout_p", "0") or 0) > 0:
        return f"p={found['dropout_p']}"
    return "in training" if "dropout" in node.operation else ""


def _epsilon(pairs: ValuePairs, near: Sequence[Node]) -> str:
    """Return the epsilon of a norm layer: an attribute, or a number added before the square root.

    Return "" if the nodes have no epsilon.
    """
    for node in near:
        found = _attributes(node)
        if "eps" in found:
            return found["eps"]
    for root in (node for node in near if node.operation in ("rsqrt", "sqrt")):
        for edge in pairs.inputs[root.id]:
            source = pairs.own_graph.nodes[edge.source]
            value = _attributes(source).get("other", "")
            if source.operation == "add" and _is_small(value):
                return value
    return ""


def _is_small(text: str) -> bool:
    try:
        return 0 < float(text) < 1e-2
    except ValueError:
        return False


def _leaves(pairs: ValuePairs, near: Sequence[Node]) -> list[Node]:
    """Return the leaves that nodes use, directly or through a transpose."""
    nodes = pairs.own_graph.nodes
    found: dict[int, Node] = {}
    for node in near:
        stack = [edge.source for edge in pairs.inputs[node.id]]
        while stack:
            one = nodes[stack.pop()]
            if one.leaf:
                found[one.id] = one
            elif one.operation in TRANSPOSES:
                stack += [edge.source for edge in pairs.inputs[one.id]]
    return list(found.values())


def _is_transposed_before_use(pairs: ValuePairs, leaf: int, near: Sequence[Node]) -> bool | None:
    """Return True if one of the nodes `near` uses a transposed leaf, False if it is not transposed.

    Return None if none of the nodes uses the leaf.
    """
    for product in near:
        for edge in pairs.inputs[product.id]:
            source, turns = edge.source, False
            while pairs.own_graph.nodes[source].operation in TRANSPOSES:
                source, turns = pairs.inputs[source][0].source, not turns
            if source == leaf and product.operation not in TRANSPOSES:
                return turns
    return None


def _is_transposed(
    a: Fingerprint | None, b: Fingerprint | None, node_a: Node, node_b: Node
) -> bool:
    if a is None or b is None or len(shape_of(node_b)) != 2:
        return False
    if shape_of(node_a) != shape_of(node_b)[::-1]:
        return False
    if distance(a, b, places=False) > _EQUAL_TOLERANCE or equal_projections(
        a, b, slice(0, 6), _EQUAL_TOLERANCE
    ):
        return False
    swapped = a._replace(
        projections=(*a.projections[NEAR], *a.projections[ALONG], *a.projections[4:])
    )
    return equal_projections(swapped, b, slice(0, 4), _EQUAL_TOLERANCE)


def _length(pair: Sequence[float]) -> float:
    return math.hypot(*pair)
