"""What was recorded beside nodes and edges, and what is found in a graph, as plain values.

As all that a graph is made of they hold no tensor, no module, no grad_fn: they can be compared,
hashed, pickled, saved and drawn on a machine without torch. `None`, `""` and `()` mean "not
recorded".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from .ids import NodeId
from .tensors import Extent, GradientStats, TensorMeta
from .text import short_repr

TransferKind = Literal["HtoD", "DtoH", "DtoD"]
Phase = Literal["forward", "backward"]
Severity = Literal["error", "warning", "info"]
SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "info")  # the worst first


@dataclass(frozen=True, slots=True)
class Transfer:
    """A copy of a tensor between two devices.

    >>> import torch
    >>> from graphviz_torch import record, simulate_accelerator
    >>> with simulate_accelerator() as [device], record() as recording:
    ...     x = torch.ones(3, requires_grad=True)
    ...     (x.to(device) * 2).sum().backward()
    >>> [(copy.kind, copy.phase, copy.nbytes) for copy in recording.graph.transfers]
    [('HtoD', 'forward', 12), ('DtoH', 'backward', 12)]
    """

    kind: TransferKind
    source: str  # device
    target: str  # device
    tensor: TensorMeta  # as it goes over: a cast may come before or after
    phase: Phase
    node: NodeId | None = None  # id of the node it belongs to
    where: str = ""  # the user's line: "train.py:41"
    module: str = ""
    # "to", "item", "copy_"; "Module.to": of all of a module's tensors; "pack": by a hook that keeps
    # for backward what is saved (`torch.autograd.graph.saved_tensors_hooks`); "replicate": of a
    # module's tensors, by `nn.DataParallel`
    operation: str = ""
    label: str = ""  # the caller's name for the tensor
    pinned: bool | None = None  # was the host side page-locked
    non_blocking: bool | None = None
    seconds: float | None = None  # on the device's clock; None where it was not measured
    used: bool | None = None  # False: the copy was freed before any operation read it
    data: int | None = None  # copies of the same data, and copies of those, share this number
    in_forward: bool | None = None  # was a module's forward running; `module` is "" in the root's
    moment: int | None = None  # grows with every call of a module and every backward
    library: str = ""  # whose code makes it, called at that line: "lightning", "torch.optim.adam"

    __repr__ = short_repr

    @property
    def nbytes(self) -> int | None:
        """Bytes moved."""
        return self.tensor.nbytes


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of the recorded model, whether or not it is in the graph.

    Of an answer that was not recorded, None stands. `got_gradient` is about the block, `has_grad`
    about its end: a parameter may have a `.grad` from before, and one that got a gradient may have
    none, as after `zero_grad()`. `got_gradient` is known where `record` looks at all
    gradients, as by default; of `gradients="finite"` only that a parameter got one.

    >>> import torch
    >>> from graphviz_torch import record
    >>> model = torch.nn.Linear(2, 1)
    >>> with record(model) as recording:
    ...     model(torch.ones(4, 2)).sum().backward()
    >>> [(each.name, each.got_gradient) for each in recording.graph.parameters]
    [('weight', True), ('bias', True)]
    """

    name: str
    tensor: TensorMeta
    requires_grad: bool
    node: NodeId | None = None  # id of its AccumulateGrad; None where it is not in the graph
    module_called: bool | None = None  # was its module's forward called in the block
    has_grad: bool | None = None  # is its `.grad` set after the block
    stepped: bool | None = None  # did an optimizer that has it step; None where none stepped
    got_gradient: bool | None = None  # did a backward of the block give it a gradient
    in_optimizer: bool | None = None  # does an optimizer have it, be it one that did not step
    norm: float | None = None  # Euclidean, of its values when backward began
    extent: Extent = ""  # what of it the norm is of: "local part"
    placement: str = ""  # what of it this rank has: "Shard(0) on dp, local [32, 16]"
    # Of one that ranks divide: its `.grad` after the block, as far as this rank has it.
    grad: GradientStats | None = None
    shard: int | None = None  # which part of both this rank has, from 0; None: another way
    shard_count: int = 1  # that there are
    # Does an optimizer have it that did not step in the block; None where that was not asked.
    in_other_optimizer: bool | None = None

    __repr__ = short_repr


@dataclass(frozen=True, slots=True)
class Cut:
    """A place where the way of a gradient was cut: the result needs no gradient, an operand did.

    >>> import torch
    >>> from graphviz_torch import record
    >>> with record() as recording:
    ...     x = torch.ones(3, requires_grad=True)
    ...     (x.detach() * x).sum().backward()
    >>> [cut] = recording.graph.cuts
    >>> cut.how, cut.label
    ('detach', 'x')
    """

    how: str  # "detach", "no_grad", "item", "argmax"
    tensor: TensorMeta | None
    before: NodeId | None = None  # id of the node that made the operand
    after: tuple[NodeId, ...] = ()  # ids of the nodes that used the result
    where: str = ""
    module: str = ""
    label: str = ""
    in_forward: bool | None = None  # was a module's forward running

    __repr__ = short_repr


@dataclass(frozen=True, slots=True)
class Replica:
    """A parameter or a buffer that should be the same on several ranks.

    Equal bits have equal checksums. Tensors with equal checksums are likely equal: a checksum has
    32 bits, and does not see that whole words of 8 bytes have changed places.
    """

    name: str
    kind: Literal["parameter", "buffer"]
    ranks: tuple[int, ...]  # that have it all, or the same part of it
    wrapper: str = ""  # what promises that it is equal there: "DistributedDataParallel", "DTensor"
    # At each of `Step.summed`; None where it was not there yet, or could not be read.
    checksums: tuple[int | None, ...] = ()

    __repr__ = short_repr


@dataclass(frozen=True, slots=True)
class RetainedGraphs:
    """Graphs of steps before, run by the same line, that were still alive at this backward.

    Steps are told apart by the optimizers that stepped in between.
    """

    steps: int  # so many steps have a graph that is alive
    label: str = ""  # the caller's variable that holds them, if one holds those of several steps
    where: str = ""  # the line that made what is held
    node: NodeId | None = None  # id of the node that makes them part of this graph
    added_where: str = ""  # the line that added it to that variable

    __repr__ = short_repr


@dataclass(frozen=True, slots=True)
class Step:
    """What belongs to a training step as a whole, not to one node of its graph."""

    loss_scale: float | None = None  # gradients are multiplied by it (AMP); None: they are not
    retained: RetainedGraphs | None = None  # graphs of steps before that are still alive
    # The line of an optimizer's step that used gradients which a step before had used: nobody
    # called zero_grad in between.
    stale_gradients: str = ""
    # Position of the recording's first graph with a parameter's gradient that was NaN or Inf, if
    # that is a graph before this one.
    nonfinite_since: int | None = None
    # Of several ranks, in the last graph of a step: what they should have alike, and the numbers of
    # the steps at whose end its checksums were taken. The first ones were taken before that step.
    replicas: tuple[Replica, ...] = ()
    checksum_steps: tuple[int, ...] = ()
    # Does a later graph go on with what autograd.grad gave here, as with the inner steps of MAML?
    is_inner_step: bool = False
    # Is it computed from what was made before the last backward of its line; None: not known.
    continues_previous: bool | None = None

    __repr__ = short_repr


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor that took part in an operation that failed."""

    label: str
    tensor: TensorMeta
    where: str = ""  # the line that made it
    node: NodeId | None = None

    __repr__ = short_repr


@dataclass(frozen=True, slots=True)
class Cause:
    """What was done before a backward and made it fail: a change in place, or another backward."""

    operation: str  # "add_", "step", "backward", "grad"
    where: str = ""
    # Ids: what the change made; or the last node that the other backward ran, and the first made
    # since that is computed from it.
    nodes: tuple[NodeId, ...] = ()
    text: str = ""  # of a change: the line itself
    of_view: bool = False  # of a change: did it change a view of another tensor
    label: str = ""  # of another backward: the caller's name for what the later node takes
    in_loop: bool = False  # was it the same line, called from the same lines: a loop
    stepped: bool = False  # has an optimizer stepped between the two

    __repr__ = short_repr


@dataclass(frozen=True, slots=True)
class Failure:
    """The exception that ended a recording.

    >>> import torch
    >>> from contextlib import suppress
    >>> from graphviz_torch import record
    >>> with suppress(RuntimeError), record() as recording:
    ...     torch.ones(2, 3, requires_grad=True) @ torch.ones(2, 3)
    >>> recording.graph.failure.error
    'RuntimeError'
    """

    error: str  # "RuntimeError"
    message: str
    operation: str = ""
    where: str = ""
    operands: tuple[Operand, ...] = ()
    raised_where: str = ""  # the user's line in a custom Function or a hook that backward called
    node: NodeId | None = None  # id of the node that backward could not run
    modified: Operand | None = None  # the tensor it saved that was changed in place
    causes: tuple[Cause, ...] = ()

    __repr__ = short_repr


# What PyTorch says of an optimizer that is given nothing (2.13).
NO_PARAMETERS = "optimizer got an empty parameter list"

# The rules that tell why a recording ended.
FAILURE_RULES = (
    "exception",
    "mixed-devices",
    "changed-in-place",
    "backward-twice",
    "non-leaf-in-optimizer",
)


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong, or worth knowing, that a rule read from a graph.

    >>> import torch
    >>> from graphviz_torch import find, record
    >>> w = torch.ones(3, requires_grad=True)
    >>> with record() as recording:
    ...     (w * torch.tensor([1.0, float("inf"), 1.0])).sum().backward()
    >>> [(found.rule, found.severity) for found in find(recording)]
    [('nonfinite-value', 'error')]
    """

    rule: str  # "cut-gradient"
    severity: Severity
    message: str  # one sentence in the user's own names
    advice: str = ""  # what to try
    cause: str = ""
    where: str = ""  # the user's line
    nodes: tuple[NodeId, ...] = ()
    transfers: tuple[int, ...] = ()  # positions in Graph.transfers
    # Positions in `Recording.graphs`, or in `Training.steps`, where it holds in some of several.
    steps: tuple[int, ...] = ()

    __repr__ = short_repr

    def is_at_least(self, severity: Severity) -> bool:
        """Is it of this severity, or worse."""
        return SEVERITIES.index(self.severity) <= SEVERITIES.index(severity)


@dataclass(frozen=True, slots=True, repr=False)
class Experiment:
    """One thing changed, one forward run again, and what followed.

    >>> from graphviz_torch.experiments import Experiment
    >>> print(Experiment("seed", "another seed, in eval mode", True, "no result differs"))
    seed: holds
            another seed, in eval mode: no result differs
    """

    name: str  # "sample"
    changed: str  # "sample 0 of x became another (8 samples)"; "": nothing could be changed
    # Did what must not follow stay away; None: it cannot be said.
    holds: bool | None
    message: str
    operation: str = ""  # the first operator where it shows: "_softmax"
    where: str = ""  # its line: "model.py:31"
    module: str = ""
    node: NodeId | None = None  # in the recording's graph
    change: float | None = None  # how much differs there, relative to the largest value
    finding: Finding | None = None  # where it must not be

    __repr__ = short_repr

    def __str__(self) -> str:
        sign = {True: "holds", False: "does not hold", None: "not known"}[self.holds]
        if self.holds is None and self.finding is not None:
            sign = "note"
        where = f"  {self.where}" if self.where else ""
        changed = f"{self.changed}: " if self.changed else ""
        return f"{self.name}: {sign}{where}\n        {changed}{self.message}"
