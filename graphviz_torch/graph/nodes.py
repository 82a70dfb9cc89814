"""Nodes, edges, rows by module. What a field declares, files, texts, pictures and `diff` take."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

from .column import Column
from .ids import NodeId
from .tensors import Fingerprint, GradientStats, SavedTensor, TensorMeta, elements_text
from .text import short_repr, users_line
from .units import bytes_text, number_text, seconds_text

LeafKind = Literal["", "parameter", "buffer", "tensor"]
Mode = Literal["", "train", "eval"]


def _saved_bytes(saved: tuple[SavedTensor, ...]) -> str:
    return bytes_text(sum(tensor.nbytes for tensor in saved))


def _fingerprints(fingerprints: tuple[Fingerprint | None, ...]) -> str:
    return "; ".join(
        f"norm {number_text(v.norm)}, mean {number_text(v.mean)}, "
        f"{number_text(v.least)} to {number_text(v.greatest)}"
        for v in fingerprints
        if v is not None
    )


def _values(values: tuple[tuple[Any, ...] | None, ...]) -> str:
    return "; ".join(elements_text(each) for each in values if each is not None)


def _innermost(classes: str) -> str:
    return classes.rpartition("/")[2]


REGION = "torch.compile region"  # how the note of a region's own node begins
CHECKPOINTED = "checkpointed"  # how what is noted of a node begins whose forward runs again
CHANGED = "its gradient was changed in place before it was described"
INSIDE = "inside torch.compile"  # note of a node inside a compiled region, before the region's own


class Node(NamedTuple):
    """One `grad_fn`. `id` is its position in `Graph.nodes`, inputs before users.

    >>> import torch
    >>> from graphviz_torch import trace
    >>> x = torch.ones(3, requires_grad=True)
    >>> node = trace((x * 2).sum()).nodes[1]
    >>> node.name, node.operation, str(node.outputs[0])
    ('MulBackward0', 'mul', 'f32[3] cpu')
    """

    id: NodeId
    name: str  # autograd's: "AddmmBackward0", "AccumulateGrad"
    outputs: tuple[TensorMeta | None, ...]  # of the forward; None where autograd has none
    label: str = ""  # what the caller calls it: "a", "fc1.weight"
    operation: str = ""  # the forward's name: "addmm"; "" for a leaf
    leaf: LeafKind = ""  # what an AccumulateGrad accumulates into; "" for every other node
    module: str = ""  # as in named_modules(): "encoder.layers.0"
    # The module's path with the number of a repeated call: "encoder.cell#2".
    scope: Annotated[str, Column("module")] = ""
    # The user's line that made it, "train.py:41"; where that called into an installed library,
    # after the library's: "modeling_gpt2.py:312, called at train.py:41".
    where: Annotated[str, Column("where")] = ""
    # What a reader must know: "torch.compile region".
    note: Annotated[str, Column("note", detail=True)] = ""
    saved: Annotated[tuple[SavedTensor, ...], Column("saved", _saved_bytes)] = ()
    grad_outputs: tuple[GradientStats | None, ...] = ()  # one per output
    order: int | None = None  # position in the backward run, from 0
    # In backward, on the device's own clock.
    seconds: Annotated[float | None, Column("time", seconds_text)] = None
    # Classes of the modules along `module`, one for each name: "Sequential/Linear(4, 16)". Where
    # `module` is "" the root's, of what it makes itself.
    module_class: Annotated[str, Column("class", _innermost)] = ""
    # What autograd keeps of the operation that is not a tensor: "exponent=2"; and of a sum, product
    # and the like the operand that needs no gradient: "data=old f32[64]".
    attributes: Annotated[tuple[str, ...], Column("attributes", ", ".join)] = ()
    # How the ranks divide its outputs, and what this one has: "Shard(0) on tp, local [512, 4096]".
    placement: Annotated[str, Column("placement", detail=True, compared=True)] = ""
    # Fingerprints of what the forward computed, one per output; for a leaf, of its elements.
    fingerprints: Annotated[
        tuple[Fingerprint | None, ...], Column("fingerprints", _fingerprints)
    ] = ()
    # The share of its value that differs where one thing is changed, from 0 to 1: of `influence`.
    influence: Annotated[float | None, Column("influence", "{:.0%}".format, color=True)] = None
    # How often backward ran its forward again; None for what is not checkpointed, or not known.
    reruns: Annotated[int | None, Column("reruns")] = None
    # The call of the user's that made it: "cross_entropy"; a call that made several nodes has a
    # number within its module from the second on, "normalize#2". Outside of modules the user's own
    # functions come first: "dice_loss/sigmoid".
    call: str = ""
    # The elements of each output of at most `MOST_ELEMENTS`, flat, row-major; None for a larger one
    # and for one that was not read.
    values: Annotated[tuple[tuple[Any, ...] | None, ...], Column("value", _values)] = ()

    def __repr__(self) -> str:
        return short_repr(self)

    @property
    def saved_bytes(self) -> int:
        """Bytes this node keeps for backward; a storage counts at the first node that keeps it."""
        return sum([saved.nbytes for saved in self.saved])

    @property
    def device(self) -> str:
        """Device of the first output that has one; "" where none has."""
        for meta in self.outputs:
            if meta is not None:
                return meta.device
        return ""

    @property
    def line(self) -> str:
        """The user's own line that made it, without a library's: "train.py:41"."""
        return users_line(self.where)

    @property
    def is_checkpointed(self) -> bool:
        """Does backward run its forward again, as far as its note says."""
        return any(said.startswith(CHECKPOINTED) for said in self.note.split("; "))

    @property
    def value_text(self) -> str:
        """The values of its small outputs as text, "[3, 4, 5]"; "" where none was recorded.

        >>> Node(0, "AddBackward0", (), values=((3.0, 4.0, 5.0),)).value_text
        '[3, 4, 5]'
        """
        texts = []
        for i, values in enumerate(self.values):
            if values is not None:
                meta = self.outputs[i] if i < len(self.outputs) else None
                texts.append(elements_text(values, meta and meta.shape))
        return "; ".join(texts)

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

    source: NodeId
    target: NodeId
    output_nr: int = 0
    input_nr: int = 0

    def __repr__(self) -> str:
        return short_repr(self)


class ModuleRow(NamedTuple):
    """What was recorded of one module of the program, over all its calls.

    >>> import torch
    >>> from graphviz_torch import record
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout().eval())
    >>> with record(model) as recording:
    ...     model(torch.ones(4, 2)).sum().backward()
    >>> [(row.path, row.mode) for row in recording.graph.modules]
    [('', 'train'), ('0', 'train'), ('1', 'eval')]
    """

    path: str  # as in named_modules(); "" for the model itself
    # In which it was when the last backward began.
    mode: Annotated[Mode, Column("mode", compared=True, color=True)] = ""

    def __repr__(self) -> str:
        return short_repr(self)
