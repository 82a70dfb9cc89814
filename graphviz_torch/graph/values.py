"""Records beside nodes and edges, and findings, as plain values.

The values hold no tensor, module or grad_fn: they can be compared, hashed, pickled, saved and drawn
on a machine without torch. `None`, `""` and `()` mean "not recorded".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from .ids import NodeId
from .tensors import Extent, GradientStats, TensorMeta
from .text import printable, short_repr

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
    tensor: TensorMeta  # as copied: a cast may come before or after
    phase: Phase
    node: NodeId | None = None  # id of the node that caused the copy
    where: str = ""  # the user's line: "train.py:41"
    module: str = ""
    # "to", "item", "copy_"; "Module.to" for the tensors of a module; "pack" for a pack hook of
    # `torch.autograd.graph.saved_tensors_hooks`; "replicate" for the replicas of `nn.DataParallel`.
    operation: str = ""
    label: str = ""  # the caller's name for the tensor
    pinned: bool | None = None  # host memory is page-locked
    non_blocking: bool | None = None
    seconds: float | None = None  # on the device's clock; None if it was not measured
    used: bool | None = None  # False: the copy was freed before any operation read it
    data: int | None = None  # copies of the same data, and copies of those, share this number
    in_forward: bool | None = (
        None  # a module's forward was running; `module` is "" in the root module
    )
    moment: int | None = None  # increases with every module call and every backward
    library: str = ""  # library that makes the copy: "lightning", "torch.optim.adam"

    __repr__ = short_repr

    @property
    def nbytes(self) -> int | None:
        """The number of bytes that were copied."""
        return self.tensor.nbytes


@dataclass(frozen=True, slots=True)
class Untracked:
    """Data, or a call that made no autograd node, upstream of the nodes of a graph.

    A module call stands for all that ran inside.

    >>> import torch
    >>> from graphviz_torch import record
    >>> backbone, head = torch.nn.Linear(3, 4).requires_grad_(False), torch.nn.Linear(4, 1)
    >>> model = torch.nn.Sequential(backbone, head)
    >>> with record(model) as recording:
    ...     model(torch.ones(2, 3)).sum().backward()
    >>> [(each.kind, each.label, each.reason) for each in recording.graph.untracked]
    [('data', 'input', ''), ('module', '0', 'frozen')]
    """

    kind: Literal["data", "module", "function"]
    label: str  # name: "input_ids", "bert.embeddings", "normalize"
    tensors: tuple[TensorMeta, ...] = ()  # the data, or the results of the call
    reason: str = ""  # "frozen", "no_grad at train.py:13"
    module: str = ""  # path of the called module, or of the module around the function
    module_class: str = ""  # as `Node.module_class`
    where: str = ""  # the user's line
    inputs: tuple[int, ...] = ()  # positions in `Graph.untracked` of its operands
    sources: tuple[NodeId, ...] = ()  # nodes that it was computed from, at a cut
    targets: tuple[NodeId, ...] = ()  # nodes that used its results
    values: tuple[Any, ...] | None = None  # elements, if at most `MOST_ELEMENTS`

    __repr__ = short_repr

    @property
    def title(self) -> str:
        """The label in a drawing: "embeddings · BertEmbeddings"."""
        kind = self.module_class.rpartition("/")[2]
        return " · ".join(
            filter(None, (self.label or self.kind, kind if kind != self.label else ""))
        )


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of the recorded model, whether or not it is in the graph.

    None means "not recorded". `got_gradient` is about the block, `has_grad` about its end: a
    parameter can have a `.grad` from earlier, and one that got a gradient can have none after
    `zero_grad()`. `got_gradient` is False only where `record` watches all gradients, as by default;
    with `gradients="finite"` it is True or None.

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
    node: NodeId | None = None  # id of its AccumulateGrad; None if not in the graph
    module_called: bool | None = None  # its module's forward was called in the block
    has_grad: bool | None = None  # its `.grad` is set after the block
    stepped: bool | None = None  # an optimizer that has it stepped; None if none stepped
    got_gradient: bool | None = None  # a backward of the block gave it a gradient
    in_optimizer: bool | None = None  # an optimizer has it, stepped or not
    norm: float | None = None  # Euclidean norm of its values when backward began
    extent: Extent = ""  # part that the norm describes: "local part"
    placement: str = ""  # DTensor placement: "Shard(0) on dp, local [32, 16]"
    # Statistics of this rank's part of `.grad` after the block, for a sharded parameter.
    grad: GradientStats | None = None
    shard: int | None = (
        None  # index of this rank's shard of value and gradient; None if not evenly sharded
    )
    shard_count: int = 1  # number of shards
    # An optimizer that did not step in the block has it; None if not checked.
    in_other_optimizer: bool | None = None

    __repr__ = short_repr


@dataclass(frozen=True, slots=True)
class Cut:
    """A detachment: the result requires no gradient though an operand did.

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
    before: NodeId | None = None  # id of the node that computed the operand
    after: tuple[NodeId, ...] = ()  # ids of the nodes that used the result
    where: str = ""
    module: str = ""
    label: str = ""
    in_forward: bool | None = None  # a module's forward was running

    __repr__ = short_repr


@dataclass(frozen=True, slots=True)
class Replica:
    """A parameter or buffer that should be equal on several ranks.

    Equal bits have equal checksums. Different bits mostly have different checksums: a checksum has
    32 bits, and does not see swapped words of 8 bytes.
    """

    name: str
    kind: Literal["parameter", "buffer"]
    ranks: tuple[int, ...]  # ranks that hold the same data
    wrapper: str = ""  # wrapper that keeps it equal: "DistributedDataParallel", "DTensor"
    # One for each of `Step.checksum_steps`; None if it did not exist yet, or could not be read.
    checksums: tuple[int | None, ...] = ()

    __repr__ = short_repr


@dataclass(frozen=True, slots=True)
class RetainedGraphs:
    """Graphs of earlier steps, from the same line, that were still alive at this backward.

    Steps are separated by optimizer steps.
    """

    steps: int  # number of steps whose graph is alive
    label: str = ""  # the caller's variable that keeps the graphs of several steps
    where: str = ""  # line that computed the kept tensor
    node: NodeId | None = None  # id of the node that connects them to this graph
    added_where: str = ""  # line that added the tensor to the variable

    __repr__ = short_repr


@dataclass(frozen=True, slots=True)
class Step:
    """Records of a training step as a whole."""

    loss_scale: float | None = None  # factor of the gradients (AMP); None: not scaled
    retained: RetainedGraphs | None = None  # graphs of earlier steps that are still alive
    # Line of an optimizer step that reused the gradients of an earlier step: zero_grad was not
    # called in between.
    stale_gradients: str = ""
    # Position of the first graph of the recording in which a parameter's gradient was NaN or Inf,
    # if it is an earlier graph.
    nonfinite_since: int | None = None
    # On several ranks, in the last graph of a step: tensors that should be equal, and the step
    # numbers at whose ends their checksums were taken (the first: before that step).
    replicas: tuple[Replica, ...] = ()
    checksum_steps: tuple[int, ...] = ()
    # A later graph uses the result of this autograd.grad, as in the inner steps of MAML.
    is_inner_step: bool = False
    # The graph uses results from before the previous backward of its line; None if unknown.
    continues_previous: bool | None = None

    __repr__ = short_repr


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor that took part in an operation that failed."""

    label: str
    tensor: TensorMeta
    where: str = ""  # line that created the tensor
    node: NodeId | None = None

    __repr__ = short_repr


@dataclass(frozen=True, slots=True)
class Cause:
    """The earlier action that made a backward fail: an in-place change, or another backward."""

    operation: str  # "add_", "step", "backward", "grad"
    where: str = ""
    # Ids of the nodes that the change created; or of the last node that the other backward ran and
    # of the first later node computed from it.
    nodes: tuple[NodeId, ...] = ()
    text: str = ""  # source text of the line that made the change
    of_view: bool = False  # the change was made to a view of another tensor
    label: str = ""  # the caller's name for the operand of the later node
    in_loop: bool = False  # the same line with the same callers: a loop
    stepped: bool = False  # an optimizer stepped between the two backwards

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
    raised_where: str = ""  # user's line in a custom Function or hook that backward called
    node: NodeId | None = None  # id of the node that backward could not run
    modified: Operand | None = None  # the tensor it saved that was changed in place
    causes: tuple[Cause, ...] = ()

    __repr__ = short_repr


# PyTorch's error for an optimizer without parameters (2.13).
NO_PARAMETERS = "optimizer got an empty parameter list"

# Rules about exceptions that ended a recording.
FAILURE_RULES = (
    "exception",
    "mixed-devices",
    "changed-in-place",
    "backward-twice",
    "non-leaf-in-optimizer",
)


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem, or a note, that a rule reports about a graph.

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
    # Positions in `Recording.graphs` or `Training.steps` to which the finding applies; () for all.
    steps: tuple[int, ...] = ()

    __repr__ = short_repr

    def is_at_least(self, severity: Severity) -> bool:
        """Return True if the finding is of this severity or worse."""
        return SEVERITIES.index(self.severity) <= SEVERITIES.index(severity)


@dataclass(frozen=True, slots=True, repr=False)
class Experiment:
    """The result of one experiment: what was changed, and what followed.

    >>> from graphviz_torch.experiments import Experiment
    >>> print(Experiment("seed", "another seed, in eval mode", True, "no result differs"))
    seed: holds
            another seed, in eval mode: no result differs
    """

    name: str  # "sample"
    changed: str  # "sample 0 of x became another (8 samples)"; "": nothing could be changed
    # True if the forbidden dependence did not occur; None if undecided.
    holds: bool | None
    message: str
    operation: str = ""  # first operator whose result changed: "_softmax"
    where: str = ""  # line of the operator: "model.py:31"
    module: str = ""
    node: NodeId | None = None  # in the recording's graph
    change: float | None = None  # change there, relative to the largest value
    finding: Finding | None = None  # the problem, if the dependence is one

    __repr__ = short_repr

    def __str__(self) -> str:
        sign = {True: "holds", False: "does not hold", None: "not known"}[self.holds]
        if self.holds is None and self.finding is not None:
            sign = "note"
        where = f"  {self.where}" if self.where else ""
        changed = f"{self.changed}: " if self.changed else ""
        lines = f"{self.name}: {sign}{where}", f"        {changed}{self.message}"
        return "\n".join(map(printable, lines))
