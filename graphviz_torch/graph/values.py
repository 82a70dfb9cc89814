"""What a graph is made of, as plain values: no tensor, no module, no grad_fn.

Everything here can be compared, hashed, pickled, saved and drawn on a machine without torch.
`None`, `""` and `()` mean "not recorded".
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

from .column import Column
from .text import short_repr
from .units import bytes_text, seconds_text

TransferKind = Literal["HtoD", "DtoH", "DtoD"]
Phase = Literal["forward", "backward"]
Severity = Literal["error", "warning", "info"]
LeafKind = Literal["", "parameter", "buffer", "tensor"]
SavedKind = Literal["activation", "parameter", "buffer", "input"]

_SHORT_DTYPES = {"bool": "bool", "bfloat16": "bf16"}
_LETTERS = {"float": "f", "complex": "c", "int": "i", "uint": "u", "qint": "q", "quint": "qu"}


def short_dtype(dtype: str) -> str:
    """`"float32"` -> `"f32"`, `"bfloat16"` -> `"bf16"`; an unknown name is returned as it is."""
    if dtype in _SHORT_DTYPES:
        return _SHORT_DTYPES[dtype]
    match = re.fullmatch(r"([a-z]+)(\d+)(_\w+)?", dtype)
    if match is None or match[1] not in _LETTERS:
        return dtype
    return _LETTERS[match[1]] + match[2] + (match[3] or "").replace("_", "")


def itemsize(dtype: str) -> int | None:
    """Bytes of one element of `dtype`; None for a dtype whose name does not tell."""
    if dtype == "bool":
        return 1
    match = re.match(r"[a-z]+?(\d+)", dtype)
    bits = int(match[1]) if match else 0
    return bits // 8 if bits and bits % 8 == 0 else None


# What there is of each node is a named tuple, not a dataclass: it is made by the hundred thousand,
# and a frozen dataclass takes five times as long to make.
class TensorMeta(NamedTuple):
    """Shape, dtype and device of a tensor. A ragged dimension of a nested tensor is -1.

    >>> meta = TensorMeta((8, 128), "float32", "cuda:0")
    >>> str(meta), meta.nbytes
    ('f32[8, 128] cuda:0', 4096)
    """

    shape: tuple[int, ...]
    dtype: str  # torch's name without "torch.": "float32"
    device: str  # "cpu", "cuda:0", "sim:1"

    @property
    def nbytes(self) -> int | None:
        """Bytes of the dense values: elements times element size. Not what the allocator holds.

        None where a dimension is ragged or the dtype has no whole number of bytes.
        """
        size = itemsize(self.dtype)
        if size is None or any(n < 0 for n in self.shape):
            return None
        return math.prod(self.shape) * size

    def __str__(self) -> str:
        return f"{short_dtype(self.dtype)}{list(self.shape)} {self.device}"


class GradientStats(NamedTuple):
    """What one gradient looked like when it reached a node's output in backward.

    NaN and Inf elements are counted, and left out of norm, max_abs and mean.

    >>> import torch
    >>> from graphviz_torch import record
    >>> with record() as recording:
    ...     x = torch.ones(4, requires_grad=True)
    ...     (x * 2).sum().backward()
    >>> [stats] = recording.graph.nodes[0].grad_outputs
    >>> stats.norm, stats.max_abs
    (4.0, 2.0)
    """

    norm: float  # Euclidean, of the finite elements
    max_abs: float
    mean: float
    zero_fraction: float  # share of elements equal to zero, of all elements
    nan: int = 0
    inf: int = 0
    values: tuple[Any, ...] | None = None  # flat, row-major; only for small gradients
    tensor: TensorMeta | None = None

    def __repr__(self) -> str:
        return short_repr(self)

    @property
    def nonfinite(self) -> int:
        """Number of NaN and Inf elements."""
        return self.nan + self.inf


class SavedTensor(NamedTuple):
    """A tensor that a node keeps for backward.

    >>> import torch
    >>> from graphviz_torch import record
    >>> with record() as recording:
    ...     torch.ones(3, requires_grad=True).sin().sum().backward()
    >>> [saved] = recording.graph.nodes[1].saved
    >>> saved.name, str(saved.tensor)
    ('self', 'f32[3] cpu')
    """

    name: str  # "self", "weight", "result"; "" for a custom Function's
    tensor: TensorMeta
    nbytes: int  # of its storage, 0 where the storage was counted already (see shared_with)
    kind: SavedKind = "activation"
    shared_with: int | None = None  # id of the node at which the same storage is counted

    def __repr__(self) -> str:
        return short_repr(self)


def _saved_bytes(saved: tuple[SavedTensor, ...]) -> str:
    return bytes_text(sum(tensor.nbytes for tensor in saved))


class Node(NamedTuple):
    """One `grad_fn`. `id` is its position in `Graph.nodes`, inputs before users.

    >>> import torch
    >>> from graphviz_torch import trace
    >>> x = torch.ones(3, requires_grad=True)
    >>> node = trace((x * 2).sum()).nodes[1]
    >>> node.name, node.operation, str(node.outputs[0])
    ('MulBackward0', 'mul', 'f32[3] cpu')
    """

    id: int
    name: str  # autograd's: "AddmmBackward0", "AccumulateGrad"
    outputs: tuple[TensorMeta | None, ...]  # of the forward; None where autograd has none
    label: str = ""  # what the caller calls it: "a", "fc1.weight"
    operation: str = ""  # the forward's name: "addmm"; "" for a leaf
    leaf: LeafKind = ""  # what an AccumulateGrad accumulates into; "" for every other node
    module: str = ""  # as in named_modules(): "encoder.layers.0"
    # The module's path with the number of a repeated call: "encoder.cell#2".
    scope: Annotated[str, Column("module")] = ""
    # The user's line that made it, "train.py:41"; where that called into an installed library, with
    # the library's: "train.py:41 (modeling_gpt2.py:312)".
    source: Annotated[str, Column("source")] = ""
    # What a reader must know: "torch.compile region".
    note: Annotated[str, Column("note", detail=True)] = ""
    saved: Annotated[tuple[SavedTensor, ...], Column("saved", _saved_bytes)] = ()
    grad_outputs: tuple[GradientStats | None, ...] = ()  # one per output
    order: int | None = None  # position in the backward run, from 0
    # In backward, on the device's own clock.
    seconds: Annotated[float | None, Column("time", seconds_text)] = None
    # Classes of the modules along `module`, one for each name: "Sequential/Linear(4, 16)".
    module_class: str = ""
    # What autograd keeps of the operation that is not a tensor: "exponent=2".
    attributes: Annotated[tuple[str, ...], Column("attributes", ", ".join)] = ()

    def __repr__(self) -> str:
        return short_repr(self)

    @property
    def saved_bytes(self) -> int:
        """Bytes this node keeps for backward; a storage counts at the first node that keeps it."""
        return sum(saved.nbytes for saved in self.saved)

    @property
    def device(self) -> str:
        """Device of the first output that has one; "" where none has."""
        return next((meta.device for meta in self.outputs if meta is not None), "")

    @property
    def title(self) -> str:
        """The forward's name, else autograd's: what a drawing calls the node."""
        return self.operation or self.name


class Edge(NamedTuple):
    """Data flows source -> target in forward; backward runs the edge in reverse.

    It is entry `input_nr` of the target's `next_functions`, and output `output_nr` of the source.

    >>> import torch
    >>> from graphviz_torch import trace
    >>> x = torch.ones(3, requires_grad=True)
    >>> [edge] = trace(x.sum()).edges
    >>> edge.source, edge.target
    (0, 1)
    """

    source: int
    target: int
    output_nr: int = 0
    input_nr: int = 0

    def __repr__(self) -> str:
        return short_repr(self)


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
    node: int | None = None  # id of the node it belongs to
    where: str = ""  # the user's line: "train.py:41"
    module: str = ""
    operation: str = ""  # "to", "item", "copy_"
    label: str = ""  # the caller's name for the tensor
    pinned: bool | None = None  # was the host side page-locked
    non_blocking: bool | None = None
    seconds: float | None = None  # on the device's clock; None where it was not measured
    used: bool | None = None  # False: the copy was freed before any operation read it
    data: int | None = None  # copies of the same data, and copies of those, share this number
    in_forward: bool | None = None  # was a module's forward running; `module` is "" in the root's
    moment: int | None = None  # grows with every call of a module and every backward

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
    none, as after `zero_grad()`.

    >>> import torch
    >>> from graphviz_torch import record
    >>> model = torch.nn.Linear(2, 1)
    >>> with record(model) as recording:
    ...     model(torch.ones(4, 2)).sum().backward()
    >>> [(each.name, each.has_grad) for each in recording.graph.parameters]
    [('weight', True), ('bias', True)]
    """

    name: str
    tensor: TensorMeta
    requires_grad: bool
    node: int | None = None  # id of its AccumulateGrad; None where it is not in the graph
    module_called: bool | None = None  # was its module's forward called in the block
    has_grad: bool | None = None  # is its `.grad` set after the block
    stepped: bool | None = None  # did an optimizer that has it step; None where none stepped
    got_gradient: bool | None = None  # did a backward of the block give it a gradient
    in_optimizer: bool | None = None  # does an optimizer have it, be it one that did not step
    norm: float | None = None  # Euclidean, of its values when backward began

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
    before: int | None = None  # id of the node that made the operand
    after: tuple[int, ...] = ()  # ids of the nodes that used the result
    where: str = ""
    module: str = ""
    label: str = ""
    in_forward: bool | None = None  # was a module's forward running

    __repr__ = short_repr


@dataclass(frozen=True, slots=True)
class RetainedGraphs:
    """Graphs of steps before, run by the same line, that were still alive at this backward.

    Steps are told apart by the optimizers that stepped in between.
    """

    steps: int  # so many steps have a graph that is alive
    label: str = ""  # the caller's variable that holds them, if one holds those of several steps
    where: str = ""  # the line that made what is held
    node: int | None = None  # id of the node that makes them part of this graph
    added: str = ""  # the line that added it to that variable

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

    __repr__ = short_repr


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor that took part in an operation that failed."""

    label: str
    tensor: TensorMeta
    where: str = ""  # the line that made it
    node: int | None = None

    __repr__ = short_repr


@dataclass(frozen=True, slots=True)
class Cause:
    """What was done before a backward and made it fail: a change in place, or another backward."""

    operation: str  # "add_", "step", "backward", "grad"
    where: str = ""
    # Ids: what the change made; or the last node that the other backward ran, and the first made
    # since that is computed from it.
    nodes: tuple[int, ...] = ()
    text: str = ""  # of a change: the line itself
    label: str = ""  # of another backward: the caller's name for what the later node takes
    again: bool = False  # was it the same line, called from the same lines: a loop
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
    raised: str = ""  # the user's line in a custom Function or a hook that backward called
    node: int | None = None  # id of the node that backward could not run
    modified: Operand | None = None  # the tensor it saved that was changed in place
    causes: tuple[Cause, ...] = ()

    __repr__ = short_repr


EventKind = Literal[
    "attribute",  # a name on a module or parameter that does nothing: detail names it
    "backward",  # whose parameters another optimizer holds, which never stepped
    "broadcast",  # two operands of shapes (N, 1) and (N,)
    "clear",  # of gradients that no step had used
    "clip",  # detail: "after the step", "while scaled", "nothing"
    "constant",  # a number that nothing computed, added to what has a gradient
    "data",  # `x.data = h`, which parts h from what made it
    "eval",  # modules that behave otherwise in training were in eval mode
    "frozen",  # a parameter's requires_grad was set to False
    "grad",  # a read of the `.grad` of a tensor that is not a leaf: None
    "leaf",  # backward started from a leaf
    "loss",  # a call of a loss function
    "nonfinite",  # the first NaN or Inf of a forward; label: "loss" where the loss is so too
    "schedule",  # a scheduler stepped before its optimizer, which detail names
    "step",  # of an optimizer; detail: how many parameters it holds that the model does not
    "unregistered",  # a module that ran inside the model, which does not own it
]


@dataclass(frozen=True, slots=True)
class Event:
    """What the program did that no node shows."""

    kind: EventKind
    where: str = ""  # the user's line
    label: str = ""  # what the caller calls what it was done to
    operation: str = ""  # the name of what was called
    detail: str = ""
    operands: tuple[Operand, ...] = ()
    nodes: tuple[int, ...] = ()  # ids of the nodes that it made, or is about
    times: int = 1  # how often that line did so

    __repr__ = short_repr


# What PyTorch says of an optimizer that is given nothing (2.13).
NO_PARAMETERS = "optimizer got an empty parameter list"

# The rules that tell why a recording ended.
FAILURE_RULES = (
    "failed",
    "mixed-devices",
    "changed-in-place",
    "backward-twice",
    "optimizer-got-a-result",
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
    nodes: tuple[int, ...] = ()
    transfers: tuple[int, ...] = ()  # positions in Graph.transfers
    steps: tuple[int, ...] = ()  # positions in Recording.graphs, where it holds in some of several

    __repr__ = short_repr
