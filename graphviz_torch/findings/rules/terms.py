"""Rules about terms of the loss that train nothing."""

from __future__ import annotations

from collections.abc import Iterator

from ...graph import Cut, Finding, Operand, Parameter, TensorMeta
from ...graph.events import Event
from ...graph.immutable import immutable
from ...graph.nodes import SAME_VALUES, SUMS
from ..graph_reading import Reading
from ..rule import finding, rule
from ..words import at, group_by_key, names_of
from .cuts import PLAIN, advice_on, cause_text, is_from_fixed, match_cuts, upstream

# Operations that may be between a loss and its terms.
_READS = ("item", "float", "tolist")  # calls that return Python numbers
_LINEAR = SUMS | SAME_VALUES | {"neg", "mul", "div"}


@immutable
class ConstantTerm(Event):
    """An addition of a constant to a scalar with a grad_fn.

    No recorded operation computed the constant.
    """

    constant: Operand | None = None


@immutable
class NumberTerm(Event):
    """An addition of a Python number to a loss; the number differs between steps."""

    value: float = 0.0  # the number in the last step
    before: float = 0.0  # the number in an earlier step


@rule("warning", of=(ConstantTerm, NumberTerm, Cut))
def constant_term(reading: Reading) -> Iterator[Finding]:
    """A term of the loss has no gradient because it was computed from detached values, so it trains
    nothing.

    ## Why it matters

    A regularizer or an auxiliary loss without a gradient changes only the logged value of the loss,
    not the training.

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

    A constant may be added so that logged losses are comparable. A number that is the same in each
    step is not reported. The finding has severity info if
    the loss also uses the value without the cut, or if the value was computed from untrained
    parameters only.

    ## Not detected

    A term that is multiplied by 0 is not detected.

    ## See also

    - [Autograd mechanics](https://docs.pytorch.org/docs/stable/notes/autograd.html)
    """
    explained_cuts = {id(cut) for cut, p in match_cuts(reading) if p.stepped is not False}
    lines = {cut.where for cut in reading.graph.cuts if id(cut) in explained_cuts}
    sums = _sums(reading)
    for (how, where), found in group_by_key(
        ((cut.how, cut.where), cut)
        for cut in reading.graph.cuts
        if not sums.isdisjoint(cut.after) and not (cut.where and cut.where in lines)
    ):
        cut = found[0]
        after = next(i for i in cut.after if i in sums)
        if how in PLAIN and any(e.source == cut.before for e in reading.inputs[after]):
            continue  # x - x.detach() is written on purpose: its value is 0, and it has a gradient
        what = cut.label or (f"a result in {cut.module}" if cut.module else "a result")
        # A value that other operations also use, such as the max in a logsumexp, is constant on
        # purpose.
        meant = (
            _learns_uncut(reading, cut)
            or not sums.issuperset(cut.after)
            or all(is_from_fixed(reading, each) for each in found)
        )
        advice = advice_on(how).partition(". ")[0].removesuffix(".") + "."
        yield finding(
            "info" if meant else "warning",
            f"A term of the loss{at(reading.graph.nodes[after].where)} has no gradient and trains "
            f"nothing: {what} was cut by {cause_text(cut)}{at(where)}.",
            cause=f"cut by {cause_text(cut)}",
            advice="" if meant else advice.format(at=at(where), how=cause_text(cut)),
            where=where,
            nodes=(after, *(() if cut.before is None else (cut.before,))),
        )
    reads = [cut for cut in reading.graph.cuts if cut.how in _READS]
    for number in reading.events(NumberTerm):
        if not sums.isdisjoint(number.nodes):
            read = f" Numbers are read from tensors{at(reads[0].where)}." if reads else ""
            yield finding(
                "warning",
                f"A term of the loss{at(number.where)} is a Python number ({number.before:.4g}, "
                f"then {number.value:.4g}), which has no gradient: it trains nothing.{read}",
                cause="a number",
                advice="Add the tensors themselves, without item() or float().",
                where=number.where,
                nodes=number.nodes,
            )
    known = {node for cut in reading.graph.cuts for node in cut.after}
    for event in reading.events(ConstantTerm):
        if sums.isdisjoint(event.nodes) or not known.isdisjoint(event.nodes):
            continue
        name = (event.constant and event.constant.label) or "one of the numbers"
        yield finding(
            "info",
            f"A term of the loss{at(event.where)} trains nothing: neither {name} nor any of its "
            "inputs has a gradient.",
            cause="a constant",
            advice=f"Compute {name} from the model's output if it should be learned.",
            where=event.where,
            nodes=event.nodes,
        )


@rule("info", of=("add",))
def term_added_twice(reading: Reading) -> Iterator[Finding]:
    """A term of the loss is added to a sum that already contains it.

    ## Why it matters

    The term has twice the weight that the program gives it. Often a function adds it in place,
    `loss += term`, and its caller adds it again.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 4)
    with record(model) as recording:
        x = torch.randn(8, 4)
        y = model(x)
        loss, penalty = (y - x).square().mean(), y.abs().mean()
        loss += penalty
        total = loss + penalty  # <- reported
        total.backward()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 4)
    with record(model) as recording:
        x = torch.randn(8, 4)
        y = model(x)
        loss, penalty = (y - x).square().mean(), y.abs().mean()
        total = loss + penalty
        total.backward()
    ```

    ## When it is intended

    If a weight of 2 is meant, write `loss + 2 * term`, which is not reported.

    ## Not detected

    Terms with more than one number for each sample, and terms that are scaled in between, are not
    reported.

    ## See also

    - [torch.add](https://docs.pytorch.org/docs/stable/generated/torch.add.html)
    """
    nodes = reading.graph.nodes
    for node in reading.of_operations(("add",)):
        meta, given = reading.meta(node.id), reading.inputs[node.id]
        if meta is None or len(meta.shape) > 1 or len(given) != 2:
            continue
        for before, term in (given, given[::-1]):
            earlier = nodes[before.source]
            made = {(edge.source, edge.output_nr) for edge in reading.inputs[earlier.id]}
            reduced = any(len(m.shape) > 1 for m in _given(reading, term.source))
            if earlier.operation == "add" and (term.source, term.output_nr) in made and reduced:
                name = reading.call(term.source)
                yield finding(
                    "info",
                    f"add{at(node.where)} adds {name} to a sum that already contains it, from "
                    f"add{at(earlier.where)}: it counts twice in the loss.",
                    cause="a term that is added twice",
                    advice=f"Add {name} in one of the two places.",
                    where=node.where,
                    nodes=(earlier.id, node.id, term.source),
                )


def _given(reading: Reading, node: int) -> list[TensorMeta]:
    """Return shape, dtype and device of each input of a node; unknown inputs are left out."""
    metas = (reading.meta(edge.source, edge.output_nr) for edge in reading.inputs[node])
    return [meta for meta in metas if meta is not None]


@rule("info", reads="end")
@immutable
class UnusedSum(Event):
    """Two losses are added, and backward runs through one of them instead of through their sum.

    ## Why it matters

    One of the two losses trains nothing, although the logged sum contains it. Often a function
    computes the sum, but returns only one of the losses.

    ## Example

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        for _ in range(3):
            x = torch.randn(8, 4)
            y = model(x)
            reconstruction, sparsity = (y - x).square().mean(), y.abs().mean()
            loss = reconstruction + 0.1 * sparsity  # <- reported
            optimizer.zero_grad()
            reconstruction.backward()
            optimizer.step()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from graphviz_torch import record

    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model) as recording:
        for _ in range(3):
            x = torch.randn(8, 4)
            y = model(x)
            reconstruction, sparsity = (y - x).square().mean(), y.abs().mean()
            loss = reconstruction + 0.1 * sparsity
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    ```

    ## When it is intended

    A program may need the sum only for a log. Compute it under `torch.no_grad()`, or from the
    results of `item()`.

    ## Not detected

    Losses with more than one element are not reported, and neither are sums that backward uses in
    some steps.

    ## See also

    - [torch.Tensor.backward](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.backward.html)
    """

    used: Operand | None = None
    unused: Operand | None = None

    def report(self) -> Finding:
        used = (self.used and self.used.label) or "one of the losses"
        unused = (self.unused and self.unused.label) or "the other loss"
        return finding(
            "info",
            f"No backward runs through the sum of two losses{at(self.where)}: backward runs "
            f"through {used}, and {unused} trains nothing.",
            cause="a sum that no backward uses",
            advice="Call backward() on the sum if both losses should train. Otherwise compute "
            "the sum under torch.no_grad().",
            where=self.where,
        )


def _learns_uncut(reading: Reading, cut: Cut) -> bool:
    """Return True if the loss also uses the tensor that a cut detached, without the cut.

    The two losses of a codebook are an example: each of them detaches a different side.
    """
    single = cut.tensor is None or all(size == 1 for size in cut.tensor.shape)
    if cut.how not in PLAIN or cut.before is None or single:
        return False
    users = {edge.target for edge in reading.users[cut.before]} - {*cut.after}
    return any(reading.graph.nodes[user].order is not None for user in users)


@rule("warning", of=(Parameter,))
def unstepped_term(reading: Reading) -> Iterator[Finding]:
    """A term of the loss depends only on parameters that the optimizer of this step does not hold.

    ## Why it matters

    The term costs time in backward, but does not change the parameters that the step updates. A
    generator whose adversarial term is detached, for example, never learns to deceive the
    discriminator.

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

    If a term is only logged, compute it under `torch.no_grad()`.

    ## Not detected

    A loss that is not a sum has no terms, and is not checked. A sum that is multiplied or divided
    by a number is checked.

    ## See also

    - [Autograd mechanics](https://docs.pytorch.org/docs/stable/notes/autograd.html)
    """
    nodes, parameters = reading.graph.nodes, reading.graph.parameters
    untrained = {p.node: p for p in parameters if p.requires_grad and p.stepped is False}
    if not untrained:
        return
    loss: set[int] = set()
    for output, _ in reading.graph.outputs:
        upstream(reading, output, loss)
    if not any(p.stepped and p.node in loss for p in parameters):
        return  # the loss does not depend on any parameter of this step's optimizer
    sums = _sums(reading)
    for node in sorted(sums):
        for edge in reading.inputs[node]:
            term = upstream(reading, edge.source, set())
            leaves = [i for i in term if nodes[i].leaf]
            if edge.source in sums or not leaves or not untrained.keys() >= set(leaves):
                continue
            names = names_of(untrained[i] for i in sorted(leaves))
            cut = next((c for c in reading.graph.cuts if not term.isdisjoint(c.after)), None)
            by = "" if cut is None else f": {cut.label or 'a result'} was cut by {cause_text(cut)}"
            line = "" if cut is None else at(cut.where)
            advice = f"Do nothing if another step trains {names}; otherwise remove the term."
            if cut is not None:
                advice = advice_on(cut.how).format(at=line, names=names, how=cause_text(cut))
            yield finding(
                "info" if cut is None else "warning",
                f"A term of the loss{at(nodes[node].where)} depends only on {names}, which the "
                f"optimizer of this step does not hold{by}{line}.",
                cause="a term that trains nothing here",
                advice=advice,
                where=nodes[node].where if cut is None else cut.where,
                nodes=(node, *sorted(leaves)),
            )


def _sums(reading: Reading) -> set[int]:
    """Return the nodes between the loss and its terms that add or subtract one-element tensors."""
    if not reading.ran:
        return set()
    nodes = reading.graph.nodes
    linear = _linear(reading, [node for node, _ in reading.graph.outputs])
    return {i for i in linear if nodes[i].operation in SUMS}


def terms_of(reading: Reading, root: int) -> list[int]:
    """Return the nodes of a loss's terms, in the order of the forward; [] for a single term."""
    linear = _linear(reading, [root])
    terms = {edge.source for node in linear for edge in reading.inputs[node]} - linear
    return sorted(terms)


def _linear(reading: Reading, roots: list[int]) -> set[int]:
    """Return the linear operations on one-element tensors between a loss and its terms.

    Args:
        reading: the graph.
        roots: nodes of the loss, from which the search starts.
    """
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
