"""Plain values that record transfers, parameters, cut gradients, steps, failures and findings.

The values hold no tensor, module or grad_fn: they can be compared, hashed, pickled, saved and drawn
on a machine without torch. `None`, `""` and `()` mean "not recorded".
"""

from __future__ import annotations

from typing import Any, Final, Literal

from .ids import NodeId
from .immutable import immutable
from .tensors import Extent, GradientStats, TensorMeta
from .text import printable, short_repr

TransferKind = Literal["HtoD", "DtoH", "DtoD"]
Phase = Literal["forward", "backward"]
Severity = Literal["error", "warning", "info"]
SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "info")  # worst first


@immutable
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
    source: str  # device that the copy was read from
    target: str  # device that the copy was written to
    tensor: TensorMeta  # the tensor that was copied; a cast may happen before or after the copy
    phase: Phase
    node: NodeId | None = None  # id of the node that caused the copy
    where: str = ""  # the user's line: "train.py:41"
    module: str = ""
    # "to", "item", "copy_"; "Module.to" for the tensors of a module; "pack" for a pack hook of
    # `torch.autograd.graph.saved_tensors_hooks`; "replicate" for the replicas of `nn.DataParallel`.
    operation: str = ""
    label: str = ""  # the caller's name for the tensor
    pinned: bool | None = None  # True if the host memory is page-locked
    non_blocking: bool | None = None
    seconds: float | None = None  # on the device's clock; None if it was not measured
    used: bool | None = None  # False: the copy was freed before any operation read it
    # Number of the copied data. A copy of a copy has the number of the original data.
    data: int | None = None
    # True if the forward of a module was running (of the root, if `module` is "").
    in_forward: bool | None = None
    moment: int | None = None  # counter that grows with every module call and backward
    library: str = ""  # library that makes the copy: "lightning", "torch.optim.adam"
    after_backward: bool | None = None  # True if the graph's backward had ended before

    __repr__ = short_repr

    @property
    def phase_text(self) -> str:
        """The part of the step, as text: "in forward", "in backward" or "after backward"."""
        return "after backward" if self.after_backward else f"in {self.phase}"

    @property
    def nbytes(self) -> int | None:
        """The number of bytes that were copied."""
        return self.tensor.nbytes


@immutable
class Untracked:
    """Data, or a call without an autograd node, from which nodes of a graph were computed.

    The call of a module represents everything that ran inside the module.

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
    inputs: tuple[int, ...] = ()  # positions of the operands in `Graph.untracked`
    sources: tuple[NodeId, ...] = ()  # at a cut, ids of the nodes that computed the operands
    targets: tuple[NodeId, ...] = ()  # ids of the nodes that used the results
    values: tuple[Any, ...] | None = None  # elements, if at most `MOST_ELEMENTS`
    copies: tuple[int, ...] = ()  # `Transfer.data` of the copies between devices that made the data

    __repr__ = short_repr

    @property
    def title(self) -> str:
        """The label in a drawing: "embeddings · BertEmbeddings"."""
        kind = self.module_class.rpartition("/")[2]
        return " · ".join(
            filter(None, (self.label or self.kind, kind if kind != self.label else ""))
        )


@immutable
class Parameter:
    """A parameter of the recorded model, whether or not it is in the graph.

    None means "not recorded". `got_gradient` says that a backward in the recorded block produced a
    gradient; `has_grad` says that `.grad` is set after the block. A `.grad` may be older than the
    block, and `zero_grad()` may have removed a new one. `got_gradient` can be False only if
    `record` reads all gradients, as by default; with `gradients="finite"` it is True or None.

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
    node: NodeId | None = None  # id of the AccumulateGrad node; None if not in the graph
    # the forward of the parameter's module was called in the block
    module_called: bool | None = None
    has_grad: bool | None = None  # `.grad` is set after the block
    # an optimizer that holds the parameter stepped; None if no optimizer stepped
    stepped: bool | None = None
    got_gradient: bool | None = None  # a backward in the block produced a gradient
    in_optimizer: bool | None = None  # an optimizer holds the parameter, whether it stepped or not
    norm: float | None = None  # Euclidean norm of the values when backward began
    extent: Extent = ""  # part of the parameter that `norm` describes: "local part"
    placement: str = ""  # DTensor placement: "Shard(0) on dp, local [32, 16]"
    # For a sharded parameter: statistics of this rank's shard of `.grad` after the block.
    grad: GradientStats | None = None
    shard: int | None = None  # index of this rank's shard; None if the shards are not of equal size
    shard_count: int = 1  # number of shards
    # True if an optimizer that did not step in the block holds the parameter; None if not checked.
    in_other_optimizer: bool | None = None

    __repr__ = short_repr


@immutable
class Cut:
    """A detachment from the graph: a result requires no gradient although an operand does.

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
    in_forward: bool | None = None  # True if a module's forward was running

    __repr__ = short_repr


@immutable
class Replica:
    """A parameter or buffer that should be equal on several ranks.

    Equal values have equal checksums. Different values can have equal checksums too, because a
    checksum has only 32 bits and does not depend on the order of 8-byte words.
    """

    name: str
    kind: Literal["parameter", "buffer"]
    ranks: tuple[int, ...]  # ranks on which the data should be equal
    # wrapper that should keep the ranks equal: "DistributedDataParallel", "DTensor"
    wrapper: str = ""
    # One checksum for each of `Step.checksum_steps`; None if the tensor did not exist yet, or could
    # not be read.
    checksums: tuple[int | None, ...] = ()

    __repr__ = short_repr


@immutable
class RetainedGraphs:
    """Graphs of earlier steps, computed at the same line, that were still alive at this backward.

    A new step begins after each step of an optimizer.
    """

    steps: int  # number of earlier steps whose graph is alive
    label: str = ""  # the caller's variable that keeps the graphs of several steps
    where: str = ""  # line that computed the kept tensor
    node: NodeId | None = None  # id of the node that connects these graphs to this graph
    added_where: str = ""  # line that added the tensor to the variable

    __repr__ = short_repr


@immutable
class Step:
    """Records of a training step as a whole."""

    # factor that the loss was multiplied by (AMP); None: not scaled
    loss_scale: float | None = None
    retained: RetainedGraphs | None = None  # graphs of earlier steps that are still alive
    # Line of an optimizer step that used gradients of an earlier step again, because zero_grad was
    # not called in between.
    stale_gradients: str = ""
    # Position in the recording of the first graph with a NaN or Inf in a parameter's gradient; None
    # if that is this graph.
    nonfinite_since: int | None = None
    # In the last graph of a step that ran on several ranks: the tensors that should be equal on
    # these ranks, and the numbers of the steps after which their checksums were taken. The first
    # checksum was taken before its step.
    replicas: tuple[Replica, ...] = ()
    checksum_steps: tuple[int, ...] = ()
    # True if a later graph uses the gradients that this autograd.grad returned, as in MAML.
    is_inner_step: bool = False
    # True if the graph uses results that are older than the previous backward of the same line;
    # None if unknown.
    continues_previous: bool | None = None

    __repr__ = short_repr


@immutable
class Operand:
    """A tensor that an operation used: one that failed, or one that an event describes."""

    label: str
    tensor: TensorMeta
    where: str = ""  # line that created the tensor
    node: NodeId | None = None

    __repr__ = short_repr


@immutable
class Cause:
    """The reason for a failure: an earlier in-place change or backward, or a surrounding vmap."""

    operation: str  # "add_", "step", "backward", "grad", "vmap"
    where: str = ""
    # For a change: ids of the nodes that it created. For a backward: ids of the last node that it
    # ran, and of the first later node computed from that node.
    nodes: tuple[NodeId, ...] = ()
    text: str = ""  # source text of the line that made the change
    of_view: bool = False  # True if the changed tensor is a view of another one
    label: str = ""  # the caller's name for the operand of the later node
    # True if the failed backward ran at the same line with the same callers, as in a loop
    in_loop: bool = False
    stepped: bool = False  # an optimizer stepped between the two backwards

    __repr__ = short_repr


@immutable
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
    raised_where: str = ""  # the user's line, in a custom Function or a hook that backward called
    node: NodeId | None = None  # id of the node that backward could not run
    modified: Operand | None = None  # the saved tensor of `node` that was changed in place
    causes: tuple[Cause, ...] = ()

    __repr__ = short_repr


# Message of PyTorch 2.13 for an optimizer without parameters.
NO_PARAMETERS = "optimizer got an empty parameter list"

# Ids of the rules that explain the exception that ended a recording.
FAILURE_RULES = (
    "exception",
    "mixed-devices",
    "changed-in-place",
    "backward-twice",
    "non-leaf-in-optimizer",
)


@immutable
class Finding:
    """A problem, or an observation of severity "info", that a rule reports about a graph.

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
    message: str  # one sentence, with the names of the user's program
    advice: str = ""  # what to try
    cause: str = ""
    where: str = ""  # source line in the user's code
    nodes: tuple[NodeId, ...] = ()
    transfers: tuple[int, ...] = ()  # positions in Graph.transfers
    # Positions in `Recording.graphs` or `Training.steps` that the finding is about; () for all.
    steps: tuple[int, ...] = ()

    __repr__ = short_repr

    def is_at_least(self, severity: Severity) -> bool:
        """Return True if the finding is of this severity or worse."""
        return SEVERITIES.index(self.severity) <= SEVERITIES.index(severity)


@immutable
class Experiment:
    """The result of one experiment: the change that was made, and its effect.

    >>> from graphviz_torch.experiments import Experiment
    >>> print(Experiment("seed", "another seed, in eval mode", True, "no result differs"))
    seed: holds
            another seed, in eval mode: no result differs
    """

    name: str  # "sample"
    changed: str  # "sample 0 of x became another (8 samples)"; "" if nothing could be changed
    # True if the model reacted to the change as expected, False if not; None if undecided.
    holds: bool | None
    message: str
    operation: str = ""  # first operator whose result changed: "_softmax"
    where: str = ""  # line of the operator: "model.py:31"
    module: str = ""
    node: NodeId | None = None  # id of its node in the recording's graph
    change: float | None = None  # largest difference of its result, relative to the largest value
    finding: Finding | None = None  # the problem to report, if `holds` is False

    __repr__ = short_repr

    def __str__(self) -> str:
        sign = {True: "holds", False: "does not hold", None: "not known"}[self.holds]
        if self.holds is None and self.finding is not None:
            sign = "note"
        where = f"  {self.where}" if self.where else ""
        changed = f"{self.changed}: " if self.changed else ""
        lines = f"{self.name}: {sign}{where}", f"        {changed}{self.message}"
        return "\n".join(map(printable, lines))
