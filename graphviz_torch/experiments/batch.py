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
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..graph import Experiment, Finding, Graph
from ..graph.text import users_line
from ..internals.hooks.modes import unseen_calls
from ..internals.replay.forward import run_forward
from ..internals.tensors.pytree import flatten
from ..recording.modules.first_call import Loss
from .loss_terms import Term, has_one_term_per_sample, is_forward_output, sums_over, terms
from .memory_order import without_dropout
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
