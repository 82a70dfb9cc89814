"""Rules about two networks that train each other, such as generator and discriminator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from ...graph import Finding, Graph, Node
from ...graph.immutable import NamedTuple
from ...graph.nodes import REGRESSION_LOSSES
from ..axes import LAYERS
from ..directions import direction
from ..graph_reading import Reading
from ..rule import finding, rule
from ..words import at
from .cuts import upstream

_DIFFERENCES = (*REGRESSION_LOSSES, "sub", "rsub", "pow")


class _JudgedResult(NamedTuple):
    """The result of a network, and the direction in which a step moves it."""

    node: Node
    sign: int  # of the gradient: a step with a positive sign makes the result smaller
    input: Literal["data", "cut", "network"]  # the origin of the network's input
    compared: bool  # True if the result is compared with a target


@rule("warning", reads="steps")
def same_direction(graphs: Sequence[Graph]) -> Iterator[Finding]:
    """Generator and discriminator move the discriminator's result for generated samples in the same
    direction, or an actor makes the values of its critic smaller.

    ## Why it matters

    A generator learns by working against the discriminator. If both lower the same results, because
    a label or a sign is swapped, the generator learns samples that are easy to recognize as
    generated. An actor that minimizes the values of its critic learns the worst actions.

    ## Example

    ```python
    import torch
    from torch import nn
    from torch.nn.functional import binary_cross_entropy_with_logits as bce
    from graphviz_torch import record

    generator, discriminator = nn.Linear(4, 8), nn.Linear(8, 1)
    ones, zeros = torch.ones(16, 1), torch.zeros(16, 1)
    optimizers = [torch.optim.Adam(net.parameters()) for net in (generator, discriminator)]
    with record(nn.ModuleList([generator, discriminator])) as recording:
        real, fake = torch.rand(16, 8), generator(torch.randn(16, 4))
        loss = bce(discriminator(real), ones) + bce(discriminator(fake.detach()), zeros)
        loss.backward()
        optimizers[1].step()
        optimizers[1].zero_grad()
        bce(discriminator(fake), zeros).backward()  # <- reported
        optimizers[0].step()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from torch.nn.functional import binary_cross_entropy_with_logits as bce
    from graphviz_torch import record

    generator, discriminator = nn.Linear(4, 8), nn.Linear(8, 1)
    ones, zeros = torch.ones(16, 1), torch.zeros(16, 1)
    optimizers = [torch.optim.Adam(net.parameters()) for net in (generator, discriminator)]
    with record(nn.ModuleList([generator, discriminator])) as recording:
        real, fake = torch.rand(16, 8), generator(torch.randn(16, 4))
        loss = bce(discriminator(real), ones) + bce(discriminator(fake.detach()), zeros)
        loss.backward()
        optimizers[1].step()
        optimizers[1].zero_grad()
        bce(discriminator(fake), ones).backward()
        optimizers[0].step()
    ```

    ## When it is intended

    A critic may predict a cost, which its actor minimizes. A minimized value is therefore reported
    as a note.

    ## Not detected

    Discriminators that get real and generated samples in one batch, and those that are trained with
    squared errors, are not checked. The steps of both networks must be recorded.

    ## See also

    - [DCGAN tutorial](https://docs.pytorch.org/tutorials/beginner/dcgan_faces_tutorial.html)
    - [Deep deterministic policy gradient](https://arxiv.org/abs/1509.02971)
    """
    readings = [Reading(graph) for graph in graphs]
    learned = {
        frozenset(
            p.name
            for p in graph.parameters
            if p.node is not None and graph.nodes[p.node].order is not None
        )
        for graph in graphs
    }
    for judge in sorted(learned, key=sorted):
        results = [each for reading in readings for each in _judged_results(reading, judge)]
        joint = [each for each in results if each.input == "network"]
        alone = [each for each in results if each.input != "network"]
        found = _common_goal(alone, joint) or _minimized_value(alone, joint)
        if found is not None:
            yield found
            return


def _common_goal(alone: Sequence[_JudgedResult], joint: Sequence[_JudgedResult]) -> Finding | None:
    """Return the finding about a generator that works with its discriminator.

    Args:
        alone: results in steps of the discriminator.
        joint: results in steps of the generator.
    """
    real = {each.sign for each in alone if each.input == "data"}
    fake = {each.sign for each in alone if each.input == "cut"}
    signs = {each.sign for each in joint}
    compared = any(each.compared for each in (*alone, *joint))
    if compared or not (signs == fake and len(fake) == 1 and real == {-sign for sign in fake}):
        return None
    own, other = next(each for each in alone if each.input == "cut").node, joint[-1].node
    moves = "smaller" if fake == {1} else "larger"
    return finding(
        "warning",
        f"The step of the generator makes the result of the discriminator{at(other.where)} "
        f"{moves}, as does the step of the discriminator itself{at(own.where)}: they do not work "
        "against each other.",
        cause="two networks with the same goal",
        advice=f"Change the label or the sign of the generator's loss{at(other.where)}.",
        where=other.where,
    )


def _minimized_value(
    alone: Sequence[_JudgedResult], joint: Sequence[_JudgedResult]
) -> Finding | None:
    """Return the finding about an actor that makes the values of its critic smaller.

    Args:
        alone: results in steps of the critic.
        joint: results in steps of the actor.
    """
    fitted = bool(alone) and all(each.compared and each.input == "data" for each in alone)
    if not fitted or any(each.compared or each.sign <= 0 for each in joint) or not joint:
        return None
    node = joint[-1].node
    return finding(
        "info",
        f"Each step of the actor makes the value of its critic{at(node.where)} smaller: the mean "
        "of the value has a plus sign in the loss.",
        cause="a value that is minimized",
        advice="Change the sign of the actor's loss. Do nothing if the critic predicts a cost.",
        where=node.where,
    )


def _judged_results(reading: Reading, judge: frozenset[str]) -> Iterator[_JudgedResult]:
    """Yield each result of a network that has one number for each sample.

    Args:
        reading: the graph.
        judge: names of the network's parameters.
    """
    graph = reading.graph
    weights = {p.node for p in graph.parameters if p.name in judge and p.node is not None}
    leaves = {n.id for n in graph.nodes if n.leaf == "parameter" and n.order is not None}
    layers = [
        node
        for node in reading.of_operations(LAYERS)
        if node.order is not None and _weights(reading, node.id) & weights
    ]
    after = {i for cut in graph.cuts if cut.how in ("detach", "no_grad") for i in cut.after}
    below = {node.id: upstream(reading, node.id, set()) for node in layers}
    for node in layers:
        last = not any(node.id in below[each.id] for each in layers if each is not node)
        meta, sign = reading.meta(node.id), direction(reading, node.id)
        if not last or meta is None or len(meta.shape) < 2 or meta.shape[1] != 1:
            continue
        users = [graph.nodes[edge.target].operation for edge in reading.users[node.id]]
        compared = any(user in _DIFFERENCES or user in ("squeeze", "view") for user in users)
        compared = compared and _is_compared(reading, node)
        if not sign and not compared:
            continue
        if below[node.id] & leaves - weights:
            yield _JudgedResult(node, sign, "network", compared)
        else:
            yield _JudgedResult(node, sign, "cut" if below[node.id] & after else "data", compared)


def _is_compared(reading: Reading, node: Node) -> bool:
    """Return True if a loss compares a result with a target, after views of the result."""
    waiting = [node.id]
    for number in waiting:
        for edge in reading.users[number]:
            user = reading.graph.nodes[edge.target]
            if user.operation in _DIFFERENCES:
                return True
            if user.operation in ("squeeze", "view", "select", "minimum"):
                waiting.append(user.id)
    return False


def _weights(reading: Reading, layer: int) -> set[int]:
    """Return the parameters of a layer, which may be transposed."""
    found = set[int]()
    for edge in reading.inputs[layer]:
        found.add(edge.source)
        if reading.graph.nodes[edge.source].operation in ("t", "transpose"):
            found.update(before.source for before in reading.inputs[edge.source])
    return found
