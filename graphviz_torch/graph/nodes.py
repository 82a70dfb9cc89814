"""The classes of nodes, edges and module rows.

The declarations of their fields determine what files, tables, pictures and `diff` contain.
"""

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


REGION = "torch.compile region"  # start of the note of the node that represents a region
CHECKPOINTED = "checkpointed"  # start of the note of a node whose forward runs again
CHANGED = "its gradient was changed in place before it was described"
INSIDE = "inside torch.compile"  # start of the note of a node inside a compiled region


class Node(NamedTuple):
    """One `grad_fn` of an autograd graph.

    `id` is the node's position in `Graph.nodes`, where inputs come before their users.

    >>> import torch
    >>> from graphviz_torch import trace
    >>> x = torch.ones(3, requires_grad=True)
    >>> node = trace((x * 2).sum()).nodes[1]
    >>> node.name, node.operation, str(node.outputs[0])
    ('MulBackward0', 'mul', 'f32[3] cpu')
    """

    id: NodeId
    name: str  # name of the `grad_fn`: "AddmmBackward0", "AccumulateGrad"
    outputs: tuple[
        TensorMeta | None, ...
    ]  # results of the forward operation; None where autograd has no metadata
    label: str = ""  # the program's name for the result: "a", "fc1.weight"
    operation: str = ""  # name of the forward operation: "addmm"; "" for a leaf
    leaf: LeafKind = ""  # kind of tensor that an AccumulateGrad belongs to; "" for other nodes
    module: str = ""  # path as in named_modules(): "encoder.layers.0"
    # Module path, with a number from the module's second call on: "encoder.cell#2".
    scope: Annotated[str, Column("module")] = ""
    # The user's line that created the node, "train.py:41"; for a library's code also the library's
    # line: "modeling_gpt2.py:312, called at train.py:41".
    where: Annotated[str, Column("where")] = ""
    # A note about the node: "torch.compile region".
    note: Annotated[str, Column("note", detail=True)] = ""
    saved: Annotated[tuple[SavedTensor, ...], Column("saved", _saved_bytes)] = ()
    grad_outputs: tuple[GradientStats | None, ...] = ()  # one per output
    order: int | None = None  # position in the backward run, from 0
    # Duration in backward, on the device's own clock.
    seconds: Annotated[float | None, Column("time", seconds_text)] = None
    # Class of each module along the path `module`: "Sequential/Linear(4, 16)". The root's class for
    # nodes of the root module itself.
    module_class: Annotated[str, Column("class", _innermost)] = ""
    # Arguments that autograd keeps and that are not tensors: "exponent=2". For a sum or product,
    # also the operand that requires no gradient: "data=old f32[64]".
    attributes: Annotated[tuple[str, ...], Column("attributes", ", ".join)] = ()
    # DTensor placement and local shape of the outputs: "Shard(0) on tp, local [512, 4096]".
    placement: Annotated[str, Column("placement", detail=True, compared=True)] = ""
    # Fingerprints of the forward results, one per output; a leaf has one, of its elements.
    fingerprints: Annotated[
        tuple[Fingerprint | None, ...], Column("fingerprints", _fingerprints)
    ] = ()
    # Fraction of the elements that changed in an `influence` experiment, from 0 to 1.
    influence: Annotated[float | None, Column("influence", "{:.0%}".format, color=True)] = None
    # Number of times that backward ran the forward again; None if not checkpointed, or unknown.
    reruns: Annotated[int | None, Column("reruns")] = None
    # The call that created the node: "relu". A call that created several nodes is numbered within
    # its module: "cross_entropy#1". Outside of modules, the names of the user's functions come
    # first, numbered from their second call on: "dice_loss#2/sigmoid".
    call: str = ""
    # The elements of each output, flat and row-major. None for an output that has more than
    # `MOST_ELEMENTS`, or that was not read.
    values: Annotated[tuple[tuple[Any, ...] | None, ...], Column("value", _values)] = ()

    def __repr__(self) -> str:
        return short_repr(self)

    @property
    def saved_bytes(self) -> int:
        """Bytes that this node keeps for backward. A storage that several nodes keep counts at the
        first node only.
        """
        return sum([saved.nbytes for saved in self.saved])

    @property
    def device(self) -> str:
        """Device of the first output that has one; "" if none has."""
        for meta in self.outputs:
            if meta is not None:
                return meta.device
        return ""

    @property
    def line(self) -> str:
        """The line of the user's own code that created the node: "train.py:41"."""
        return users_line(self.where)

    @property
    def is_checkpointed(self) -> bool:
        """True if `note` says that backward runs the node's forward again."""
        return any(said.startswith(CHECKPOINTED) for said in self.note.split("; "))

    @property
    def value_text(self) -> str:
        """The values of the node's small outputs as text, "[3, 4, 5]"; "" if none was recorded.

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
        """The name of the forward operation, else autograd's name: the title in a drawing."""
        return self.operation or self.name


class Edge(NamedTuple):
    """A tensor that flows from node `source` to node `target`; its gradient flows back.

    The edge is entry `input_nr` of the target's `next_functions`, and leaves output `output_nr` of
    the source.

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
    """Records of one module of the program, over all its calls.

    >>> import torch
    >>> from graphviz_torch import record
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout().eval())
    >>> with record(model) as recording:
    ...     model(torch.ones(4, 2)).sum().backward()
    >>> [(row.path, row.mode) for row in recording.graph.modules]
    [('', 'train'), ('0', 'train'), ('1', 'eval')]
    """

    path: str  # as in named_modules(); "" for the model itself
    # Mode of the module when the last backward began.
    mode: Annotated[Mode, Column("mode", compared=True, color=True)] = ""

    def __repr__(self) -> str:
        return short_repr(self)
