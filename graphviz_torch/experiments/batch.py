"""Find out whether the loss is a mean or a sum over the samples: duplicate the batch.

There are three cases:

- The module returns its loss: the module is run again with a batch that contains each sample twice.
- A loss function of `torch.nn.functional` computes the loss: this function is run again.
- The script computes the loss from other operations: the graph is searched for a sum over the
  samples. If the sum is divided by a number that may be the number of samples or tokens, there is
  no result.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator
from math import prod
from typing import Any

import torch
from torch import Tensor

from ..graph import Experiment, Finding, Graph
from ..graph.immutable import NamedTuple
from ..graph.text import users_line
from ..internals.hooks.modes import unseen_calls
from ..internals.replay.forward import run_forward
from ..internals.tensors.pytree import flatten
from ..recording.modules.first_call import Loss
from .invariance import without_dropout
from .subject import Subject

_CHANGED = "the samples of the loss were duplicated"
_ADVICE = "With a mean, one learning rate fits more batch sizes."
_SIZE = "gradients, and the effect of a learning rate, grow with the batch."


def batch_twice(subject: Subject) -> Iterator[Experiment]:
    """Duplicate the batch: a loss that is a mean stays the same, a loss that is a sum doubles."""
    if not _trains(subject.graph):
        message = "the recorded backward gave no parameter a gradient"
        yield Experiment("batch_twice", "", None, message)
        return
    found = (
        _judge_forward(subject)
        or _judge_loop(subject)
        or _judge_function(subject)
        or _judge_graph(subject)
    )
    if found is None:
        message = "no loss was found that surely is a sum or a mean over the samples"
        found = Experiment("batch_twice", "", None, message)
    yield found


def _trains(graph: Graph) -> bool:
    """Return True if a parameter got a gradient in backward, or if no backward was recorded.

    The result is False for a backward that computes only gradients of inputs.
    """
    ran = [node for node in graph.nodes if node.order is not None]
    return not ran or any(node.leaf == "parameter" for node in ran)


def _samples(subject: Subject) -> int:
    """Return the number of samples in the batch."""
    inputs = sorted(subject.inputs(), key=lambda each: not each.tensor.is_floating_point())
    return next((t.shape[0] for _, t in inputs if t.dim()), 0)


def _judge_forward(subject: Subject) -> Experiment | None:
    """Run the module with a duplicated batch; None if it does not return its loss."""
    count = _samples(subject)
    if not is_forward_output(subject.graph, set(subject.recorded.nodes.values())):
        return None
    once = _output(subject, count, 1)
    if once is None:
        return None
    twice = _output(subject, count, 2)
    row = next((t for t in terms(subject.graph) if t.operation in ("sum", *_LOSSES)), None)
    name = row.operation if row is not None else ""
    where = row.where if row is not None else subject.recorded.where
    node = None if row is None else row.node
    if twice is None or not once:
        message = "its forward returns no single loss for this batch"
        return Experiment("batch_twice", _CHANGED, None, message, name, where, node=node)
    ratio = twice / once
    if abs(ratio - 1) < 1e-3:
        message = "the module's loss is the same"
        return Experiment("batch_twice", _CHANGED, True, message, name, where, node=node)
    # A sum over the samples also triples for three copies of the batch. A loss that contains the
    # logarithm of the batch size may double for two copies, but does not triple for three.
    if abs(ratio - 2) < 1e-3 and abs((_output(subject, count, 3) or 0.0) / once - 3) < 2e-3:
        message = "the module's loss doubles: it is a sum"
        finding_text = f"The loss that the module returns sums over the samples: {_SIZE}"
        return _sum(message, finding_text, name, where, node)
    message = f"the module's loss is {ratio:.3g} times as much"
    return Experiment("batch_twice", _CHANGED, None, message, name, where, node=node)


_LOSSES = ("mse_loss", "nll_loss", "nll_loss_nd", "binary_cross_entropy", "l1_loss", "kl_div")


def _output(subject: Subject, count: int, times: int) -> float | None:
    """Return the module's loss for a batch with copies of each sample.

    Returns None if the module does not return exactly one number.

    Args:
        subject: the recorded call.
        count: number of samples.
        times: number of copies of each sample.
    """

    def repeat(args: Any, kwargs: Any) -> dict[int, Tensor]:
        return {
            id(t): torch.cat([t] * times)
            for _, t in subject.inputs(args, kwargs)
            if t.dim() and t.shape[0] == count
        }

    result = run_forward(subject.call, repeat, training=without_dropout, budget=0)
    if result.error is not None:
        return None
    outputs = [t for _, t in flatten(result.output, ask=False)]
    numbers = [float(t) for t in outputs if not t.dim() and t.is_floating_point()]
    # If the module returns several numbers, it is unknown which of them is the loss.
    return numbers[0] if len(numbers) == 1 else None


def _judge_function(subject: Subject) -> Experiment | None:
    """Run the last called loss function of `torch.nn.functional` with duplicated samples."""
    known = terms(subject.graph)
    for loss in reversed(subject.losses):
        where = subject.line(loss.place, loss.place)
        term = next((t for t in known if users_line(t.where) == where), None)
        if known and term is None:
            continue
        name = loss.function.__name__
        once, twice = _value(loss, 1), _value(loss, 2)
        if once is None or twice is None or not once:
            message = f"{name} returns no single number for these samples"
            return Experiment("batch_twice", _CHANGED, None, message, name, where)
        node = None if term is None else term.node
        if abs(twice / once - 2) > 1e-3:
            message = f"{name} returns the same loss"
            return Experiment("batch_twice", _CHANGED, True, message, name, where, node=node)
        operand = next(t for t in (*loss.args, *loss.kwargs.values()) if isinstance(t, Tensor))
        return _judge_sum(term, name, where, "returns twice the loss", operand.numel())
    return None


def _judge_graph(subject: Subject) -> Experiment | None:
    """Search the graph of a loss that no loss function computes for a sum over the samples."""
    graph, count = subject.graph, _samples(subject)
    forward = set(subject.recorded.nodes.values())
    for term in terms(graph):
        numbers = sums_over(graph, term, forward, count)
        if numbers:
            action = f"adds {numbers:,} numbers"
            return _judge_sum(term, term.operation, term.where, action, numbers)
    return None


def _judge_loop(subject: Subject) -> Experiment | None:
    """Detect a Python loop that adds one term per sample to the loss."""
    count, known = _samples(subject), terms(subject.graph)
    if not has_one_term_per_sample(subject.graph, known, count):
        return None
    term = known[0]
    where, name, node = term.where, term.operation, term.node
    if any(term.divisor != 1 for term in known):
        message = "one term for each sample is added; the divisor may be the number of samples"
        return Experiment("batch_twice", _CHANGED, None, message, name, where, node=node)
    message = "one term for each sample is added: it is a sum"
    finding_text = f"The loss adds one term for each of the {count} samples: {_SIZE}"
    return _sum(message, finding_text, name, where, node)


def _judge_sum(term: Term | None, name: str, where: str, action: str, numbers: int) -> Experiment:
    """Return the experiment's result for a sum over the samples.

    Args:
        term: the term of the loss, with its divisor; None if unknown.
        name: name of the operation.
        where: line of the operation.
        action: text that follows the name, such as "adds up 8 numbers".
        numbers: number of values that the operation adds.
    """
    node = None if term is None else term.node
    divisor = 1.0 if term is None else term.divisor
    if divisor == 1:
        message = f"{name} {action}: it is a sum"
        return _sum(message, f"{name} sums over the samples: {_SIZE}", name, where, node)
    if divisor is not None and divisor > numbers:  # the divisor cannot be the number of samples
        message = f"{name} {action}, and is divided by {divisor:g}: it is a sum"
        finding_text = f"{name} sums over the samples, and {divisor:g} is not their number: {_SIZE}"
        return _sum(message, finding_text, name, where, node)
    message = f"{name} sums over the samples; its divisor or weight may be their number"
    return Experiment("batch_twice", _CHANGED, None, message, name, where, node=node)


def _sum(message: str, finding_text: str, name: str, where: str, node: int | None) -> Experiment:
    nodes = () if node is None else (node,)
    found = Finding("sum-loss", "info", finding_text, _ADVICE, where=users_line(where), nodes=nodes)
    return Experiment("batch_twice", _CHANGED, None, message, name, where, node=node, finding=found)


def _value(loss: Loss, times: int) -> float | None:
    first = next((t for t in (*loss.args, *loss.kwargs.values()) if isinstance(t, Tensor)), None)
    if first is None or not first.dim():
        return None
    count = first.shape[0]

    def repeat(value: Any) -> Any:
        if isinstance(value, Tensor) and value.dim() and value.shape[0] == count:
            return torch.cat([value] * times)
        return value

    kwargs = dict(loss.kwargs)
    weight = kwargs.pop("weight", None)
    args = [repeat(a) for a in loss.args]
    kwargs = {name: repeat(value) for name, value in kwargs.items()}
    if weight is not None:  # `weight` has one number for each class
        kwargs["weight"] = weight
    try:
        with torch.no_grad(), unseen_calls(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the first run has shown the warning already
            result = loss.function(*args, **kwargs)
            return float(result) if result.dim() == 0 else None
    except Exception:
        return None


_AS_IT_IS = {
    "add",
    "sub",
    "neg",
    "clone",
    "view",
    "reshape",
    "squeeze",
    "to",
    "to_copy",
    "_to_copy",
}
_MAX_NODES = 4096  # largest number of nodes that a search visits


class Term(NamedTuple):
    """A scalar that is added to the loss."""

    node: int
    operation: str
    where: str
    divisor: float | None  # None if another operation weights the term


def terms(graph: Graph) -> list[Term]:
    """Return the terms of the graph's first output; [] if the output is not a scalar."""
    found: list[Term] = []
    stack: list[tuple[int, float | None]] = [(node, 1.0) for node, _ in graph.outputs[:1]]
    sources = _sources(graph)
    met: set[int] = set()
    while stack and len(met) < _MAX_NODES:
        number, divisor = stack.pop()
        node = graph.nodes[number]
        if number in met or _shape(graph, number) != ():
            continue
        met.add(number)
        kind, other = node.title, _number(node.attributes)
        below = [s for s in sources.get(number, ()) if _shape(graph, s) == ()]
        if kind == "mul":
            divisor = divisor if other is not None and abs(other) == 1 else None
        elif kind == "div":
            divisor = None if other is None or divisor is None else divisor * other
        elif kind not in _AS_IT_IS or not below:
            found.append(Term(number, kind, node.where, divisor))
            continue
        stack.extend((s, divisor) for s in below)
    return sorted(found, key=lambda term: term.node)


def sums_over(graph: Graph, term: Term, forward: Collection[int], count: int) -> int:
    """Return the number of elements that a term sums; 0 if it does not sum over samples.

    Args:
        graph: the graph of the loss.
        term: a term of the loss.
        forward: the nodes that the module's forward created.
        count: number of samples.
    """
    sources = _sources(graph)
    if term.operation != "sum" or count < 2:
        return 0
    for source in sources.get(term.node, ()):
        shape = _shape(graph, source)
        if not shape or shape[0] % count or graph.nodes[source].title == "stack":
            continue
        if any(node in forward for node in _ancestors(sources, source)):
            return 0 if _is_weighed(graph, sources, source, forward) else prod(shape)
    return 0


def is_forward_output(graph: Graph, forward: Collection[int]) -> bool:
    """Return whether only operations on scalars are between the module's forward and the loss."""
    sources = _sources(graph)
    stack, met = [node for node, _ in graph.outputs[:1]], set[int]()
    while stack and len(met) < _MAX_NODES:
        number = stack.pop()
        if number in met or _shape(graph, number) != ():
            continue
        if number in forward:
            return True
        met.add(number)
        stack.extend(sources.get(number, ()))
    return False


def _is_weighed(
    graph: Graph, sources: dict[int, list[int]], last: int, forward: Collection[int]
) -> bool:
    """Return whether an operation between the forward and the sum may divide by the batch size.

    Args:
        graph: the graph of the loss.
        sources: node -> nodes of its inputs.
        last: the node where the search starts.
        forward: the nodes of the forward, where the search ends.
    """
    stack, met = [last], set[int]()
    while stack and len(met) < _MAX_NODES:
        number = stack.pop()
        if number in met or number in forward:
            continue
        met.add(number)
        title = graph.nodes[number].title
        if title in ("div", "softmax", "_softmax", "logsumexp", "mean"):
            return True
        # A factor without a node in the graph is a number, or a tensor that needs no gradient.
        if title == "mul" and len(sources.get(number, ())) < 2:
            return True
        stack.extend(sources.get(number, ()))
    return False


def has_one_term_per_sample(graph: Graph, known: list[Term], count: int) -> bool:
    """Return whether the loss has `count` terms, each of which is computed from another sample.

    Args:
        graph: the graph of the loss.
        known: the terms of the loss.
        count: number of samples.
    """
    if count < 2 or len(known) != count:
        return False
    sources, rows = _sources(graph), set[str]()
    for term in known:
        own = {
            attribute
            for node in _ancestors(sources, term.node)
            if graph.nodes[node].title == "select" and "dim=0" in graph.nodes[node].attributes
            for attribute in graph.nodes[node].attributes
            if attribute.startswith("index=")
        }
        if len(own) != 1:
            return False
        rows |= own
    return len(rows) == count


def _ancestors(sources: dict[int, list[int]], number: int) -> set[int]:
    found: set[int] = set()
    stack = [number]
    while stack and len(found) < _MAX_NODES:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack.extend(sources.get(node, ()))
    return found


def _sources(graph: Graph) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for edge in graph.edges:
        found.setdefault(edge.target, []).append(edge.source)
    return found


def _shape(graph: Graph, number: int) -> tuple[int, ...] | None:
    outputs = graph.nodes[number].outputs
    meta = outputs[0] if outputs else None
    return None if meta is None else tuple(meta.shape)


def _number(attributes: tuple[str, ...]) -> float | None:
    for attribute in attributes:
        name, _, value = attribute.partition("=")
        if name == "other":
            try:
                return float(value)
            except ValueError:
                return None
    return None
