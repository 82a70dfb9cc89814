"""Find out whether samples or positions influence each other's results: change some of them.

Operations that combine samples on purpose are not reported: batch statistics, similarities of all
pairs, routing by integers, graph neural networks. In these runs, batch norm uses its running
statistics. The code calls one sample or one position a lane.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.utils.rnn import PackedSequence

from ..graph import Experiment, Finding
from ..graph.text import listing
from .subject import Input, Subject, other_values
from .two_runs import Comparison, OperatorComparison

# Operators whose integer operands define which samples or positions are combined.
_INDEXED = (
    *("index", "gather", "scatter", "embedding", "sparse", "segment", "spmm", "take", "sort"),
    *("unique", "nonzero", "masked_select", "topk", "cumsum", "multinomial"),
)
_ADVICE = (
    "This operation works along the dimension of the samples: check its dim=, batch_first=, or the "
    "view before it."
)
_LATER = "Check the mask, and the dimension along which this operation works."


def sample(subject: Subject) -> Iterator[Experiment]:
    """Change the values of one sample. The results of all other samples have to stay the same."""
    inputs = subject.inputs()
    if any(
        isinstance(a, PackedSequence) for a in (*subject.call.args, *subject.call.kwargs.values())
    ):
        message = "a packed sequence has the time steps of all samples in one dimension"
        yield Experiment("sample", "", None, message)
        return
    found = _change_sample(subject, inputs, 0)
    if found.holds is False and _may_be_batch(subject, inputs):
        second = _change_sample(subject, inputs, 1)
        found = second if second.holds else found
    yield found


def _change_sample(subject: Subject, inputs: list[Input], dim: int) -> Experiment:
    """Change sample 0 of the inputs, and compare the results. Samples are along dimension `dim`."""
    sizes = [(t.shape[dim], t.is_floating_point()) for _, t in inputs if t.dim() > dim]
    sizes.sort(key=lambda each: not each[1])
    count = next((size for size, _ in sizes if size > 1), 0)  # an RNN's state may have size 1
    if not count:
        return Experiment("sample", "", None, "no input has two samples")
    return _judge_samples(subject, inputs, dim, count)


def _may_be_batch(subject: Subject, inputs: list[Input]) -> bool:
    """Return whether samples may be along the second dimension, as in a shape (time, batch)."""
    sizes = [t.shape for _, t in inputs if t.dim()]
    if any(t.dim() >= 4 or (t.dim() == 2 and t.is_floating_point()) for _, t in inputs):
        return False
    for loss in subject.losses:
        given = [*loss.args, *loss.kwargs.values()]
        targets = [t for t in given if isinstance(t, Tensor)][1:2]
        for target in targets:
            if target.dim() and any(len(s) > 1 and s[0] == target.shape[0] != s[1] for s in sizes):
                return False
    return True


def _judge_samples(subject: Subject, inputs: list[Input], dim: int, count: int) -> Experiment:
    names = [n for n, t in inputs if t.dim() > dim and t.shape[dim] == count]
    which = "sample 0" if not dim else "sample 0, along dimension 1,"
    changed = f"{which} of {listing(names)} got other values ({count} samples)"
    square = [t.dim() >= 2 and t.shape[0] == t.shape[1] == count for _, t in inputs]
    # An input of shape (samples, samples) may be, for example, the adjacency matrix of a graph.
    if any(square) and len(inputs) > 1:
        message = "an input has a number for each pair of samples, so samples may affect each other"
        return Experiment("sample", changed, None, message)
    comparison = Comparison(count, [0])
    done: list[str] = []

    def change(given: list[Input]) -> dict[int, Tensor]:
        found: dict[int, Tensor] = {}
        for name, tensor in given:
            if tensor.dim() > dim and tensor.shape[dim] == count:
                other = other_values(tensor, dim, range(1))
                if other is not None:
                    found[id(tensor)] = other
                    done.append(name)
        return found

    training = _WithoutBatchStatistics()
    run = subject.run(comparison, change, training=training)
    if not done:
        return Experiment("sample", changed, None, "all samples are equal")
    if (unknown := subject.inconclusive("sample", changed, run)) is not None:
        return unknown
    leak = subject.leaks(run, comparison)
    if leak is None:
        message = f"no other sample's output differs, in {len(comparison.rows)} operations"
        return Experiment("sample", changed, True, message + training.note)
    row, path = leak
    if (why := _intended_reason(row, path)) != "":
        message = f"samples are combined on purpose at {{operation}}: {why}"
        return subject.answer("sample", changed, message, row, run, holds=None)
    message = "the outputs of other samples differ, too, first at {operation}"
    return subject.answer("sample", changed, message, row, run, rule="sample-leak", advice=_ADVICE)


class _WithoutBatchStatistics:
    """The training mode of each module of a run, in which batch norm uses its running statistics.

    Attributes:
        note: the end of a message about the run; "" if no batch norm is in training mode.
    """

    def __init__(self) -> None:
        self.note = ""

    def __call__(self, module: Module) -> bool:
        is_norm = "batchnorm" in type(module).__name__.lower()
        if is_norm and module.training:
            self.note = "; batch norm used its running statistics"
        return module.training and not is_norm


def _intended_reason(row: OperatorComparison, path: list[OperatorComparison]) -> str:
    """Return why an operator combines samples on purpose; "" if no such reason is known."""
    if "batch" in row.classes.rpartition("/")[2].lower() or "batch_norm" in row.name:
        return "it computes statistics of the batch"
    if any(each.crosses for each in path[:4]):
        return "it compares all pairs of samples"
    if row.is_integer or any(each in row.name for each in _INDEXED):
        return "integers define which samples are combined, as in routing and graphs"
    if row.square:
        return "a matrix defines which samples are combined, as in graphs"
    return ""


def positions(subject: Subject) -> Iterator[Experiment]:
    """Change later positions of a sequence. Outputs at earlier positions have to stay the same.

    The experiment applies if the targets are the inputs, shifted by some positions. If the model
    predicts the next position, the shift is one. Shifts by zero or two are reported as
    `target-shift`.
    """
    found = [_shift(subject, each) for each in subject.inputs()]
    shifts = [(i, s) for i, s in zip(subject.inputs(), found, strict=True) if s is not None]
    if not shifts:
        message = "no target is a shifted copy of an integer input of shape (batch, positions)"
        yield Experiment("positions", "", None, message)
        return
    answers = [(_judge_positions(subject, i, *found), i, *found) for i, found in shifts[:3]]
    # If the experiment holds for one of the inputs, report this input. In an encoder-decoder model,
    # it does not hold for the encoder's input, because an encoder may read all positions.
    answers.sort(key=lambda each: (each[0].holds is not True, each[0].holds is None))
    answer, given, shift, output = answers[0]
    yield answer
    if shift == 1 or answer.holds is not True:
        return
    # A model that gets labels may shift them itself. In this case, no output depends on the label
    # at its own position.
    if shift == 0 and _judge_positions(subject, given, shift, output, own=False).holds is True:
        return
    name = given.name
    where = subject.line(subject.losses[-1].place, subject.losses[-1].place)
    many = "the inputs themselves" if not shift else f"the inputs shifted by {shift}"
    message = f"the targets are {many}, and no output depends on a later position"
    advice = (
        "The model can copy its input: shift the targets by one, once."
        if not shift
        else "Were they shifted in the data and again in the model? Shift them once."
    )
    finding = Finding("target-shift", "warning", f"{name}: {message}.", advice, where=where)
    yield Experiment(
        "positions", f"targets of {name}", False, message, where=where, finding=finding
    )


def _shift(subject: Subject, given: Input) -> tuple[int, int] | None:
    """Return (number of positions by which the target is shifted against an input, output index).

    The loss uses the output with this index in `RecordedCall.outputs`. Return None if no target is
    a shifted copy of this input.
    """
    tokens = given.tensor
    if tokens.dim() != 2 or tokens.is_floating_point() or tokens.dtype is torch.bool:
        return None
    for loss in subject.losses:
        operands = [t for t in (*loss.args, *loss.kwargs.values()) if isinstance(t, Tensor)]
        if len(operands) < 2 or operands[1].is_floating_point():
            continue
        target = operands[1]
        if target.numel() % tokens.shape[0] or not target.numel():
            continue
        target = target.reshape(tokens.shape[0], -1)
        length = target.shape[1]
        if not 1 < length <= tokens.shape[1]:
            continue
        found = _offset(subject, loss, tokens.shape[0], length)
        if found is None:
            continue
        output, offset = found
        for lag in (1, 0, 2, 3):
            both = min(length, tokens.shape[1] - lag)
            if both < 2:
                continue
            a, b = target[:, :both], tokens[:, lag : lag + both]
            counted = a >= 0
            if int(counted.sum()) < 4 or len(torch.unique(a[counted])) < 2:
                continue
            if bool((a == b)[counted].all()):
                return (lag - offset, output) if lag >= offset else None
    return None


def _offset(subject: Subject, loss: object, batch: int, length: int) -> tuple[int, int] | None:
    """Return (index of the output that the loss uses, first position of it that the loss uses).

    Returns None if no output of the module has the values that were passed to the loss function.

    Args:
        subject: the recorded call.
        loss: the recorded call of a loss function.
        batch: number of samples.
        length: number of positions in the target.
    """
    rows = getattr(loss, "rows", None)
    if rows is None or rows.numel() != batch * length:
        return None
    rows = rows.reshape(batch, length)
    for i, output in enumerate(subject.recorded.outputs):
        if output.dim() == 2 and output.shape[0] == batch and output.shape[1] >= length:
            for offset in range(min(3, output.shape[1] - length + 1)):
                if torch.allclose(output[:, offset : offset + length], rows, equal_nan=True):
                    return i, offset
        elif output.numel() == rows.numel() and torch.allclose(
            output.reshape_as(rows), rows, equal_nan=True
        ):
            return i, 0
    return None


def _judge_positions(
    subject: Subject, given: Input, shift: int, output: int, *, own: bool = True
) -> Experiment:
    """Change the second half of the positions of an input, and compare an output.

    Args:
        subject: the recorded call.
        given: the input to change.
        shift: number of positions by which the targets are shifted against this input.
        output: index of the output to compare.
        own: True if an output may depend on the input at its own position.
    """
    count = given.tensor.shape[1]
    first = max(count // 2, 1)
    changed = f"positions {first} to {count - 1} of {given.name} were changed"
    comparison = Comparison(count, range(first + (not own), count), in_pairs=True)
    training = _WithoutBatchStatistics()
    change = partial(_change_later_positions, name=given.name, first=first)
    run = subject.run(comparison, change, training=training)
    if (unknown := subject.inconclusive("positions", changed, run)) is not None:
        return unknown
    if not comparison.rows:
        return Experiment("positions", changed, None, "all positions are equal")
    leak = subject.leaks(run, comparison, output)
    if leak is None:
        message = f"no earlier output differs, in {len(comparison.rows)} operations"
        return Experiment("positions", changed, True, message + training.note)
    row, _ = leak
    if shift != 1:
        message = "earlier outputs differ, which is right if no later position is predicted"
        return subject.answer("positions", changed, message, row, run, holds=None)
    causal = [
        each
        for each in comparison.rows.values()
        if each.keeps and ("softmax" in each.name or "attention" in each.name)
    ]
    if any(each.number > row.number for each in causal):
        message = "{operation} reads all positions, but a later operation only earlier positions"
        return subject.answer("positions", changed, message, row, run, holds=None)
    message = "earlier outputs differ, too, first at {operation}; their targets are later inputs"
    return subject.answer(
        "positions", changed, message, row, run, rule="future-leak", advice=_LATER
    )


def _change_later_positions(given: list[Input], name: str, first: int) -> dict[int, Tensor]:
    for each in given:
        if each.name == name:
            other = other_values(each.tensor, 1, range(first, each.tensor.shape[1]))
            return {} if other is None else {id(each.tensor): other}
    return {}
