"""experiment(): change one thing in what was recorded, run it again, say what follows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..graph import Experiment, Finding
from .batch import batch_twice
from .compiled import eager
from .digits import float64
from .inputs import inputs
from .lanes import positions, sample
from .memory_order import memory_order
from .seed import seed
from .subject import Subject, reason

Make = Callable[[Subject], Iterator[Experiment]]

# In the order in which they are made. Each costs at most three forwards.
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
    """What experiments said. It is a list; as text two lines for each.

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
        """What must not be."""
        return [each.finding for each in self if each.finding is not None]

    def __str__(self) -> str:
        return "\n".join(map(str, self)) or "no experiment was made"

    __repr__ = __str__


def experiment(recording: Any, *names: str) -> Experiments:
    """Change one thing in what was recorded, run the forward again, and say where it shows.

    The module that was called first runs again with the arguments, buffers and random state that it
    had then, and the parameters that it has now. Afterwards parameters, gradients, buffers, modes,
    attributes and random state are as before. What its forward prints or logs a second time is
    dropped. Of a forward that writes files nothing is concluded: it is stopped before it writes.
    Nothing is concluded, either, where a parameter has become NaN or Inf.

    Args:
        recording: of `record(experiments=True)`, once its block is left.
        names: which ones: "sample", "positions", "seed", "inputs", "batch_twice", "float64",
            "memory_order", "eager"; none for all of them.

    Raises:
        TypeError: for what is not a recording.
        ValueError: for a name that is not known, or a recording that kept no call.

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
    Sample 0 of x became another (8 samples): the outputs of other samples differ, too, first
    """
    unknown = [name for name in names if name not in EXPERIMENTS]
    if unknown:
        known = ", ".join(map(repr, EXPERIMENTS))
        raise ValueError(f"{unknown[0]!r} is not an experiment. There are {known}.")
    subject = subject_of(recording)
    if (spoilt := subject.spoilt()) != "":
        why = f"{spoilt} has NaN or Inf by now: what is computed from it tells nothing"
        return Experiments(Experiment(name, "", None, why) for name in names or EXPERIMENTS)
    found = Experiments()
    for name in names or EXPERIMENTS:
        try:
            found += EXPERIMENTS[name](subject)
        except Exception as error:  # as of tensors that have lost their device
            found.append(Experiment(name, "", None, reason(error, "again")))
    return found


def subject_of(recording: Any) -> Subject:
    """What was recorded, to be run again.

    Raises:
        TypeError: for what is not a recording.
        ValueError: for a recording that kept no call, or whose module has lost its values.
    """
    if not hasattr(recording, "first_call"):
        kind = type(recording).__name__
        raise TypeError(f"a recording is needed, and this is a {kind}. Pass what record() gave.")
    if recording.first_call is None:
        raise ValueError(
            "this recording kept no call: record with record(experiments=True), call a module with "
            "parameters and gradients in its block, and leave the block first. Not kept is a call "
            "of a module that ranks divide (FSDP), or of tensors without values (meta, fake)."
        )
    if (name := recording.first_call.call.unreadable()) != "":
        raise ValueError(f"{name} has no values any more, so the forward cannot be run again.")
    return Subject(recording.first_call, recording.graphs)
