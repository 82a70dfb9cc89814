"""Rules about losses with the wrong sign."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ...graph import Finding, Node
from ...graph.events import OptimizerStep
from ...graph.nodes import SAME_VALUES, SUMS
from ..axes import attribute
from ..directions import constant, direction, number_by
from ..graph_reading import Reading
from ..rule import finding, rule
from ..words import at
from .cuts import upstream

_LOGARITHMS = ("log_softmax", "log_sigmoid")
# Operations that select or add up log-probabilities.
_SELECTING = {"gather", "index", "select", "slice", "diagonal", "sum", "mean", "masked_select"}
_SELECTING |= SAME_VALUES
_ADDING = SUMS | SAME_VALUES | {"sum", "mean", "stack", "cat", "select"}
_CHOICES = ("gather", "index")  # operations that select the log-probabilities of actions
_CLAMPS = ("clamp", "clamp_min", "clamp_max")
_MINIMA = ("minimum", "min", "fmin")
# Constants in a normal distribution's log-density, and in its entropy.
_DENSITY = 0.5 * math.log(2 * math.pi)
_ENTROPY = 0.5 + _DENSITY
# Operations between the scores and the logarithm in an entropy.
_BELOW_LOG = {"log", "add", "log_softmax", "index", *_CLAMPS, *SAME_VALUES}


@rule("warning", of=(*_LOGARITHMS, "gather", "sub"))
def minimized_log_probability(reading: Reading) -> Iterator[Finding]:
    """A term of the loss is a mean or a sum of log-probabilities without a minus sign, so a step
    makes the probabilities smaller.

    ## Why it matters

    The loss falls without a bound, and the model learns to avoid the targets.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model, target = nn.Linear(4, 3), torch.arange(8) % 3
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        log_probabilities = model(torch.randn(8, 4)).log_softmax(-1)
        loss = log_probabilities.gather(1, target[:, None]).mean()  # <- reported
        loss.backward()
        optimizer.step()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model, target = nn.Linear(4, 3), torch.arange(8) % 3
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        log_probabilities = model(torch.randn(8, 4)).log_softmax(-1)
        loss = -log_probabilities.gather(1, target[:, None]).mean()
        loss.backward()
        optimizer.step()
    ```

    ## When it is intended

    Unlearning by gradient ascent makes the probabilities of its targets smaller on purpose. If all
    weights of a policy gradient are costs, it has no minus sign: this case is a note.

    ## Not detected

    Log-probabilities that are multiplied with values of both signs, such as advantages, are not
    reported. Distributions other than the categorical and the normal one are not checked.

    ## See also

    - [NLLLoss](https://docs.pytorch.org/docs/stable/generated/torch.nn.NLLLoss.html)
    """
    if any(event.maximizes for event in reading.events(OptimizerStep)):
        return
    if not any(p.stepped and p.got_gradient for p in reading.graph.parameters):
        return  # a gradient of log-probabilities may be computed for another purpose
    for root, _ in reading.graph.outputs:
        found = _logarithm(reading, reading.graph.nodes[root])
        if found is None:
            continue
        node, term = found
        name = "log_softmax" if node.operation == "log_softmax" else "logsigmoid"
        yield finding(
            "warning",
            f"The loss adds up log-probabilities of {name}{at(node.where)} without a minus sign: "
            "each step makes these probabilities smaller.",
            cause="log-probability minimized",
            advice="Change the sign of the loss, or construct the optimizer with maximize=True.",
            where=term.where,
            nodes=(node.id, term.id),
        )

    yield from _densities(reading)
    yield from _weighted_choices(reading)


def _densities(reading: Reading) -> Iterator[Finding]:
    """Report log-densities of data, under a normal distribution, that a step makes smaller."""
    for node in reading.of_operations(("sub",)):
        if not _is_density(node) or _sign_in_loss(reading, node.id) <= 0:
            continue
        squares = upstream(reading, node.id, set())
        errors = {
            edge.source
            for i in squares
            if reading.graph.nodes[i].operation == "pow"
            for edge in reading.inputs[i]
        }
        # A sample with a gradient is one of the policy itself, whose entropy is maximized.
        if not any(_is_difference_to_data(reading, i) for i in errors):
            continue
        yield finding(
            "warning",
            f"The loss adds up log-densities of a normal distribution{at(node.where)} without a "
            "minus sign: each step makes the densities of the data smaller.",
            cause="log-probability minimized",
            advice="Change the sign of the log-densities in the loss.",
            where=node.where,
            nodes=(node.id,),
        )


def _is_difference_to_data(reading: Reading, node: int) -> bool:
    value = reading.graph.nodes[node]
    return value.operation == "sub" and len(reading.inputs[node]) == 1 and constant(value) is None


def _weighted_choices(reading: Reading) -> Iterator[Finding]:
    """Report a policy gradient whose weights are all positive, and which has no minus sign."""
    nodes = reading.graph.nodes
    for node in reading.of_operations(("mul",)):
        edges = reading.inputs[node.id]
        if len(edges) != 1 or constant(node) is not None or not edges:
            continue
        chosen = edges[0].source
        while nodes[chosen].operation in ("stack", "cat", "sum") and reading.inputs[chosen]:
            chosen = reading.inputs[chosen][0].source
        chain = [nodes[i] for i in _chain(reading, chosen)]
        picked = any(each.operation in _CHOICES for each in chain)
        log = chain[-1].operation == "log_softmax" or any(
            each.operation in ("log_softmax", "log", "sub") for each in chain
        )
        if not (picked and log) and not _is_density(nodes[chosen]):
            continue
        if direction(reading, edges[0].source) != 1 or _sign_in_loss(reading, node.id) <= 0:
            continue
        yield finding(
            "info",
            f"The loss adds up log-probabilities{at(node.where)} with weights that are all "
            "positive, and without a minus sign: each step makes all these probabilities smaller.",
            cause="log-probability minimized",
            advice="Change the sign of the term. Do nothing if the weights are costs.",
            where=node.where,
            nodes=(node.id, chosen),
        )


def _sign_in_loss(reading: Reading, node: int) -> int:
    """Return the sign of a term in a loss that is a sum or a mean; 0 for any other node."""
    sign = 1
    while users := reading.users[node]:
        user = reading.graph.nodes[users[0].target]
        by = number_by(user)
        if len(users) > 1 or by == 0:
            return 0
        if by is not None:
            sign *= 1 if by > 0 else -1
        elif user.operation == "neg" or (
            user.operation in ("sub", "rsub")
            and (user.operation == "sub") == (users[0].input_nr == 1)
        ):
            sign = -sign
        elif user.operation not in _ADDING:
            return 0
        node = user.id
    return sign


def _logarithm(reading: Reading, node: Node) -> tuple[Node, Node] | None:
    """Return the node of a logarithm that is the only term of a loss, and the node that scales it.

    The result is None for any other loss, and for a logarithm with a minus sign.
    """
    first, selects, sign = node, False, 1
    while True:
        edges = reading.inputs[node.id]
        if node.operation in _LOGARITHMS:
            whole = node.operation == "log_sigmoid" or selects
            return (node, first) if sign > 0 and whole else None
        if len(edges) != 1:
            return None
        if node.operation == "neg":
            sign = -sign
        elif node.operation in ("mul", "div"):
            try:
                sign *= 1 if float(attribute(node, "other")) > 0 else -1
            except ValueError:
                return None
        elif node.operation not in _SELECTING:
            return None
        selects = selects or node.operation in ("gather", "index", "diagonal")
        node = reading.graph.nodes[edges[0].source]


@rule("warning", of=("maximum", "minimum", "mul", "add"))
def reversed_term(reading: Reading) -> Iterator[Finding]:
    """A term of a policy's loss works against its purpose: a step makes the entropy smaller, or the
    clipped objective of PPO is the larger of its two values instead of the smaller.

    ## Why it matters

    An entropy bonus keeps a policy exploring. With the wrong sign, the policy soon chooses one
    action only.

    The smaller of the two objectives stops growing where the ratio of the probabilities leaves the
    range of the clamp, so a step gains nothing by moving it further. The larger one is constant
    only where the objective has become worse, so nothing limits a step that improves it.

    ## Example

    ```python
    import torch
    from torch import nn
    from torch.distributions import Categorical
    from graphviz_torch import record

    policy, states = nn.Linear(4, 3), torch.randn(16, 4)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    with record(policy) as recording:
        distribution = Categorical(logits=policy(states))
        log_prob = distribution.log_prob(distribution.sample())
        entropy = distribution.entropy().mean()  # <- reported
        loss = -(log_prob * torch.randn(16)).mean() + 0.01 * entropy
        loss.backward()
        optimizer.step()
    ```

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    policy, states, advantage = nn.Linear(4, 3), torch.randn(16, 4), torch.randn(16)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    with torch.no_grad():
        before = policy(states).log_softmax(-1)[:, 0]
    with record(policy) as recording:
        ratio = (policy(states).log_softmax(-1)[:, 0] - before).exp()
        clipped = ratio.clamp(0.8, 1.2)
        loss = -torch.max(ratio * advantage, clipped * advantage).mean()  # <- reported
        loss.backward()
        optimizer.step()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from torch.distributions import Categorical
    from graphviz_torch import record

    policy, states = nn.Linear(4, 3), torch.randn(16, 4)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    with record(policy) as recording:
        distribution = Categorical(logits=policy(states))
        log_prob = distribution.log_prob(distribution.sample())
        entropy = distribution.entropy().mean()
        loss = -(log_prob * torch.randn(16)).mean() - 0.01 * entropy
        loss.backward()
        optimizer.step()
    ```

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    policy, states, advantage = nn.Linear(4, 3), torch.randn(16, 4), torch.randn(16)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    with torch.no_grad():
        before = policy(states).log_softmax(-1)[:, 0]
    with record(policy) as recording:
        ratio = (policy(states).log_softmax(-1)[:, 0] - before).exp()
        clipped = ratio.clamp(0.8, 1.2)
        loss = -torch.min(ratio * advantage, clipped * advantage).mean()
        loss.backward()
        optimizer.step()
    ```

    ## When it is intended

    Some methods train a model to be more certain, and minimize its entropy beside a policy
    gradient.

    ## Not detected

    An entropy is checked only if the loss also contains a policy gradient of the same distribution,
    which must be categorical or normal. The sign of the policy gradient itself is not checked.

    ## See also

    - [Proximal policy optimization](https://arxiv.org/abs/1707.06347)
    - [torch.distributions](https://docs.pytorch.org/docs/stable/distributions.html)
    """
    if any(event.maximizes for event in reading.events(OptimizerStep)):
        return
    yield from _optimistic_bounds(reading)
    yield from _minimized_entropies(reading)


def _optimistic_bounds(reading: Reading) -> Iterator[Finding]:
    """Report the larger of two objectives, or the smaller of two losses, if one of them is clipped.

    Both are the same ratio times a constant, and the ratio of one is clamped.
    """
    nodes = reading.graph.nodes
    for node in reading.of_operations(("maximum", "minimum", "max", "min", "fmin", "fmax")):
        edges = reading.inputs[node.id]
        if len(edges) != 2 or any(nodes[edge.source].operation != "mul" for edge in edges):
            continue
        factors = [{e.source for e in reading.inputs[edge.source]} for edge in edges]
        clamp = next(
            (
                nodes[i]
                for own, other in (factors, factors[::-1])
                for i in own
                if nodes[i].operation in _CLAMPS
                and any(edge.source in other for edge in reading.inputs[i])
            ),
            None,
        )
        larger = node.operation not in _MINIMA
        if clamp is None or direction(reading, node.id) != (-1 if larger else 1):
            continue
        wrong, right = ("larger", "min") if larger else ("smaller", "max")
        what = "objective" if larger else "loss"
        yield finding(
            "warning",
            f"{node.title}{at(node.where)} takes the {wrong} of the clipped and the unclipped "
            f"{what}, and each step {'increases' if larger else 'decreases'} it: the clamp"
            f"{at(clamp.where)} does not limit steps that improve the {what}.",
            cause="the optimistic side of a clipped objective",
            advice=f"Use torch.{right}{at(node.where)}, or check the sign of the {what}.",
            where=node.where,
            nodes=(node.id, clamp.id),
        )


def _minimized_entropies(reading: Reading) -> Iterator[Finding]:
    """Report entropies that a step makes smaller, beside a policy gradient."""
    told = set[str]()
    for node, sign, scores in _entropies(reading):
        if direction(reading, node.id) * sign <= 0 or node.where in told:
            continue
        policy = next((i for i in scores if _is_weighted(reading, i)), None)
        if policy is None:
            continue
        told.add(node.where)
        yield finding(
            "warning",
            f"Each step makes the entropy of the policy{at(node.where)} smaller: it has a plus "
            "sign in the loss.",
            cause="an entropy that is minimized",
            advice="Subtract the entropy from the loss, so that a step makes it larger.",
            where=node.where,
            nodes=(node.id, policy),
        )


def _entropies(reading: Reading) -> Iterator[tuple[Node, int, list[int]]]:
    """Yield each entropy as a node, its sign, and the log-probabilities of the same policy.

    The node is p * log p, or the logarithm of a normal distribution's scale plus a constant.
    """
    nodes = reading.graph.nodes
    for node in reading.of_operations(("mul",)):
        edges = reading.inputs[node.id]
        for one, other in (edges, edges[::-1]) if len(edges) == 2 else ():
            probabilities, logarithm = _chain(reading, one.source), _chain(reading, other.source)
            p = nodes[probabilities[-1]]
            if p.operation not in ("softmax", "exp") or not reading.inputs[p.id]:
                continue
            scores = {p.id, reading.inputs[p.id][0].source}
            if scores.isdisjoint(logarithm) or one.source in logarithm[:1]:
                continue
            chosen = [
                each.id
                for each in reading.of_operations(_CHOICES)
                if not scores.isdisjoint(_chain(reading, each.id))
            ]
            yield node, -1, chosen
    for node in reading.of_operations(("add",)):
        value = constant(node)
        if value is not None and math.isclose(value, _ENTROPY, rel_tol=1e-6):
            densities = [each.id for each in reading.of_operations(("sub",)) if _is_density(each)]
            yield node, 1, densities


def _chain(reading: Reading, node: int) -> list[int]:
    """Return a node and those from which it was computed, up to the scores of a distribution."""
    found = [node]
    for _ in range(8):
        value, edges = reading.graph.nodes[node], reading.inputs[node]
        normalized = value.operation == "sub" and len(edges) == 2
        normalized &= any(reading.graph.nodes[e.source].operation == "logsumexp" for e in edges)
        passed = value.operation in _BELOW_LOG or value.operation in _CHOICES or normalized
        if not passed or not edges:
            break
        node = edges[0].source
        found.append(node)
    return found


def _is_density(node: Node) -> bool:
    """Return True for the last difference in a normal distribution's log-density."""
    value = constant(node)
    return value is not None and math.isclose(value, _DENSITY, rel_tol=1e-6)


def _is_weighted(reading: Reading, node: int) -> bool:
    """Return True for log-probabilities of actions in a policy gradient.

    A loss weights them by values of both signs, or computes their ratio to those of another policy.
    """
    stack, differs = [node], False
    while stack:
        value = reading.graph.nodes[stack.pop()]
        users = [reading.graph.nodes[edge.target] for edge in reading.users[value.id]]
        for user in users:
            alone = len(reading.inputs[user.id]) == 1
            if user.operation == "exp" and differs:
                return True
            if user.operation == "mul" and reading.stats(value.id) is not None:
                if constant(user) is None and direction(reading, value.id) == 0:
                    return True
            elif user.operation in {"sub", "neg", "sum", "select", "slice", *SAME_VALUES}:
                differs |= user.operation == "sub" and alone and constant(user) is None
                stack.append(user.id)
    return False
