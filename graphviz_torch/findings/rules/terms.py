"""Terms of the loss: those that train nothing."""

from __future__ import annotations

from collections.abc import Iterator

from ...graph import Cut, Finding, GradientStats, Node, Parameter
from ...graph.events import ConstantTerm
from ...graph.text import listing
from ..graph_reading import Reading
from ..rule import finding, rule
from ..words import at, grouped, names_of
from .cuts import PLAIN, advice_on, explained, is_fixed_behind, upstream, word_of

# They hand on a sum or a mean of what they get, so that each addend is a term of the loss.
_SUMS = {"add", "sub", "rsub"}
_LINEAR = _SUMS | {"neg", "mul", "div", "view", "squeeze", "unsqueeze", "reshape_alias"}

# The nodes that the derivative of an activation has, and how the activation is called.
_ACTIVATIONS = {
    "ThresholdBackwardBackward": "ReLU",
    "LeakyReluBackwardBackward": "LeakyReLU",
    "PreluBackwardBackward": "PReLU",
    "PreluKernelBackwardBackward": "PReLU",
    "HardtanhBackwardBackward": "Hardtanh",
    "HardsigmoidBackwardBackward": "Hardsigmoid",
    "RreluWithNoiseBackwardBackward": "RReLU",
}
_STRAIGHT = tuple(_ACTIVATIONS)


@rule("warning", of=(ConstantTerm, Cut))
def constant_term(reading: Reading) -> Iterator[Finding]:
    """A term of the loss has no gradient, so it trains nothing: the gradient was cut before it.

    ## Why it matters

    A regulariser or an auxiliary loss that has no gradient changes the number that is logged and
    nothing else.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 3)
    with record(model) as recording:
        logits = model(torch.randn(8, 4))
        with torch.no_grad():
            entropy = torch.distributions.Categorical(logits=logits).entropy().mean()  # <- reported
        loss = logits.square().mean() - 0.01 * entropy
        loss.backward()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 3)
    with record(model) as recording:
        logits = model(torch.randn(8, 4))
        entropy = torch.distributions.Categorical(logits=logits).entropy().mean()
        loss = logits.square().mean() - 0.01 * entropy
        loss.backward()
    ```

    ## When it is intended

    A constant that is added so that the logged loss is comparable. Where the term was cut by
    `no_grad`, this is a note.

    ## Not detected

    A term that is multiplied by 0.

    ## See also

    - [Autograd mechanics](https://docs.pytorch.org/docs/stable/notes/autograd.html)
    """
    explained_cuts = {id(cut) for cut, p in explained(reading) if p.stepped is not False}
    lines = {cut.where for cut in reading.graph.cuts if id(cut) in explained_cuts}
    sums = _sums(reading)
    for (how, where), found in grouped(
        ((cut.how, cut.where), cut)
        for cut in reading.graph.cuts
        if not sums.isdisjoint(cut.after) and not (cut.where and cut.where in lines)
    ):
        cut = found[0]
        after = next(i for i in cut.after if i in sums)
        if how in PLAIN and any(e.source == cut.before for e in reading.inputs[after]):
            continue  # x - x.detach(), which is there to give a gradient and no value
        what = cut.label or (f"a result in {cut.module}" if cut.module else "a result")
        # A value that is used in another way too, as the maximum in a logsumexp, is held fixed.
        meant = (
            _learns_uncut(reading, cut)
            or not sums.issuperset(cut.after)
            or all(is_fixed_behind(reading, each) for each in found)
        )
        advice = advice_on(how).partition(";")[0].removesuffix(".") + "."
        yield finding(
            "info" if meant else "warning",
            f"A term of the loss{at(reading.graph.nodes[after].where)} has no gradient and trains "
            f"nothing: {what} was cut by {word_of(cut)}{at(where)}.",
            cause=f"cut by {word_of(cut)}",
            advice="" if meant else advice.format(at=at(where), how=word_of(cut)),
            where=where,
            nodes=(after, *(() if cut.before is None else (cut.before,))),
        )
    known = {node for cut in reading.graph.cuts for node in cut.after}
    for event in reading.events(ConstantTerm):
        if sums.isdisjoint(event.nodes) or not known.isdisjoint(event.nodes):
            continue
        name = (event.constant and event.constant.label) or "one of the numbers"
        yield finding(
            "info",
            f"A term of the loss{at(event.where)} trains nothing: {name} has no gradient, and was "
            "computed from nothing that has one.",
            cause="a constant",
            advice=f"Compute {name} from the model's output if it should be learned.",
            where=event.where,
            nodes=event.nodes,
        )


def _learns_uncut(reading: Reading, cut: Cut) -> bool:
    """Does a tensor go to the loss uncut, too: as a code does in the two losses of a codebook, each
    of which holds one side.
    """
    single = cut.tensor is None or all(size == 1 for size in cut.tensor.shape)
    if cut.how not in PLAIN or cut.before is None or single:
        return False
    users = {edge.target for edge in reading.users[cut.before]} - {*cut.after}
    return any(reading.graph.nodes[user].order is not None for user in users)


@rule("warning", of=(GradientStats,), advanced=True)
def zero_second_derivative(reading: Reading) -> Iterator[Finding]:
    """autograd.grad took a second derivative through activations made of straight pieces, such as
    ReLU: it is zero wherever it is defined, and what is made from it trains nothing.

    ## Why it matters

    ReLU and its kin are piecewise linear, so that their second derivative is zero. A
    physics-informed loss or a gradient penalty that is made from it has a value and trains nothing.

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

    A gradient penalty on the first derivative: its parameters do learn, and it is not reported.

    ## Not detected

    Second derivatives by `torch.func`, unless they record nodes.

    ## See also

    - [torch.autograd.grad](https://docs.pytorch.org/docs/stable/generated/torch.autograd.grad.html)
    """
    nodes = reading.graph.nodes
    if any(node.leaf and node.order is not None for node in nodes):
        return  # a backward to the parameters: of a gradient penalty, say
    bent = [node for node in nodes if node.name.startswith(_STRAIGHT) and _norm(node)]
    asked = [node for node in nodes if node.leaf and any(node.grad_outputs)]
    if bent and asked and not any(map(_norm, asked)):
        where = next((nodes[i].where for i, _ in reading.graph.outputs), "")
        kinds = {_ACTIVATIONS[kind] for kind in _STRAIGHT for n in bent if n.name.startswith(kind)}
        yield finding(
            "warning",
            f"The second derivative{at(where)} is zero everywhere: "
            f"{listing(sorted(kinds))} is made of straight pieces. A term of the loss that is made "
            "from it trains nothing.",
            cause="a second derivative of straight pieces",
            advice="Use an activation that is bent: tanh, SiLU, softplus, GELU or sin.",
            where=where,
            nodes=tuple(node.id for node in bent),
        )


def _norm(node: Node) -> float:
    """Of the gradient that it got; 0 where none is known."""
    return max((stats.norm for stats in node.grad_outputs if stats is not None), default=0.0)


@rule("warning", of=(Parameter,))
def unstepped_term(reading: Reading) -> Iterator[Finding]:
    """A term of the loss reaches only parameters that the optimizer of this step does not hold.

    ## Why it matters

    The term costs a backward and moves nothing that the step updates: a generator whose adversarial
    term is detached never learns to deceive.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    g, d = nn.Linear(2, 4), nn.Linear(4, 1)
    steps = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (g, d)]
    with record(nn.ModuleDict({"g": g, "d": d})) as recording:
        fake = g(torch.randn(8, 2))
        adversarial = -d(fake.detach()).mean()  # <- reported
        loss = fake.square().mean() + adversarial
        loss.backward()
        steps[0].step()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    g, d = nn.Linear(2, 4), nn.Linear(4, 1)
    steps = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (g, d)]
    with record(nn.ModuleDict({"g": g, "d": d})) as recording:
        fake = g(torch.randn(8, 2))
        adversarial = -d(fake).mean()
        loss = fake.square().mean() + adversarial
        loss.backward()
        steps[0].step()
    ```

    ## When it is intended

    A term that is there to be logged: compute it under `torch.no_grad()`.

    ## Not detected

    Terms of a loss that is divided or multiplied after the sum are found; a loss that is not a sum
    has no terms.

    ## See also

    - [Autograd mechanics](https://docs.pytorch.org/docs/stable/notes/autograd.html)
    """
    nodes, parameters = reading.graph.nodes, reading.graph.parameters
    idle = {p.node: p for p in parameters if p.requires_grad and p.stepped is False}
    if not idle:
        return
    loss: set[int] = set()
    for output, _ in reading.graph.outputs:
        upstream(reading, output, loss)
    if not any(p.stepped and p.node in loss for p in parameters):
        return  # another loss than that of this step
    sums = _sums(reading)
    for node in sorted(sums):
        for edge in reading.inputs[node]:
            term = upstream(reading, edge.source, set())
            leaves = [i for i in term if nodes[i].leaf]
            if edge.source in sums or not leaves or not idle.keys() >= set(leaves):
                continue
            names = names_of(idle[i] for i in sorted(leaves))
            cut = next((c for c in reading.graph.cuts if not term.isdisjoint(c.after)), None)
            by = "" if cut is None else f": {cut.label or 'a result'} was cut by {word_of(cut)}"
            line = "" if cut is None else at(cut.where)
            advice = f"Nothing, if another step trains {names}; else leave out the term."
            if cut is not None:
                advice = advice_on(cut.how).format(at=line, names=names, how=word_of(cut))
            yield finding(
                "info" if cut is None else "warning",
                f"A term of the loss{at(nodes[node].where)} reaches only {names}, which the "
                f"optimizer of this step does not hold{by}{line}.",
                cause="a term that trains nothing here",
                advice=advice,
                where=nodes[node].where if cut is None else cut.where,
                nodes=(node, *sorted(leaves)),
            )


def _sums(reading: Reading) -> set[int]:
    """The nodes that add up the terms of what backward started from, each a single number."""
    if not reading.ran:
        return set()
    nodes = reading.graph.nodes
    linear = _linear(reading, [node for node, _ in reading.graph.outputs])
    return {i for i in linear if nodes[i].operation in _SUMS}


def terms_of(reading: Reading, root: int) -> list[int]:
    """The nodes of the terms that a loss is the sum of, in the order of the forward."""
    linear = _linear(reading, [root])
    terms = {edge.source for node in linear for edge in reading.inputs[node]} - linear
    return sorted(terms)


def _linear(reading: Reading, roots: list[int]) -> set[int]:
    """The nodes between some numbers and the terms that they are sums of."""
    nodes = reading.graph.nodes
    found: set[int] = set()
    stack = list(roots)
    while stack:
        node = nodes[stack.pop()]
        meta = reading.meta(node.id)
        if node.id in found or node.operation not in _LINEAR or meta is None:
            continue
        if any(size != 1 for size in meta.shape) or (
            node.operation in ("mul", "div") and len(reading.inputs[node.id]) > 1
        ):
            continue
        found.add(node.id)
        stack += [edge.source for edge in reading.inputs[node.id]]
    return found
