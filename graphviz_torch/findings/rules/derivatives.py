"""Rules about derivatives that a loss contains."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from ...graph import Cut, Finding, GradientStats, Node
from ...graph.nodes import SAME_VALUES, SUMS
from ...graph.text import listing
from ..directions import constant
from ..graph_reading import Reading, is_differentiated
from ..rule import finding, rule
from ..words import at

# Name of the node that a double backward creates -> its activation.
_ACTIVATIONS = {
    "ThresholdBackwardBackward": "ReLU",
    "LeakyReluBackwardBackward": "LeakyReLU",
    "PreluBackwardBackward": "PReLU",
    "PreluKernelBackwardBackward": "PReLU",
    "HardtanhBackwardBackward": "Hardtanh",
    "HardsigmoidBackwardBackward": "Hardsigmoid",
    "RreluWithNoiseBackwardBackward": "RReLU",
}
_PIECEWISE_LINEAR = tuple(_ACTIVATIONS)
_NORMS = ("linalg_vector_norm", "norm")


@rule("warning", of=(Cut,))
def derivative_without_graph(reading: Reading) -> Iterator[Finding]:
    """A derivative of the model's result is added to the result itself in the loss, but was
    computed without `create_graph=True`.

    ## Why it matters

    Such a sum is the residual of a differential equation, or a penalty on slopes. Without a graph
    the derivative is a constant in backward: the loss falls, because the other operand is trained
    towards it, but the equation is not solved.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with record(net) as recording:
        t = torch.rand(16, 1, requires_grad=True)
        u = net(t)
        (du,) = torch.autograd.grad(u.sum(), t, retain_graph=True)  # <- reported
        loss = (du + u).square().mean()
        loss.backward()
        optimizer.step()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with record(net) as recording:
        t = torch.rand(16, 1, requires_grad=True)
        u = net(t)
        (du,) = torch.autograd.grad(u.sum(), t, create_graph=True)
        loss = (du + u).square().mean()
        loss.backward()
        optimizer.step()
    ```

    ## When it is intended

    A first-order method leaves out second derivatives to save time. Silence the rule at the line.

    ## Not detected

    A derivative that only multiplies another value, such as the weight of a loss, is not reported.

    ## See also

    - [torch.autograd.grad](https://docs.pytorch.org/docs/stable/generated/torch.autograd.grad.html)
    """
    nodes = reading.graph.nodes
    learned = {p.node for p in reading.graph.parameters if p.node is not None}
    for cut in reading.graph.cuts:
        if cut.how != "grad" or cut.before is None or not cut.after or cut.in_forward:
            continue
        after = nodes[cut.after[0]]
        whole = cut.tensor is not None and any(size > 1 for size in cut.tensor.shape)
        if after.order is None or after.operation not in SUMS or not whole:
            continue
        for edge in reading.inputs[after.id]:
            # A derivative that is added to its own variable is a step of a sampler or an attack.
            before = _ancestors(reading, edge.source)
            if cut.before not in before or learned.isdisjoint(before):
                continue
            if edge.source == cut.before and learned.isdisjoint(before - {edge.source}):
                continue
            name = reading.call(edge.source)
            yield finding(
                "warning",
                f"{after.operation}{at(after.where)} adds a derivative of {name} to {name}, or "
                f"subtracts one: the derivative{at(cut.where)} was computed without "
                "create_graph=True, so it is a constant in backward.",
                cause="a derivative without a graph",
                advice=f"Pass create_graph=True to autograd.grad{at(cut.where)}.",
                where=cut.where,
                nodes=(edge.source, after.id),
            )
            return


def _ancestors(reading: Reading, node: int) -> set[int]:
    """Return a node and all nodes from which it was computed."""
    waiting, met = [node], {node}
    while waiting:
        new = {edge.source for edge in reading.inputs[waiting.pop()]} - met
        met |= new
        waiting += new
    return met


@rule("warning", of=_NORMS)
def norm_over_batch(reading: Reading) -> Iterator[Finding]:
    """A gradient penalty takes one norm over the derivatives of all samples, instead of a norm for
    each sample.

    ## Why it matters

    The penalty of WGAN-GP moves the norm of each sample's derivative to 1. With a norm over the
    whole batch, the norm of a sample's derivative becomes about 1 / sqrt(batch size), and depends
    on the other samples.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    critic = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    with record(critic) as recording:
        x = torch.randn(16, 8, requires_grad=True)
        (slope,) = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
        penalty = (slope.norm(2) - 1) ** 2  # <- reported
        (critic(torch.randn(16, 8)).mean() + 10 * penalty).backward()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    critic = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    with record(critic) as recording:
        x = torch.randn(16, 8, requires_grad=True)
        (slope,) = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
        penalty = ((slope.norm(2, dim=1) - 1) ** 2).mean()
        (critic(torch.randn(16, 8)).mean() + 10 * penalty).backward()
    ```

    ## When it is intended

    A function of a whole matrix, such as the energy of all atoms of a molecule, has one derivative
    and one norm. Derivatives with respect to a parameter are not reported.

    ## Not detected

    Norms that the program computes from squares and sums are not checked.

    ## See also

    - [Improved training of Wasserstein GANs](https://arxiv.org/abs/1704.00028)
    """
    nodes = reading.graph.nodes
    leaves = defaultdict[str, set[tuple[int, ...]]](set)  # shapes by kind
    for node in nodes:
        meta = reading.meta(node.id)
        if node.leaf and meta is not None:
            leaves[node.leaf].add(meta.shape)
    for node in reading.of_operations(_NORMS):
        meta, edges = reading.meta(node.id), reading.inputs[node.id]
        if meta is None or meta.shape or not edges or not node.where:
            continue
        given = reading.meta(edges[0].source, edges[0].output_nr)
        derivative = nodes[edges[0].source]
        while derivative.operation in SAME_VALUES and reading.inputs[derivative.id]:
            derivative = nodes[reading.inputs[derivative.id][0].source]
        if given is None or len(given.shape) < 2 or given.shape[0] < 2:
            continue
        of_weight = given.shape in leaves["parameter"] - leaves["tensor"]
        if of_weight or not is_differentiated(derivative):
            continue
        for edge in reading.users[node.id]:
            if nodes[edge.target].operation in ("sub", "rsub") and constant(nodes[edge.target]):
                yield finding(
                    "warning",
                    f"The norm{at(node.where)} is one norm for the derivatives of all "
                    f"{given.shape[0]} samples, and the loss penalizes its difference from "
                    f"{constant(nodes[edge.target]):g}.",
                    cause="a norm over the batch",
                    advice="Take the norm of each sample, for example with "
                    f".flatten(1).norm(2, dim=1){at(node.where)}, and the mean of the penalties.",
                    where=node.where,
                    nodes=(derivative.id, node.id),
                )


@rule("warning", of=(GradientStats,), advanced=True)
def zero_second_derivative(reading: Reading) -> Iterator[Finding]:
    """autograd.grad computed a second derivative through piecewise linear activations, such as
    ReLU. This derivative is zero, so a loss computed from it trains nothing.

    ## Why it matters

    The second derivative of ReLU and LeakyReLU is zero, because they are piecewise linear. A
    physics-informed loss computed from this derivative has a value, but trains nothing.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Sequential(nn.Linear(1, 16), nn.ReLU(), nn.Linear(16, 1))
    x = torch.linspace(0, 1, 20)[:, None].requires_grad_()
    with record(model) as recording:
        u = model(x)
        (du,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        (ddu,) = torch.autograd.grad(du.sum(), x, create_graph=True)  # <- reported
        loss = u[0].square().sum() + (ddu + torch.sin(x)).square().mean()
        loss.backward()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
    x = torch.linspace(0, 1, 20)[:, None].requires_grad_()
    with record(model) as recording:
        u = model(x)
        (du,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        (ddu,) = torch.autograd.grad(du.sum(), x, create_graph=True)
        loss = u[0].square().sum() + (ddu + torch.sin(x)).square().mean()
        loss.backward()
    ```

    ## When it is intended

    A gradient penalty uses only the first derivative. Its gradient reaches the parameters, so
    it is not reported.

    ## Not detected

    Second derivatives that `torch.func` computes without nodes in the graph are not detected.

    ## See also

    - [torch.autograd.grad](https://docs.pytorch.org/docs/stable/generated/torch.autograd.grad.html)
    """
    nodes = reading.graph.nodes
    if any(node.leaf and node.order is not None for node in nodes):
        return  # a backward, such as that of a gradient penalty, reached the parameters
    activations = [
        node for node in nodes if node.name.startswith(_PIECEWISE_LINEAR) and _norm(node)
    ]
    requested = [node for node in nodes if node.leaf and any(node.grad_outputs)]
    if activations and requested and not any(map(_norm, requested)):
        where = next((nodes[i].where for i, _ in reading.graph.outputs), "")
        kinds = {
            _ACTIVATIONS[kind]
            for kind in _PIECEWISE_LINEAR
            for n in activations
            if n.name.startswith(kind)
        }
        yield finding(
            "warning",
            f"The second derivative{at(where)} is zero everywhere: {listing(sorted(kinds))} is "
            "piecewise linear. A term of the loss that uses it trains nothing.",
            cause="a piecewise linear activation",
            advice="Use a smooth activation: tanh, SiLU, softplus, GELU or sin.",
            where=where,
            nodes=tuple(node.id for node in activations),
        )


def _norm(node: Node) -> float:
    """Return the largest norm of the gradients at a node; 0 if none was recorded."""
    return max((stats.norm for stats in node.grad_outputs if stats is not None), default=0.0)
