"""Rules about the weights of losses: of samples, and of terms."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ...graph import Finding, Node, Parameter
from ...graph.events import OptimizerStep
from ...graph.nodes import SAME_VALUES
from ..axes import attribute
from ..graph_reading import Reading
from ..rule import finding, rule
from ..words import at

_LOSSES = ("nll_loss", "nll_loss2d", "binary_cross_entropy_with_logits", "binary_cross_entropy")
_DISTANCES = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div")
_NAMES = {"nll_loss": "cross_entropy", "nll_loss2d": "cross_entropy"}
# Operations between a loss and the factor that is computed from it.
_OF_FACTORS = {*SAME_VALUES, "neg", "rsub", "add", "sub", "mul", "pow", "square", "clamp"}
# Operations that a trained weight may pass before it is multiplied with a loss.
_OF_WEIGHTS = {*SAME_VALUES, "neg", "exp", "softplus", "sigmoid", "softmax", "pow", "relu", "abs"}
_OF_WEIGHTS |= {"select", "index", "slice", "unbind", "reciprocal", "clamp", "clamp_min", "mul"}
_OF_WEIGHTS |= {"div", "add", "rsub", "sub"}
_OF_SUMS = {*SAME_VALUES, "add", "mean", "sum", "stack", "cat", "mul", "div"}
_MOST_WEIGHTS = 16  # a parameter with more elements is not one of weights of losses
_MAX_NODES = 200


@rule("warning", of=("exp",))
def focal_of_mean(reading: Reading) -> Iterator[Finding]:
    """A focal loss computes its factor from the mean loss of the batch instead of from the loss of
    each sample.

    ## Why it matters

    The factor (1 - p)^gamma, where p is the probability of the target, should be small for samples
    that the model already classifies well, so that hard samples dominate. Computed from the mean
    loss, the factor is one number for the whole batch: its samples have the same weights as in a
    cross entropy.

    ## Example

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record

    model, target = nn.Linear(4, 3), torch.arange(8) % 3
    with record(model) as recording:
        cross_entropy = F.cross_entropy(model(torch.randn(8, 4)), target)
        p = torch.exp(-cross_entropy)  # <- reported
        loss = ((1 - p) ** 2 * cross_entropy).mean()
        loss.backward()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record

    model, target = nn.Linear(4, 3), torch.arange(8) % 3
    with record(model) as recording:
        cross_entropy = F.cross_entropy(model(torch.randn(8, 4)), target, reduction="none")
        p = torch.exp(-cross_entropy)
        loss = ((1 - p) ** 2 * cross_entropy).mean()
        loss.backward()
    ```

    ## When it is intended

    A weight of the whole batch, which is small if the batch is easy, may be wanted. An exp(-loss)
    that is only logged, or that is a factor of another loss, is not reported.

    ## Not detected

    A factor that is detached from the graph is not checked.

    ## See also

    - [Focal loss](https://arxiv.org/abs/1708.02002)
    """
    for node in reading.of_operations(("exp",)):
        loss = _mean_loss(reading, node)
        if loss is None or not _multiplies(reading, node, loss):
            continue
        name = _NAMES.get(loss.operation, loss.operation)
        yield finding(
            "warning",
            f"exp{at(node.where)} computes the factor of a focal loss from the mean of {name}"
            f"{at(loss.where)}, so all samples of a batch have the same factor.",
            cause="a focal factor of the mean loss",
            advice=f'Pass reduction="none" to {name}, and take the mean of the product.',
            where=node.where,
            nodes=(loss.id, node.id),
        )


def _mean_loss(reading: Reading, node: Node) -> Node | None:
    """Return the node of a mean loss from which `node` computes exp(-loss); None if another."""
    negative = False
    while True:
        edges = reading.inputs[node.id]
        if len(edges) != 1:
            return None
        node = reading.graph.nodes[edges[0].source]
        meta = reading.meta(node.id)
        if meta is None or meta.shape:
            return None
        if node.operation in _LOSSES:
            given = reading.meta(reading.inputs[node.id][0].source)
            several = given is not None and bool(given.shape) and given.shape[0] > 1
            return node if negative and several else None
        if node.operation == "neg":
            negative = not negative
        elif node.operation == "mul" and attribute(node, "other").startswith("-"):
            negative = True
        elif node.operation != "mean" and node.operation not in SAME_VALUES:
            return None


def _multiplies(reading: Reading, node: Node, loss: Node) -> bool:
    """Return True if a factor that is computed from `node` is multiplied with the loss."""
    stack = [node.id]
    for each in stack:
        for edge in reading.users[each]:
            user = reading.graph.nodes[edge.target]
            sources = {e.source for e in reading.inputs[user.id]} - {each}
            if user.operation == "mul" and any(_scales(reading, i, loss) for i in sources):
                return True
            if user.operation in _OF_FACTORS and user.id not in stack:
                stack.append(user.id)
    return False


def _scales(reading: Reading, node: int, loss: Node) -> bool:
    """Return True if a node is a loss, or the loss times a number."""
    while node != loss.id:
        value, edges = reading.graph.nodes[node], reading.inputs[node]
        if len(edges) != 1 or value.operation not in (*SAME_VALUES, "mul", "div", "neg", "mean"):
            return False
        node = edges[0].source
    return True


@rule("warning", of=(OptimizerStep,))
def trained_loss_weight(reading: Reading) -> Iterator[Finding]:
    """The weight of a loss is a trained parameter, and nothing in the loss keeps it from becoming
    0.

    ## Why it matters

    The optimizer lowers the loss by lowering its weight, most of all that of the hardest task,
    instead of solving the task. Weights that are learned, as in uncertainty weighting, therefore
    need a term that rises when a weight falls, such as the sum of the log variances.

    ## Example

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record

    model = nn.Linear(4, 1)
    model.log_variance = nn.Parameter(torch.zeros(()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        distance = F.mse_loss(model(torch.randn(8, 4)), torch.randn(8, 1))
        loss = torch.exp(-model.log_variance) * distance  # <- reported
        loss.backward()
        optimizer.step()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record

    model = nn.Linear(4, 1)
    model.log_variance = nn.Parameter(torch.zeros(()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        distance = F.mse_loss(model(torch.randn(8, 4)), torch.randn(8, 1))
        loss = torch.exp(-model.log_variance) * distance + model.log_variance
        loss.backward()
        optimizer.step()
    ```

    ## When it is intended

    A Lagrange multiplier is trained to make the loss larger. It is not reported if its optimizer
    has maximize=True, but it is if the program changes the sign of its gradient.

    ## Not detected

    Weights that do not belong to the recorded model, or that a network computes from its input, are
    not checked.

    ## See also

    - [Multi-task learning using uncertainty to weigh losses](https://arxiv.org/abs/1705.07115)
    """
    if any(event.maximizes for event in reading.events(OptimizerStep)):
        return
    for parameter in reading.graph.parameters:
        few = math.prod(parameter.tensor.shape) <= _MOST_WEIGHTS
        if not few or parameter.node is None or not parameter.stepped:
            continue
        product = _product_with_loss(reading, parameter)
        if product is not None:
            yield finding(
                "warning",
                f"The parameter {parameter.name} determines a weight of the loss"
                f"{at(product.where)}, and no other term of the loss depends on it: the optimizer "
                "lowers the loss by making the weight smaller.",
                cause="a trained weight without a counterweight",
                advice="Add a term that rises when the weight falls, such as "
                f"{parameter.name.rpartition('.')[2]}.sum() for exp(-log_variance) * loss, or use "
                "a constant weight.",
                where=product.where,
                nodes=(parameter.node, product.id),
            )


def _product_with_loss(reading: Reading, parameter: Parameter) -> Node | None:
    """Return a product of a parameter and a loss; None if the parameter has any other use."""
    assert parameter.node is not None
    nodes, stack, product = reading.graph.nodes, [parameter.node], None
    for each in stack:
        for edge in reading.users[each]:
            user = nodes[edge.target]
            others = {e.source for e in reading.inputs[user.id]} - {each}
            if not others and user.operation in _OF_WEIGHTS and not attribute(user, "data"):
                if user.id not in stack:
                    stack.append(user.id)
            elif user.operation in ("mul", "div") and len(others) == 1:
                [other] = others
                over = user.operation == "mul" or edge.input_nr == 1
                if not over or not _is_loss(reading, other) or not _is_added(reading, user):
                    return None
                product = user
            else:
                return None
    return product


def _is_loss(reading: Reading, node: int) -> bool:
    """Return True for the result of a loss that is at least 0."""
    for _ in range(_MAX_NODES):
        value, edges = reading.graph.nodes[node], reading.inputs[node]
        if value.operation in (*_LOSSES, *_DISTANCES):
            return True
        if value.operation in ("pow", "square", "abs", "linalg_vector_norm"):
            meta = reading.meta(edges[0].source) if edges else None
            return meta is not None and bool(meta.shape)
        if value.operation not in (*SAME_VALUES, "mean", "sum", "stack", "select") or not edges:
            return False
        node = edges[0].source
    return False


def _is_added(reading: Reading, node: Node) -> bool:
    """Return True if a node's result is only added to the loss from which backward starts."""
    roots, stack = {root for root, _ in reading.graph.outputs}, [node.id]
    for each in stack:
        if not reading.users[each] and each not in roots:
            return False
        for edge in reading.users[each]:
            user = reading.graph.nodes[edge.target]
            other = attribute(user, "other")
            if user.operation not in _OF_SUMS or other.startswith("-"):
                return False
            if user.operation in ("mul", "div") and len(reading.inputs[user.id]) > 1:
                return False
            if user.id not in stack:
                stack.append(user.id)
    return True
