"""Arguments and first values: numbers that a dtype does not have, and weights that begin alike."""

from __future__ import annotations

from collections.abc import Iterator

from ....graph import Finding, GradientStats
from ....graph.events import NonfiniteValue
from ...graph_reading import Reading
from ...rule import finding, rule
from ...words import at, names_of
from ..cuts import upstream

# By dtype: half of its least number above 0, which rounds to 0.
_LEAST = {"float16": 2.0**-25, "bfloat16": 2.0**-134, "float32": 2.0**-150}
_BOUNDS = {"clamp": "min", "clamp_min": "min", "add": "other"}


@rule(of=_BOUNDS)
def vanished_epsilon(reading: Reading) -> Iterator[Finding]:
    """A small number that is to keep a divisor away from 0 is 0 in the dtype of what it meets, as
    1e-8 is in float16."""
    nodes = reading.graph.nodes
    broken = {node for event in reading.events(NonfiniteValue) for node in event.nodes}
    for node in nodes:
        if node.operation not in _BOUNDS:
            continue
        meta = reading.meta(node.id)
        if meta is None or meta.dtype not in _LEAST:
            continue
        key = f"{_BOUNDS[node.operation]}="
        text = next((a.removeprefix(key) for a in node.attributes if a.startswith(key)), "")
        try:
            number = abs(float(text))
        except ValueError:
            continue
        if not 0 < number <= _LEAST[meta.dtype]:
            continue
        # By way of an expand it may be the divisor that was 0.
        users = {edge.target for edge in reading.users[node.id]}
        users |= {edge.target for user in users for edge in reading.users[user]}
        yield finding(
            "warning" if not broken.isdisjoint(users) else "info",
            f"{text}, which {node.title}{at(node.source)} was given, is 0 in {meta.dtype}: it "
            "keeps nothing away from 0.",
            cause=f"a number that {meta.dtype} does not have",
            advice="Pass a larger one, such as eps=1e-4, or compute this part in float32.",
            where=node.source,
            nodes=(node.id,),
        )


@rule(of=(GradientStats,))
def zero_factors(reading: Reading) -> Iterator[Finding]:
    """Two weights on one way are both zero, as the two factors of a LoRA: at least one of them gets
    a gradient of zeros only, and stays as it is."""
    nodes = reading.graph.nodes
    zeros = [
        p
        for p in reading.graph.parameters
        if p.node is not None and p.norm == 0 and p.requires_grad and len(p.tensor.shape) > 1
    ]
    for first in zeros:
        stats = None if first.node is None else reading.stats(first.node)
        if stats is None or stats.zero_fraction < 1:
            continue
        for second in zeros:
            if second is first or second.node is None:
                continue
            product = next(
                (
                    edge.target
                    for node in _with_views(reading, second.node)
                    for edge in reading.users[node]
                    if first.node in upstream(reading, edge.target, set())
                ),
                None,
            )
            if product is None:
                continue
            line = nodes[product].source
            yield finding(
                "warning",
                f"{names_of((first, second))} are both zero, and meet{at(line)}: {first.name} gets "
                "a gradient of zeros only.",
                cause="both are zero",
                advice=f"Begin with random values for {first.name}, as by "
                "nn.init.kaiming_uniform_: one zero of the two is enough.",
                where=line,
                nodes=(first.node or 0, second.node, product),
            )
            return


def _with_views(reading: Reading, node: int) -> list[int]:
    """A parameter's node, and the views of it."""
    found = [node]
    for each in found:
        for edge in reading.users[each]:
            if reading.graph.nodes[edge.target].operation in ("t", "transpose", "view", "permute"):
                found.append(edge.target)
    return found
