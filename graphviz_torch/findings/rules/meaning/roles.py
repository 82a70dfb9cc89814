"""Rules about targets and weights of a loss that should be constant, but have gradients."""

from __future__ import annotations

from collections.abc import Iterator

from ....graph import Edge, Finding, Node
from ....graph.immutable import NamedTuple
from ....graph.nodes import REGRESSION_LOSSES, RESHAPES, SAME_VALUES, SUMS
from ....graph.text import listing
from ...axes import LAYERS, attribute
from ...graph_reading import Reading
from ...rule import finding, rule
from ...words import at, names_of
from ..cuts import upstream

_REGRESSION = dict.fromkeys(REGRESSION_LOSSES, 2)
# Operations that compute a bootstrapped target from a network's values.
_BOOTSTRAP = {"add", "sub", "max", "amax", "min", "minimum", "maximum"} | RESHAPES
_BOOTSTRAP |= {"masked_fill", "where", "gather", "index", "mul", "neg", "select"}
# Last operations of a comparison such as (a - b) ** 2, written without a loss function.
_BY_HAND = ("pow", "abs", "mul")
_PRODUCT = "a product"
_SUMS = SAME_VALUES | SUMS | {"neg", "mean", "sum", "mul", "div", "select"}
_SCALING = RESHAPES | {"div", "softmax", "log_softmax", "clone"}
_DRAWS = ("sample", "normal", "bernoulli", "multinomial")
# Operations between the sample and the square in the log-density of a multivariate normal.
_SOLVED = SAME_VALUES | {"linalg_solve_triangular"}
_PASSING = SAME_VALUES | {"neg", "sum", "exp", "select", "sub"}
_DENSITY = _PASSING | {"div", "mul", "add"}


@rule("warning", of={*_REGRESSION, *_BY_HAND})
def target_not_detached(reading: Reading) -> Iterator[Finding]:
    """The target of a regression or similarity loss passes gradients on to the parameters of the
    prediction, or to a network that this step does not train.

    ## Why it matters

    Training can lower the loss by moving the target towards the prediction. In Q-learning and
    self-supervised training, values drift or collapse to a constant.

    ## Example

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record

    network = nn.Linear(4, 3)
    with record(network) as recording:
        q = network(torch.randn(8, 4)).max(1)[0]
        target = torch.randn(8) + 0.99 * network(torch.randn(8, 4)).max(1)[0]
        F.mse_loss(q, target).backward()  # <- reported
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record

    network = nn.Linear(4, 3)
    with record(network) as recording:
        q = network(torch.randn(8, 4)).max(1)[0]
        with torch.no_grad():
            target = torch.randn(8) + 0.99 * network(torch.randn(8, 4)).max(1)[0]
        F.mse_loss(q, target).backward()
    ```

    ## When it is intended

    Siamese networks and consistency losses train both sides: silence the rule on the line of the
    loss.

    ## Not detected

    Targets that another library computes are not detected.

    ## See also

    - [torch.no_grad](https://docs.pytorch.org/docs/stable/generated/torch.no_grad.html)
    - [Reinforcement learning (DQN) tutorial](https://docs.pytorch.org/tutorials/intermediate/reinforcement_q_learning.html)
    """
    parameters = reading.graph.parameters
    for compared in _compared_pairs(reading):
        node, sides = compared.node, compared.sides
        labels = [_label(reading, side) for side in sides]
        shared = compared.leaves[0] & compared.leaves[1]
        if names := names_of(p for p in parameters if p.node in shared):
            bootstrapped = [i for i in (0, 1) if _is_bootstrapped(reading, sides[i])]
            target = f"{labels[bootstrapped[0]]} changes" if bootstrapped else ""
            yield finding(
                "warning" if len(bootstrapped) == 1 else "info",
                f"Both arguments of {compared.title}{at(node.where)} take gradients through "
                f"{names}: {target + ' with the parameters' if target else _mutual_text(labels)}.",
                cause="both arguments learn",
                advice=f"Detach {labels[bootstrapped[0]]}, or compute it under torch.no_grad()."
                if len(bootstrapped) == 1
                else "",
                where=node.where,
                nodes=(node.id, *sides),
            )
        elif compared.target is not None:
            label = labels[compared.target]
            untrained = [p for p in parameters if p.node in compared.leaves[compared.target]]
            second = compared.target == 1 and node.operation not in _BY_HAND
            target = f"The target {label} of" if second else f"{label} in"
            whose = "which the optimizer of this step does not hold"
            advice = f"Detach {label}, or compute it under torch.no_grad()"
            forgotten = compared.is_target and not any(p.in_optimizer for p in untrained)
            if forgotten:
                whose = "which no optimizer updates"
                is_to = (
                    "it should learn, give it"
                    if len(untrained) == 1
                    else "they should learn, give them"
                )
                advice += f"; if {is_to} to an optimizer"
            yield finding(
                "warning" if forgotten else "info",
                f"{target} {compared.title}{at(node.where)} takes gradients through "
                f"{names_of(untrained)}, {whose}.",
                cause="a target with history",
                advice=f"{advice}.",
                where=node.where,
                nodes=(node.id, sides[compared.target]),
            )


class _Comparison(NamedTuple):
    """Two results that a loss compares, such as a prediction and a target."""

    title: str
    node: Node
    sides: tuple[int, int]  # nodes of the two compared results
    leaves: tuple[set[int], set[int]]  # nodes of the parameters upstream of each side
    # Index of the side whose parameters are not trained by this step; None if there is none.
    target: int | None

    @property
    def is_target(self) -> bool:
        """True if the side `target` is a target of the loss, not a prediction or a factor."""
        if self.target is None or self.title == _PRODUCT:
            return False
        return self.target == 1 or self.node.operation in _BY_HAND


def untrained_targets(reading: Reading) -> set[int]:
    """Return the nodes of untrained parameters from which a target of the loss is computed."""
    every = _compared_pairs(reading)
    return {i for each in every if each.is_target for i in each.leaves[each.target or 0]}


def _compared_pairs(reading: Reading) -> Iterator[_Comparison]:
    nodes = reading.graph.nodes
    untrained = {p.node for p in reading.graph.parameters if p.stepped is False}
    for title, node, edges in _comparisons(reading):
        sides = edges[0].source, edges[1].source
        sources = upstream(reading, sides[0], set()), upstream(reading, sides[1], set())
        common = any(not nodes[i].leaf for i in sources[0] & sources[1])
        if node.operation in _BY_HAND and common and not _are_other_rows(reading, *edges):
            continue  # both sides are computed from one result, as in an entropy, a norm or a gate
        one, other = ({i for i in ids if nodes[i].leaf == "parameter"} for ids in sources)
        target = None
        if one.isdisjoint(other) and one and other and (one <= untrained) != (other <= untrained):
            target = 0 if one <= untrained else 1
            if not any(nodes[i].operation in LAYERS for i in sources[target]):
                target = None  # the side contains no network, such as learned centers
        yield _Comparison(title, node, sides, (one, other), target)


def _comparisons(reading: Reading) -> Iterator[tuple[str, Node, tuple[Edge, Edge]]]:
    """Yield each comparison of two results as a name, its node, and the edges from both results."""
    nodes = reading.graph.nodes
    for node in reading.of_operations(_REGRESSION):
        if node.order is not None:
            sides = {edge.input_nr: edge for edge in reading.inputs[node.id]}
            if set(sides) == {0, 1}:
                yield node.title, node, (sides[0], sides[1])
    stack = [output for output, _ in reading.graph.outputs if nodes[output].order is not None]
    seen = set(stack)
    while stack:  # from the loss through sums and means
        node = nodes[stack.pop()]
        edges = reading.inputs[node.id]
        inputs = [edge.source for edge in edges]
        both = len({(edge.source, edge.output_nr) for edge in edges}) == 2
        if node.operation == "mul" and both:
            yield _PRODUCT, node, (edges[0], edges[1])
        elif inputs and not both and nodes[inputs[0]].operation == "sub":
            square = node.operation == "pow" and attribute(node, "exponent") in ("2", "2.0")
            square |= node.operation == "mul" and len(inputs) == 2
            pair = reading.inputs[inputs[0]]
            if (square or node.operation == "abs") and len(pair) == 2:
                how = "a squared" if square else "an absolute"
                yield f"{how} difference", node, (pair[0], pair[1])
        if node.operation in _SUMS and (
            len(inputs) == 1 or node.operation in ("add", "sub", "rsub")
        ):
            stack += [i for i in inputs if i not in seen]
            seen.update(inputs)


def _are_other_rows(reading: Reading, one: Edge, other: Edge) -> bool:
    """Return True if two inputs are disjoint rows of one result, such as two joined batches."""
    parts = [_rows(reading, one), _rows(reading, other)]
    if None in parts:
        return False
    (source, start, end), (same, begin, stop) = sorted(part for part in parts if part)
    return source == same and start < end <= begin < stop


def _rows(reading: Reading, edge: Edge) -> tuple[int, int, int] | None:
    """Return the base of a slice or split, and its (start, end) in the base; None if unknown."""
    nodes = reading.graph.nodes
    for _ in range(8):
        node, before = nodes[edge.source], reading.inputs[edge.source]
        along = attribute(node, "dim") == "0"
        if along and node.operation in ("split", "split_with_sizes", "unbind"):
            return node.id, edge.output_nr, edge.output_nr + 1
        if along and node.operation == "slice" and before:
            start, end = attribute(node, "start"), attribute(node, "end")
            return before[0].source, int(start or 0), int(end or 0)
        first = [each for each in before if each.input_nr == 0]
        if node.operation not in _SCALING or not first:
            return None
        edge = first[0]
    return None


def _label(reading: Reading, node: int) -> str:
    """Return the label of a result, or its operation if it has no label.

    If the result is another result times a constant, return the label of that other result.
    """
    nodes = reading.graph.nodes
    made = node
    while not nodes[made].label and nodes[made].operation in _SCALING:
        before = [edge.source for edge in reading.inputs[made] if edge.input_nr == 0]
        if not before:
            break
        made = before[0]
    return nodes[made].label or reading.call(made)


def _mutual_text(labels: list[str]) -> str:
    one, other = labels
    names = one.split(", ") if one == other else labels  # one label names all results of a node
    both = " and ".join(names) if len(names) > 1 else f"two results of {one}"
    return f"{both} are pulled towards each other"


def _is_bootstrapped(reading: Reading, start: int) -> bool:
    """Return True for a discounted value of a network, as in temporal difference learning.

    An example is r + 0.99 * q.

    Args:
        reading: the graph.
        start: node at which the search towards the inputs starts.
    """
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
    """Return the number that is the other operand of a node; 0 if the other operand is a tensor."""
    given = (text.removeprefix("other=") for text in node.attributes if text.startswith("other="))
    text = next(given, "")
    try:
        return float(text)
    except ValueError:
        return 0.0


@rule("warning", of=("gather", "index", "pow", "binary_cross_entropy_with_logits"))
def undetached_advantage(reading: Reading) -> Iterator[Finding]:
    """The log-probability of a sample is weighted by a value that requires grad, so the
    policy's loss also trains the network that estimates the value.

    ## Why it matters

    The policy gradient weights each log-probability by an advantage. If the advantage is not
    detached, the policy's loss also moves the critic in the direction that lowers this loss, not
    towards the returns.

    ## Example

    ```python
    import torch
    from torch import nn
    from torch.distributions import Categorical
    from graphviz_torch import record

    model = nn.ModuleDict({"actor": nn.Linear(4, 3), "critic": nn.Linear(4, 1)})
    with record(model) as recording:
        states = torch.randn(8, 4)
        policy = Categorical(logits=model["actor"](states))
        log_prob = policy.log_prob(policy.sample())
        advantage = torch.randn(8) - model["critic"](states).squeeze(1)
        (-log_prob * advantage).mean().backward()  # <- reported
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from torch.distributions import Categorical
    from graphviz_torch import record

    model = nn.ModuleDict({"actor": nn.Linear(4, 3), "critic": nn.Linear(4, 1)})
    with record(model) as recording:
        states = torch.randn(8, 4)
        policy = Categorical(logits=model["actor"](states))
        log_prob = policy.log_prob(policy.sample())
        advantage = torch.randn(8) - model["critic"](states).squeeze(1)
        (-log_prob * advantage.detach() + advantage.square()).mean().backward()
    ```

    ## When it is intended

    Reparameterized policies, which call `rsample()`, differentiate through the critic on purpose.
    They are not reported, because no log-probability is weighted.

    ## Not detected

    Log-probabilities that the program computes without `torch.distributions` may not be recognized.

    ## See also

    - [torch.distributions: score function](https://docs.pytorch.org/docs/stable/distributions.html#score-function)
    """
    nodes = reading.graph.nodes
    owner = {p.node: p.name for p in reading.graph.parameters}
    for node in reading.of_operations(("mul",)):
        if node.order is None:
            continue
        sides = [edge.source for edge in reading.inputs[node.id]]
        if len(sides) != 2:
            continue
        for drawn, weight in (sides, sides[::-1]):
            if not (_is_log_prob(reading, drawn) or _is_density(reading, drawn)):
                continue
            own = upstream(reading, drawn, set())
            more = [i for i in sorted(upstream(reading, weight, set()) - own) if i in owner]
            if more:
                name = nodes[weight].label or reading.call(weight)
                yield finding(
                    "warning",
                    f"A log_prob{at(node.where)} is weighted by {name}, which requires grad: the "
                    f"loss of the policy also trains {listing(owner[i] for i in more)}.",
                    cause="a weight with history",
                    advice=f"Use {name}.detach() as the weight of the log_prob.",
                    where=node.where,
                    nodes=(node.id, weight, drawn),
                )
                break


def _is_log_prob(reading: Reading, node: int) -> bool:
    """Return True for the log-probability of a sample from a categorical distribution."""
    nodes = reading.graph.nodes
    for _ in range(8):
        inputs = [edge.source for edge in reading.inputs[node]]
        if nodes[node].operation in ("gather", "index") and len(inputs) == 1:
            made = nodes[inputs[0]].operation
            before = [nodes[edge.source].operation for edge in reading.inputs[inputs[0]]]
            picked = made in ("log_softmax", "log")
            return picked or (made == "sub" and "logsumexp" in before)
        if nodes[node].operation not in _PASSING or len(inputs) != 1:
            return False
        node = inputs[0]
    return False


def _is_density(reading: Reading, node: int) -> bool:
    """Return True for a normal or Bernoulli distribution's log-density at one of its samples."""
    nodes = reading.graph.nodes
    drawn = {i for cut in reading.graph.cuts if cut.how in _DRAWS for i in cut.after}
    negative = False
    for _ in range(16):
        inputs = [edge.source for edge in reading.inputs[node] if edge.input_nr == 0]
        operation = nodes[node].operation
        if operation == "binary_cross_entropy_with_logits":
            return negative and node in drawn
        if operation == "pow":
            return negative and bool(inputs) and _is_distance(reading, inputs[0], drawn)
        if operation not in _DENSITY or not inputs:
            return False
        negative |= operation == "neg" or (operation == "mul" and _constant(nodes[node]) < 0)
        node = inputs[0]
    return False


def _is_distance(reading: Reading, node: int, drawn: set[int]) -> bool:
    """Return True for the difference of a sample and the mean.

    The difference may be divided by the square root of the covariance.

    Args:
        reading: the graph.
        node: the node of the difference.
        drawn: nodes that use a sample.
    """
    for _ in range(10):
        if node in drawn:
            return True
        inputs = [edge.source for edge in reading.inputs[node]]
        if reading.graph.nodes[node].operation not in _SOLVED or not inputs:
            return False
        node = inputs[-1]  # the first input is the square root of the covariance
    return False
