"""Rows of the log: plain values that describe actions of the program, such as a backward.

The listeners of `recording/steps/` append the rows: `Steps`, `OptimizerCalls` (the row of a new
optimizer), and `GradientAccesses` (reads, clips, clears, unscaling and averages of gradients). The
queries of `recording/queries/` read them. A row that only one query reads is a class in the query's
file.

A row keeps nothing alive: a tensor is the id() that it had, or a number of `program.identities`,
and a source line is a `CodePosition`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import CodeType
from typing import Any

from ...findings.rules.meaning.calls import RetainedBy
from ...graph.immutable import NamedTuple
from ...internals.frames import CodePosition

Row = NamedTuple  # a row is any named tuple of plain values
Hashes = dict[str, int]  # path of a tensor in a batch -> hash of its values


class GraphRow(NamedTuple):
    """A graph through which a backward, or `autograd.grad`, has run."""

    place: CodePosition | None  # the line that called backward
    numbers: Sequence[int]  # sequence numbers of the nodes; -1 for leaves
    ran: Sequence[int] | None = None  # indices in `numbers` of the nodes that ran; None: all
    roots: tuple[int, ...] = ()  # sequence numbers of the roots
    retained_by: RetainedBy | None = None  # the argument that keeps the graph; None if it is freed
    steps: int = 0  # number of optimizer steps before, including updates by hand

    def numbers_ran(self) -> frozenset[int]:
        """Return the sequence numbers of the nodes that ran."""
        ran = self.numbers if self.ran is None else [self.numbers[i] for i in self.ran]
        return frozenset(ran) - {-1}


class BackwardRow(NamedTuple):
    """A backward that added to gradients, and did not raise."""

    place: CodePosition | None  # the line that called backward
    roots: tuple[int, ...] = ()  # sequence numbers of the roots
    leaves: frozenset[int] = frozenset()  # the leaves that it reached
    reached: frozenset[int] = frozenset()  # those of `leaves` that are parameters of a module
    new: frozenset[int] = frozenset()  # those of `reached` that no earlier row contains
    shards: frozenset[int] = frozenset()  # parameters with a gradient that the graph does not show
    is_scaled: bool = False  # True if a GradScaler multiplied the loss
    # Path and class of the dropout and batch norm layers, if the model is in eval mode.
    eval_layers: tuple[tuple[str, str], ...] = ()


class OptimizerRow(NamedTuple):
    """An optimizer that is about to step for the first time."""

    optimizer: int
    around: tuple[CodeType, ...] = ()  # code of the user's frames around the first step
    is_new: bool = False  # True if all steps of the optimizer were observed


class CosineRow(NamedTuple):
    """A CosineAnnealingLR that sets the learning rate now."""

    end: int  # T_max
    last: int  # `last_epoch`
    is_inner: bool = False  # True if another scheduler, such as a SequentialLR, contains it


class SchedulerRow(NamedTuple):
    """A scheduler: at the first step of its optimizer, and when a graph is built."""

    scheduler: int  # identifies the scheduler
    name: str  # the program's name for it
    optimizer: int = 0  # number of its optimizer; 0 if the optimizer does not step
    steps: int = 0  # number of steps of the scheduler since it was found
    last: int = 0  # `last_epoch`
    cosines: tuple[CosineRow, ...] = ()
    # True if the scheduler was freed, and may have stepped after the last step of its optimizer.
    is_unknown: bool = False

    @property
    def variable(self) -> str:
        """Return the last part of the name, as in "scheduler" for "trainer.scheduler"."""
        return self.name.rpartition(".")[2]


class StepRow(NamedTuple):
    """An optimizer that is about to step."""

    optimizer: int  # identifies the optimizer
    name: str  # the program's name for the optimizer
    place: CodePosition | None
    steps: int = 1  # number of steps of the optimizer, including this one
    parameters: frozenset[int] = frozenset()
    # True if the parameters are flat copies of the model's, so that any gradient may be used.
    has_copies: bool = False
    foreign: int = 0  # number of its parameters that are not in the model
    groups: tuple[GroupRow, ...] = ()
    maximizes: bool = False  # True for an optimizer with maximize=True
    reads_gradients: bool = False  # True if the program has read gradients in this training step
    has_closure: bool = False  # True if a closure computes the gradients during the step
    has_gradients: bool = True  # True if any parameter has a gradient before the step
    learning: tuple[int, ...] = ()  # parameters that require a gradient, if none has a gradient
    first: int = 0  # number of the first parameter; equal for two optimizers that share it
    has_state: bool = False  # True if the optimizer has state, such as averages, before the step
    is_scheduled: bool = False  # True if the optimizer has a scheduler
    # The values of `optimizer.lr`, which PyTorch's optimizers do not have, and of defaults["lr"].
    attribute_rate: float | None = None
    default_rate: float | None = None

    @property
    def used_parameters(self) -> frozenset[int] | None:
        """Return the parameters whose gradients the step uses; None if unknown."""
        return None if self.has_copies else self.parameters


class GroupRow(NamedTuple):
    """A parameter group of an optimizer."""

    size: int  # number of parameters
    rate: float | None  # learning rate; None if it is unknown
    has_own_options: bool = False  # True if the program gave it options that no optimizer reads


class StepEndRow(NamedTuple):
    """An optimizer that has stepped."""

    first: int = 0  # as in the `StepRow`
    has_state: bool = False  # True if the optimizer has had state after any of its steps


class ClearRow(NamedTuple):
    """Gradients that the program has set to None or zero."""

    parameters: frozenset[int]
    place: CodePosition | None
    by_optimizer: bool = False  # True if `zero_grad` of an optimizer cleared them
    steps: int = 0  # number of optimizer steps before


class GradientReadRow(NamedTuple):
    """A gradient that code other than PyTorch's read or replaced."""

    parameter: int
    # True if this counts as a use. A read by a library does not, because the library may then clear
    # the gradient in place.
    is_use: bool = True


class UnscaleRow(NamedTuple):
    """A GradScaler has divided the gradients by the loss scale."""


class ClipRow(NamedTuple):
    """A function that clips gradients has read the gradient of one parameter."""

    parameter: int
    function: str  # "clip_grad_norm_"
    place: CodePosition | None
    storage: int | None = None  # storage id of the gradient; None without a gradient
    backwards: int = 0  # number of backwards in this training step before the call


class AverageRow(NamedTuple):
    """A collective that adds or averages tensors over ranks."""

    storages: frozenset[int]  # storage ids of the tensors


class BatchRow(NamedTuple):
    """A batch that a DataLoader has returned."""

    loader: int  # identifies the loader; equal in all passes over its data
    number: int  # index of the batch in this pass over the data
    hashes: Hashes
    place: CodePosition | None = None  # the line that requested the batch
    left: int = 0  # number of batches left in this pass; 0 if unknown
    workers: int = 0  # number of worker processes
    is_stream: bool = False  # True if the data set is an IterableDataset
    shuffles: bool = False  # True if each pass over the data has another order
    settings: Mapping[str, Any] = {}  # attributes of the data set, see `BatchCame`


class ProgramEndRow(NamedTuple):
    """The program has ended without an exception."""


class ResumeRow(NamedTuple):
    """The recording continues after a pause, in which anything may have happened."""


class TrainingStepRow(NamedTuple):
    """A training step is over: its graphs were built."""


class ObservedRow(NamedTuple):
    """An event of a hook that a query names in `watches`."""

    event: Any  # without its frame
    place: CodePosition | None = None  # the user's line, from the event's frame outwards
