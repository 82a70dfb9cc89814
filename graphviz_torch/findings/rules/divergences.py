"""Rules about divergences that the program computes by a formula, such as the KL term of a VAE."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ...graph import Finding, Node
from ...graph.events import OptimizerStep
from ...graph.immutable import NamedTuple
from ...graph.nodes import SUMS
from ..axes import attribute
from ..directions import (
    NUMBER,
    Result,
    constant,
    direction,
    is_linear_in_loss,
    linear_terms,
    number_by,
)
from ..graph_reading import Reading
from ..rule import finding, rule
from ..words import at

# Loss of a reconstruction -> number by which a squared error counts more than in a log-density.
_RECONSTRUCTIONS = {
    "mse_loss": 2.0,
    "binary_cross_entropy": 1.0,
    "binary_cross_entropy_with_logits": 1.0,
}
_MEAN_REDUCTION = "1"  # value of a loss node's attribute `reduction`
_MAX_SUMS = 16  # maximum number of nested sums in which a variance is a term
_LARGE_RATIO = 50  # a divergence that counts this many times as much as in the ELBO is reported


class _Divergence(NamedTuple):
    """A sum with a variance and its logarithm, as in the divergence of a normal distribution."""

    top: Node  # the sum
    variance: Node
    factor: float  # of the variance, in the sum
    log: Result  # the log-scale, or the scale itself
    power: float  # the variance is exp(power * log), or the scale to this power
    log_factor: float  # of the log-scale in the sum, divided by `factor`
    terms: dict[Result, float]  # the other terms of the sum, and their factors divided by `factor`
    exponential: bool  # True if the variance is computed from a log-scale


class _Sample(NamedTuple):
    """A sample of a normal distribution: mean + scale * noise."""

    node: Node  # the product of scale and noise
    mean: Result
    power: float  # the scale is exp(power * log), or the scale itself to this power
    exponential: bool  # True if the scale is computed from a log-scale


@rule("warning", of=("exp", "log"))
def gaussian_divergence(reading: Reading) -> Iterator[Finding]:
    """The KL divergence of a normal distribution, as in a VAE, has a wrong sign, scale or term.

    ## Why it matters

    The divergence from the standard normal distribution is smallest for a mean of 0 and a variance
    of 1. With another formula, the latent codes move to other values, or the loss has no lower
    bound. If the standard deviation is exp(logvar) in the sample and exp(0.5 * logvar) in the
    divergence, the two belong to different distributions.

    If the divergence is a sum and the loss of the reconstruction is a mean, the divergence
    dominates: the encoder learns to return a mean of 0 and a variance of 1 for every input, which
    is called posterior collapse.

    ## Example

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record

    encoder, decoder = nn.Linear(8, 4), nn.Linear(2, 8)
    model = nn.ModuleList([encoder, decoder])
    x = torch.rand(16, 8)
    with record(model) as recording:
        mu, logvar = encoder(x).chunk(2, dim=1)
        z = mu + torch.exp(logvar) * torch.randn(16, 2)  # <- reported
        divergence = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
        loss = F.mse_loss(decoder(z), x, reduction="sum") + divergence
        loss.backward()
    ```

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record

    encoder, decoder = nn.Linear(8, 4), nn.Linear(2, 8)
    model = nn.ModuleList([encoder, decoder])
    optimizer = torch.optim.Adam(model.parameters())
    x = torch.rand(16, 8)
    with record(model) as recording:
        mu, logvar = encoder(x).chunk(2, dim=1)
        z = mu + torch.exp(0.5 * logvar) * torch.randn(16, 2)
        divergence = 0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())  # <- reported
        loss = F.mse_loss(decoder(z), x, reduction="sum") + divergence
        loss.backward()
        optimizer.step()
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn
    from torch.nn import functional as F
    from graphviz_torch import record

    encoder, decoder = nn.Linear(8, 4), nn.Linear(2, 8)
    model = nn.ModuleList([encoder, decoder])
    optimizer = torch.optim.Adam(model.parameters())
    x = torch.rand(16, 8)
    with record(model) as recording:
        mu, logvar = encoder(x).chunk(2, dim=1)
        z = mu + torch.exp(0.5 * logvar) * torch.randn(16, 2)
        divergence = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
        loss = F.mse_loss(decoder(z), x, reduction="sum") + divergence
        loss.backward()
        optimizer.step()
    ```

    ## When it is intended

    A weight of the divergence above 1, as in a beta-VAE, favors codes with independent elements. A
    weight is reported from 50 on, as a note.

    A prior with another variance than 1 is not reported, and neither is a divergence that is
    maximized up to a bound, as that of generated samples in an IntroVAE.

    ## Not detected

    A divergence that `torch.distributions` computes is checked only for its sign. A divergence
    between two learned distributions is not checked if the program computes it itself.

    ## See also

    - [Auto-encoding variational Bayes](https://arxiv.org/abs/1312.6114)
    - [torch.distributions.kl_divergence](https://docs.pytorch.org/docs/stable/distributions.html#torch.distributions.kl.kl_divergence)
    """
    told = set[str]()
    for found in _divergences(reading):
        if found.top.where in told:
            continue
        problem = _problem(reading, found)
        if problem is not None:
            told.add(found.top.where)
            yield problem


def _problem(reading: Reading, found: _Divergence) -> Finding | None:
    """Return the finding about a divergence; None if it is right."""
    top = found.top
    name = _name(reading, found.log)
    sample = next(_samples(reading, found.log), None)
    if sample is not None and sample.mean in found.terms:
        return finding(
            "warning",
            f"The divergence{at(top.where)} contains {_name(reading, sample.mean)}, the mean, "
            "where its square belongs.",
            cause="a mean that is not squared",
            advice=f"Square the mean in the divergence{at(top.where)}.",
            where=top.where,
            nodes=(top.id, sample.mean[0]),
        )
    squares = {i: f for i, f in found.terms.items() if _root(reading, i) is not None}
    means = [i for i in squares if sample is None or _root(reading, i) == sample.mean]
    if not (means or found.terms == {NUMBER: -1.0}):
        return None
    if found.log_factor == found.power and squares:
        return _formula(found, f"adds {name}, the logarithm, where it is subtracted", "sign")
    if found.log_factor != -found.power:
        # The divergence from a prior with another variance has another constant than -1.
        if not squares or found.log_factor > 0 or found.terms.get(NUMBER) != -1:
            return None
        log = name if found.exponential else f"log({name})"
        factor = f"{-found.log_factor:g}"
        right = f"a factor of {found.power:g}, as it adds {_variance(found, name)}"
        return _formula(found, f"subtracts {log} with a factor of {factor} instead of {right}")
    if any(squares[i] == -1 for i in means):
        return _formula(found, "subtracts the square of the mean, where it is added", "sign")
    scales = found.exponential and sample is not None and 2 * sample.power != found.power
    if sample is not None and (scales or (sample.exponential and not found.exponential)):
        return finding(
            "warning",
            f"The sample{at(sample.node.where)} has the standard deviation "
            f"{_power(sample.power, name)}, but the divergence{at(top.where)} has the variance "
            f"{_variance(found, name)}, which is not its square.",
            cause="two scales of one distribution",
            advice=f"Use {_power(found.power / 2, name)} as the standard deviation"
            f"{at(sample.node.where)}."
            if found.exponential
            else f"Use {_power(2 * sample.power, name)} as the variance{at(top.where)}.",
            where=sample.node.where,
            nodes=(sample.node.id, top.id),
        )
    if any(event.maximizes for event in reading.events(OptimizerStep)):
        return None
    if direction(reading, top.id) * found.factor < 0:
        if not is_linear_in_loss(reading, top.id):
            return None  # maximized up to a bound
        return finding(
            "warning",
            f"Each step makes the divergence{at(top.where)} larger, which has no upper bound: it "
            "has the wrong sign in the loss.",
            cause="a divergence that is maximized",
            advice=f"Change the sign of the divergence{at(top.where)}.",
            where=top.where,
            nodes=(top.id, found.variance.id),
        )
    return _weight(reading, found) if means else None


def _formula(found: _Divergence, text: str, what: str = "factor") -> Finding:
    return finding(
        "warning",
        f"The divergence{at(found.top.where)} {text}.",
        cause=f"a wrong {what} in a divergence",
        advice="The divergence from a standard normal distribution is "
        "0.5 * (variance + mean ** 2 - 1 - log(variance)).",
        where=found.top.where,
        nodes=(found.top.id, found.variance.id),
    )


def _variance(found: _Divergence, name: str) -> str:
    return _power(found.power, name) if found.exponential else f"{name} ** 2"


def _power(power: float, name: str) -> str:
    """Return the text of a scale: "exp(0.5 * logvar)"."""
    return f"exp({'' if power == 1 else f'{power:g} * '}{name})"


def _weight(reading: Reading, found: _Divergence) -> Finding | None:
    """Return the finding about a divergence that dominates an averaged reconstruction."""
    stats, meta = reading.stats(found.top.id), reading.meta(found.top.id)
    if stats is None or meta is None or not meta.shape:
        return None
    own = 2 * abs(stats.mean * found.factor)
    if own * meta.shape[0] < 0.9:
        return None  # a mean over the latent dimensions, too, or a term with a small weight
    for node in reading.of_operations(_RECONSTRUCTIONS):
        gradient, given = reading.stats(node.id), reading.inputs[node.id]
        shape = reading.meta(given[0].source) if given else None
        if gradient is None or shape is None or attribute(node, "reduction") != _MEAN_REDUCTION:
            continue
        count = math.prod(shape.shape)
        other = _RECONSTRUCTIONS[node.operation] * abs(gradient.mean) / count
        times = own / other if other else 0
        if times >= _LARGE_RATIO:
            return finding(
                "info",
                f"The divergence{at(found.top.where)} counts {times:.0f} times as much as the "
                f"reconstruction: {node.title}{at(node.where)} is a mean over {count} values, "
                "while the divergence is a sum over the latent dimensions.",
                cause="a sum beside a mean",
                advice=f"Sum {node.title}{at(node.where)} over the values of each sample, or "
                "multiply the divergence by a small weight.",
                where=node.where,
                nodes=(node.id, found.top.id),
            )
    return None


def _divergences(reading: Reading) -> Iterator[_Divergence]:
    """Yield each sum that contains a variance and its logarithm."""
    nodes = reading.graph.nodes
    for node in reading.of_operations(("exp", "pow", "mul")):
        variance = (node.id, 0)
        root = _root(reading, variance)
        scale = variance if root is None else root
        log_scale = _logarithm(reading, scale)
        if log_scale is not None:
            power, log = log_scale[0] * (1 if root is None else 2), log_scale[1]
        elif root is not None:
            power, log = 2.0, root
        else:
            continue
        for top in _sums_above(reading, node.id):
            terms: dict[Result, float] = {}
            for factor, term in linear_terms(reading, (top, 0), reduces=False):
                terms[term] = terms.get(term, 0.0) + factor
            factor = terms.pop(variance, 0.0)
            if log_scale is not None:
                log_factor = terms.pop(log, 0.0)
            else:
                log_factor = _pop_logarithm(reading, terms, scale)
            if factor and log_factor:
                scaled = {term: value / factor for term, value in terms.items()}
                exp, log_factor = log_scale is not None, log_factor / factor
                yield _Divergence(nodes[top], node, factor, log, power, log_factor, scaled, exp)


def _logarithm(reading: Reading, result: Result) -> tuple[float, Result] | None:
    """Return (p, x) for the result exp(p * x); None for any other result."""
    node = reading.graph.nodes[result[0]]
    if node.operation != "exp":
        return None
    edge = reading.inputs[node.id][0]
    terms = linear_terms(reading, (edge.source, edge.output_nr), reduces=False)
    return terms[0] if len(terms) == 1 else None


def _pop_logarithm(reading: Reading, terms: dict[Result, float], scale: Result) -> float:
    """Remove the term with the logarithm of a scale or its square; return the log-scale's factor.

    The result is 0 if there is no such term.

    Args:
        reading: the graph.
        terms: factors by term.
        scale: the scale.
    """
    for term, factor in terms.items():
        node = reading.graph.nodes[term[0]]
        if term != NUMBER and node.operation == "log":
            edge = reading.inputs[node.id][0]
            added = linear_terms(reading, (edge.source, edge.output_nr), reduces=False)
            of = [each for _, each in added if each != NUMBER]
            if of == [scale] or (len(of) == 1 and _root(reading, of[0]) == scale):
                del terms[term]
                return factor * (1 if of == [scale] else 2)
    return 0.0


def _root(reading: Reading, result: Result) -> Result | None:
    """Return the result whose square a result is; None if it is not a square."""
    if result == NUMBER:
        return None
    node, edges = reading.graph.nodes[result[0]], reading.inputs[result[0]]
    given = {(edge.source, edge.output_nr) for edge in edges}
    square = node.operation == "pow" and constant(node, "exponent") == 2
    square |= node.operation == "mul" and len(edges) == 2
    return given.pop() if square and len(given) == 1 else None


def _sums_above(reading: Reading, node: int) -> list[int]:
    """Return the innermost sums and differences that a node is a term of, innermost first."""
    found, waiting = list[int](), [node]
    for number in waiting:
        if len(found) >= _MAX_SUMS:
            break
        for edge in reading.users[number]:
            user = reading.graph.nodes[edge.target]
            if user.operation in SUMS and user.id not in found:
                found.append(user.id)
                waiting.append(user.id)
            elif user.operation == "neg" or number_by(user) is not None:
                waiting.append(user.id)
    return found


def _samples(reading: Reading, log: Result) -> Iterator[_Sample]:
    """Yield each sample whose scale is computed from a log-scale, or is this scale itself."""
    for node in reading.of_operations(("mul",)):
        edges = reading.inputs[node.id]
        if len(edges) != 1 or constant(node) is not None:
            continue  # no product with data
        scale = edges[0].source, edges[0].output_nr
        log_scale = (1.0, scale) if scale == log else _logarithm(reading, scale)
        if log_scale is None or log_scale[1] != log:
            continue
        for edge in reading.users[node.id]:
            into = reading.inputs[edge.target]
            means = [(e.source, e.output_nr) for e in into if e.source != node.id]
            if reading.graph.nodes[edge.target].operation == "add" and len(means) == 1:
                yield _Sample(node, means[0], log_scale[0], scale != log)


def _name(reading: Reading, result: Result) -> str:
    """Return the program's name of a result; for a result without a name, its operation."""
    node, number = result
    names = reading.graph.nodes[node].label.split(", ")
    return names[number] if number < len(names) > 1 else reading.call(node)
