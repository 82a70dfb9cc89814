"""Rules about gradients that vanish or explode with the depth of the model."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from ...graph import Finding, GradientStats
from ...graph.nodes import SAME_VALUES
from ...graph.text import listing
from ..graph_reading import Reading
from ..rule import finding, rule

# Bounds of a ratio along the longest path: the median norm in the quarter next to the input,
# divided by the median norm in the quarter next to the last layer. At initialization, the ratio is
# 0.5 to 40 in GPT-2, Llama, BERT, T5, ViT, ResNet-18 and -50, above 1e-4 in stacks of up to 10
# Linear + ReLU or Tanh, 1e-6 in 8 sigmoid layers, and 5e4 in 20 ReLU layers with twice He's gain
# (He et al. 2015, "Delving deep into rectifiers").
VANISHING_RATIO = 1e-5
# Severity info: the first weights learn a thousand times slower than the last.
SHRINKING_RATIO = 1e-3
EXPLODING_RATIO = 1e3
# A path with fewer nodes is not checked. Two Linear layers with an activation and a loss have 7.
MIN_CHAIN = 8


@rule("warning", of=(GradientStats,), caused_by=("retained-graph",))
def vanishing_gradient(reading: Reading) -> Iterator[Finding]:
    """The gradient shrinks from layer to layer, so the first layers learn slowly or hardly at all.

    ## Why it matters

    In backward, each layer multiplies the gradient by its derivative. If the product becomes tiny,
    the first layers hardly change, and the model is not better than a model without them.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.Sigmoid()) for _ in range(12)])
    with record(model) as recording:
        model(torch.randn(16, 8)).mean().backward()  # <- reported
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    blocks = [nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU()) for _ in range(12)]
    model = nn.Sequential(*blocks)
    with record(model) as recording:
        model(torch.randn(16, 8)).mean().backward()
    ```

    ## When it is intended

    If a model's last layer is initialized with zeros, the gradient is small in the first step on
    purpose. Later steps of such a model are not reported.

    ## Not detected

    Gradients that are small everywhere, for example because the loss is divided by a large number,
    are not reported: only the ratio between first and last layers is checked. A loss that contains
    derivatives by an input, such as that of a physics-informed network, is not checked.

    ## See also

    - [torch.nn.init](https://docs.pytorch.org/docs/stable/nn.init.html)
    """
    chain = _depth(reading)
    ratio = _growth(reading, chain)
    if ratio is None or ratio >= SHRINKING_RATIO:
        return
    vanishes = ratio < VANISHING_RATIO
    starved = _fed_only_by(reading, [node for node, _ in chain], len(chain) // 4)
    names = listing(reading.call(node) for node in starved)
    slowly = "learns" if len(starved) == 1 else "learn"
    slowly = f"hardly {slowly}" if vanishes else f"{slowly} slowly"
    yield finding(
        # The weights of an unrolled RNN still learn through their other uses.
        "warning" if starved and vanishes else "info",
        f"The gradient {'vanishes' if vanishes else 'shrinks'} with depth: "
        f"{_norms_at_ends(reading, chain)}" + (f", and {names} {slowly}." if names else "."),
        cause="vanishing with depth",
        advice="Use residual connections, normalization, ReLU or GELU instead of sigmoid or "
        "tanh, or an initialization that keeps the scale (nn.init.kaiming_normal_).",
        where=reading.graph.nodes[chain[-1][0]].where,
        nodes=(*starved, chain[0][0], chain[-1][0]),
    )


@rule("warning", of=(GradientStats,), caused_by=("retained-graph",))
def exploding_gradient(reading: Reading) -> Iterator[Finding]:
    """The gradient grows from layer to layer, by orders of magnitude in total.

    ## Why it matters

    Steps that are orders of magnitude too large move the weights far away. The loss jumps, and
    often becomes NaN.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(12)])
    for layer in model:
        nn.init.normal_(layer.weight)
    with record(model) as recording:
        model(torch.randn(16, 64)).mean().backward()  # <- reported
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(12)])
    for layer in model:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="linear")
    with record(model) as recording:
        model(torch.randn(16, 64)).mean().backward()
    ```

    ## When it is intended

    Optimizers that normalize gradients, such as Adam, tolerate large gradients. Silence the rule if
    training is stable.

    ## Not detected

    Growth inside one layer is not detected. `watch` reports growth in single steps as
    `gradient-spike`. A loss that contains derivatives by an input, such as that of a
    physics-informed network, is not checked: its gradients depend on the input's units.

    ## See also

    - [torch.nn.init](https://docs.pytorch.org/docs/stable/nn.init.html)
    - [torch.nn.utils.clip_grad_norm_](https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html)
    """
    chain = _depth(reading)
    ratio = _growth(reading, chain)
    if ratio is None or ratio <= EXPLODING_RATIO:
        return
    # In a branch that a small factor scales, the last layers have a smaller gradient than the skip
    # connection. A path that begins inside such a branch has a smaller one than the last layer.
    smallest = EXPLODING_RATIO * max(chain[0][1], _from_last_layer(reading)[0][1])
    deepest = median(norm for _, norm in chain[-(len(chain) // 4) :])
    if deepest <= smallest:
        return
    # If the gradient becomes small again near the input, the path is cut at its largest gradient.
    if chain[-1][1] <= smallest:
        largest = max(chain, key=lambda pair: pair[1])
        chain = chain[: chain.index(largest) + 1]
    yield finding(
        "warning",
        f"The gradient explodes with depth: {_norms_at_ends(reading, chain)}.",
        cause="exploding with depth",
        advice="Lower the scale of the weights (nn.init.kaiming_normal_), add normalization, and "
        "clip with nn.utils.clip_grad_norm_.",
        where=reading.graph.nodes[chain[-1][0]].where,
        nodes=(chain[0][0], chain[-1][0]),
    )


def _depth(reading: Reading) -> list[tuple[int, float]]:
    """Return the longest path from the last layer to a leaf whose gradients are comparable.

    The path begins where a far larger gradient of another branch is added.
    """
    chain = _from_last_layer(reading)
    for i in range(len(chain) - 1, 0, -1):
        (_, before), (node, norm) = chain[i - 1 : i + 1]
        if norm > EXPLODING_RATIO * before and len(reading.users[node]) > 1:
            return chain[i:]
    return chain


def _from_last_layer(reading: Reading) -> list[tuple[int, float]]:
    """Return the longest path to a leaf, without the operations of the loss.

    A mean in the loss divides the gradient by the number of samples, and samples that the model
    already fits have almost no gradient, so norms inside the loss are not comparable.
    """
    chain = reading.longest_chain
    for i, (node, _) in enumerate(chain):
        if any(edge.source in reading.weights for edge in reading.inputs[node]):
            return chain[i:]
    return chain


def _growth(reading: Reading, chain: list[tuple[int, float]]) -> float | None:
    """Return the ratio of the norms next to the input and next to the last layer.

    Return None for a short path, and if the gradients along the path do not depend on its depth
    alone. In the graph of a derivative, norms also depend on the units of the derivative's input. A
    backward that computes only derivatives by inputs trains no parameter.

    The norm next to the input is the median norm in the quarter of the path that is farthest from
    the loss. If the norm at the end of the path is larger, it is used instead: in a branch beside a
    skip connection, the gradient may be small, although nodes before the branch get the larger
    gradient of the skip connection. A path may also begin inside such a branch, or where the
    gradient is far larger than in the last layer, so a shrinking gradient has to be smaller than
    that of the last layer as well.
    """
    quarter = len(chain) // 4
    if len(chain) < MIN_CHAIN or reading.has_derivatives or not _trains(reading):
        return None
    first = median(n for _, n in chain[:quarter])
    nodes = reading.graph.nodes
    # Views of weights are skipped, because their gradients do not belong to activations.
    end = next(
        (n for i, n in reversed(chain) if nodes[i].operation not in SAME_VALUES), chain[-1][1]
    )
    deep, last = median(n for _, n in chain[-quarter:]) / first, end / first
    start = min(chain[0][1], _from_last_layer(reading)[0][1])
    return max(deep, last, end / start) if deep < 1 else deep


def _trains(reading: Reading) -> bool:
    """Return True if the backward computed the gradient of a parameter."""
    leaves = (node for node in reading.graph.nodes if node.leaf == "parameter")
    return any(node.order is not None or any(node.grad_outputs) for node in leaves)


def _fed_only_by(reading: Reading, chain: list[int], deep: int) -> list[int]:
    """Return the nodes of parameters that only the last `deep` nodes of a path use.

    The last nodes come first.

    Args:
        reading: the graph.
        chain: the nodes of the path, from the last layer to the input.
        deep: number of nodes, counted from the end of the path.
    """
    position = {node: i for i, node in enumerate(reversed(chain))}
    latest = [-1] * len(reading.graph.nodes)
    for node in reversed(reading.graph.nodes):
        users = [latest[edge.target] for edge in reading.users[node.id]]
        latest[node.id] = position.get(node.id, max(users, default=-1))
    leaves = [node.id for node in reading.graph.nodes if node.leaf == "parameter"]
    return sorted((i for i in leaves if 0 <= latest[i] < deep), key=latest.__getitem__)


def _norms_at_ends(reading: Reading, chain: list[tuple[int, float]]) -> str:
    (first, start), (last, end) = chain[0], chain[-1]
    return (
        f"its norm goes from {start:.2g} at {reading.call(first)} to {end:.2g} at "
        f"{reading.call(last)} over {len(chain)} nodes"
    )
