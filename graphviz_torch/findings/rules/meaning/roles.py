"""Roles: what is a target, a weight or a term, and takes a gradient as if it were to learn."""

from __future__ import annotations

from collections.abc import Iterator

from ....graph import Finding, Node
from ....graph.text import listing
from ...graph_reading import Reading
from ...rule import finding, rule
from ...words import at
from ..cuts import upstream

_REGRESSION = {"mse_loss": 2, "smooth_l1_loss": 2, "huber_loss": 2, "l1_loss": 2}
# What stands between a network's values and a target that is computed from them.
_BOOTSTRAP = {"add", "sub", "max", "amax", "min", "minimum", "maximum", "squeeze", "unsqueeze"}
_BOOTSTRAP |= {"masked_fill", "where", "view", "gather", "index", "mul", "neg", "select"}
_PASSING = {"squeeze", "unsqueeze", "view", "neg", "sum", "exp", "select", "to_copy", "sub"}


@rule(of=_REGRESSION)
def both_sides_learn(reading: Reading) -> Iterator[Finding]:
    """Both arguments of a regression loss take gradients through the same parameters, or the target
    does through a network that the optimizer of this step does not hold."""
    nodes = reading.graph.nodes
    owner = {p.node: p for p in reading.graph.parameters}
    idle = {p.node for p in reading.graph.parameters if p.stepped is False}
    for node in nodes:
        if node.operation not in _REGRESSION or node.order is None:
            continue
        sides = {edge.input_nr: edge.source for edge in reading.inputs[node.id]}
        if set(sides) != {0, 1}:
            continue
        behind = [upstream(reading, sides[i], set()) for i in (0, 1)]
        leaves = [{i for i in ids if i in owner} for ids in behind]
        shared = leaves[0] & leaves[1]
        labels = [nodes[sides[i]].label or reading.call(sides[i]) for i in (0, 1)]
        if shared:
            moving = [i for i in (0, 1) if _is_bootstrapped(reading, sides[i])]
            target = f"{labels[moving[0]]} moves" if moving else ""
            yield finding(
                "warning" if len(moving) == 1 else "info",
                f"Both arguments of {node.title}{at(node.source)} take gradients through "
                f"{listing(owner[i].name for i in sorted(shared))}: "
                f"{target + ' with what learns' if target else _pulled(labels)}.",
                cause="both arguments learn",
                advice=f"Detach {labels[moving[0]]}, or compute it under torch.no_grad()."
                if len(moving) == 1
                else "",
                where=node.source,
                nodes=(node.id, sides[0], sides[1]),
            )
            continue
        for i in (0, 1):
            if leaves[i] and leaves[i] <= idle and leaves[1 - i] - idle:
                yield finding(
                    "info",
                    f"The target {labels[i]} of {node.title}{at(node.source)} takes gradients "
                    f"through {listing(owner[n].name for n in sorted(leaves[i]))}, which the "
                    "optimizer of this step does not hold.",
                    cause="a target with history",
                    advice=f"Detach {labels[i]}, or compute it under torch.no_grad().",
                    where=node.source,
                    nodes=(node.id, sides[i]),
                )


def _pulled(labels: list[str]) -> str:
    return f"{labels[0]} and {labels[1]} are pulled towards each other"


def _is_bootstrapped(reading: Reading, start: int) -> bool:
    """Is it a discounted value, r + 0.99 * q, of a network: the target of temporal differences."""
    nodes, node = reading.graph.nodes, start
    discounted = False
    while nodes[node].operation in _BOOTSTRAP:
        discounted |= nodes[node].operation == "mul" and 0.5 <= _constant(nodes[node]) < 1
        sources = [e.source for e in reading.inputs[node] if nodes[e.source].leaf != "parameter"]
        if len(sources) != 1:
            break
        node = sources[0]
    return discounted


def _constant(node: Node) -> float:
    """The number that a node was given as its other operand; 0 where it is a tensor."""
    given = (text.removeprefix("other=") for text in node.attributes if text.startswith("other="))
    text = next(given, "")
    try:
        return float(text)
    except ValueError:
        return 0.0


@rule(of=("gather", "index"))
def weighted_log_prob(reading: Reading) -> Iterator[Finding]:
    """The log-probability of a drawn sample is weighted by a value that has a history, so that the
    policy's loss trains what estimates the value, too."""
    nodes = reading.graph.nodes
    owner = {p.node: p.name for p in reading.graph.parameters}
    for node in nodes:
        if node.operation != "mul" or node.order is None:
            continue
        sides = [edge.source for edge in reading.inputs[node.id]]
        if len(sides) != 2:
            continue
        for drawn, weight in (sides, sides[::-1]):
            if not _is_log_prob(reading, drawn):
                continue
            own = upstream(reading, drawn, set())
            more = [i for i in sorted(upstream(reading, weight, set()) - own) if i in owner]
            if more:
                name = nodes[weight].label or reading.call(weight)
                yield finding(
                    "warning",
                    f"A log_prob{at(node.source)} is weighted by {name}, which has a history: the "
                    f"loss of the policy trains {listing(owner[i] for i in more)}, too.",
                    cause="a weight with history",
                    advice=f"Detach {name} where it weights the log_prob.",
                    where=node.source,
                    nodes=(node.id, weight, drawn),
                )
                break


def _is_log_prob(reading: Reading, node: int) -> bool:
    """Is it one of the log-probabilities of a categorical distribution, picked by a sample."""
    nodes = reading.graph.nodes
    for _ in range(8):
        inputs = [edge.source for edge in reading.inputs[node]]
        if nodes[node].operation in ("gather", "index") and len(inputs) == 1:
            made = nodes[inputs[0]].operation
            before = [nodes[edge.source].operation for edge in reading.inputs[inputs[0]]]
            return made == "log_softmax" or (made == "sub" and "logsumexp" in before)
        if nodes[node].operation not in _PASSING or len(inputs) != 1:
            return False
        node = inputs[0]
    return False
