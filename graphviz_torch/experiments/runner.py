"""Run the experiments: each runs the recorded forward again with one change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..graph import Experiment, Finding
from .batch import batch_twice
from .divergence import float64
from .independence import positions, sample
from .inputs import inputs
from .invariance import eager, memory_order, seed
from .subject import Subject, reason

Make = Callable[[Subject], Iterator[Experiment]]

# Name of an experiment -> function that runs the experiment, in the order of the report. Most of
# these functions run at most three forwards.
EXPERIMENTS: dict[str, Make] = {
    "sample": sample,
    "positions": positions,
    "seed": seed,
    "inputs": inputs,
    "batch_twice": batch_twice,
    "float64": float64,
    "memory_order": memory_order,
    "eager": eager,
}


class Experiments(list[Experiment]):
    """A list of experiments with their results; `print` shows two lines for each.

    >>> import torch
    >>> from graphviz_torch import record
    >>> from graphviz_torch.experiments import experiment
    >>> model = torch.nn.Linear(4, 2)
    >>> with record(model, experiments=True) as recording:
    ...     model(torch.randn(8, 4)).sum().backward()
    >>> print(experiment(recording, "seed"))
    seed: holds
            another seed, in training mode: no result differs
    seed: holds
            another seed, in eval mode: no result differs
    """

    @property
    def findings(self) -> list[Finding]:
        """The findings of the experiments."""
        return [each.finding for each in self if each.finding is not None]

    def __str__(self) -> str:
        return "\n".join(map(str, self)) or "no experiment was run"

    __repr__ = __str__


def experiment(recording: Any, *names: str) -> Experiments:
    """Run the recorded forward again with one change at a time, and report the differences.

    The module that was called first is run again, with its recorded arguments, buffers and random
    state, and with its current parameters. Afterwards, parameters, gradients, buffers, training
    modes, attributes and random state are restored. Output that these runs print or log is dropped.

    An experiment has no result if the forward would write a file (it is stopped before), or if a
    parameter has become NaN or Inf.

    Args:
        recording: the result of `record(experiments=True)`, after its block.
        names: the experiments to run: "sample", "positions", "seed", "inputs", "batch_twice",
            "float64", "memory_order", "eager"; by default all of them.

    Raises:
        TypeError: if `recording` is not a recording.
        ValueError: if a name is unknown, or if the recording has no call to run again.

    >>> import torch
    >>> from graphviz_torch import record
    >>> from graphviz_torch.experiments import experiment
    >>> class Net(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.fc = torch.nn.Linear(4, 3)
    ...     def forward(self, x):
    ...         return self.fc(x).softmax(0)
    >>> with record(experiments=True) as recording:
    ...     Net()(torch.randn(8, 4)).sum().backward()
    >>> [found] = experiment(recording, "sample").findings
    >>> print(found.message.partition(" at ")[0])
    Sample 0 of x got other values (8 samples): the outputs of other samples differ, too, first
    """
    unknown = [name for name in names if name not in EXPERIMENTS]
    if unknown:
        known = ", ".join(map(repr, EXPERIMENTS))
        raise ValueError(f"{unknown[0]!r} is not an experiment. Pass one of {known}.")
    subject = subject_of(recording)
    if (spoilt := subject.nonfinite_parameter()) != "":
        why = f"{spoilt} now contains NaN or Inf, so nothing can be concluded"
        return Experiments(Experiment(name, "", None, why) for name in names or EXPERIMENTS)
    found = Experiments()
    for name in names or EXPERIMENTS:
        try:
            found += EXPERIMENTS[name](subject)
        except Exception as error:  # for example, the device runs out of memory
            found.append(Experiment(name, "", None, reason(error, "again")))
    return found


def subject_of(recording: Any) -> Subject:
    """Return the first call in a recording, ready to be run again.

    Raises:
        TypeError: if `recording` is not a recording.
        ValueError: if the recording has no call to run again, or if a tensor of its module has no
            values any more.
    """
    if not hasattr(recording, "first_call"):
        kind = type(recording).__name__
        raise TypeError(f"pass the recording that record() returned; this is a {kind}.")
    if recording.first_call is None:
        raise ValueError(
            "this recording has no call to run again: pass record(experiments=True), call a module "
            "with parameters while gradients are enabled, and end the `with` block first. Calls of "
            "sharded modules (FSDP) or with tensors without values (meta, fake) are not recorded."
        )
    if (name := recording.first_call.call.unreadable()) != "":
        raise ValueError(f"{name} has no values any more: the forward cannot be run again.")
    return Subject(recording.first_call, recording.graphs)
