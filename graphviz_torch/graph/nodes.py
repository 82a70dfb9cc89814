"""Define the classes of nodes, edges and module rows, and how outputs use their fields.

Files, tables, pictures and `diff` contain the fields that these classes declare.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, get_args, get_type_hints

from .ids import NodeId
from .immutable import NamedTuple
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


# Texts with which `Node.note` begins.
REGION = "torch.compile region"  # the node represents a whole compiled region
CHECKPOINTED = "checkpointed"  # a checkpoint runs the node's forward again
CHANGED = "its gradient was changed in place before it was described"
INSIDE = "inside torch.compile"  # the node is inside a compiled region


class Node(NamedTuple):
    """One `grad_fn` of an autograd graph.

    `id` is the node's position in `Graph.nodes`, in which a node comes before all its users.

    >>> import torch
    >>> from graphviz_torch import trace
    >>> x = torch.ones(3, requires_grad=True)
    >>> node = trace((x * 2).sum()).nodes[1]
    >>> node.name, node.operation, str(node.outputs[0])
    ('MulBackward0', 'mul', 'f32[3] cpu')
    """

    id: NodeId
    name: str  # name of the `grad_fn`: "AddmmBackward0", "AccumulateGrad"
    # results of the forward operation; None for a result of which autograd keeps no metadata
    outputs: tuple[TensorMeta | None, ...]
    label: str = ""  # the program's name for the result: "a", "fc1.weight"
    operation: str = ""  # name of the forward operation: "addmm"; "" for a leaf
    leaf: LeafKind = ""  # kind of tensor that an AccumulateGrad belongs to; "" for other nodes
    module: str = ""  # path as in named_modules(): "encoder.layers.0"
    # `module`, with a number if this is the second or a later call of the module: "encoder.cell#2".
    scope: Annotated[str, Column("module")] = ""
    # Source line that created the node: "train.py:41". If a library created it, the library's line
    # and the user's line: "modeling_gpt2.py:312, called at train.py:41".
    where: Annotated[str, Column("where")] = ""
    # Text about the node, separated by "; ": "torch.compile region".
    note: Annotated[str, Column("note", detail=True)] = ""
    saved: Annotated[tuple[SavedTensor, ...], Column("saved", _saved_bytes)] = ()
    grad_outputs: tuple[GradientStats | None, ...] = ()  # for each output, its gradient
    order: int | None = None  # position in the order in which backward ran the nodes, from 0
    # Duration of the node's backward in seconds, on the device's own clock.
    seconds: Annotated[float | None, Column("time", seconds_text)] = None
    # Class of each module on the path `module`: "Sequential/Linear(4, 16)". For an operation
    # directly in the model, the class of the model.
    module_class: Annotated[str, Column("class", _innermost)] = ""
    # Non-tensor arguments that autograd keeps: "exponent=2". For a sum or product, also the operand
    # that requires no gradient: "data=old f32[64]".
    attributes: Annotated[tuple[str, ...], Column("attributes", ", ".join)] = ()
    # DTensor placement and local shape of the outputs: "Shard(0) on tp, local [512, 4096]".
    placement: Annotated[str, Column("placement", detail=True, compared=True)] = ""
    # Fingerprint of each output; for a leaf, of the leaf's elements.
    fingerprints: Annotated[
        tuple[Fingerprint | None, ...], Column("fingerprints", _fingerprints)
    ] = ()
    # Fraction (0 to 1) of the output's elements that changed in an `influence` experiment.
    influence: Annotated[float | None, Column("influence", "{:.0%}".format, color=True)] = None
    # Number of times that backward ran the node's forward again; None if unknown or not
    # checkpointed.
    reruns: Annotated[int | None, Column("reruns")] = None
    # Function call that created the node: "relu". If the call created several nodes, a number
    # counts such calls in the module: "cross_entropy#1". Outside of modules, the user's functions
    # that contain the call come first: "dice_loss#2/sigmoid" in the second call of dice_loss.
    call: str = ""
    # Elements of each output, flat and row-major. None for an output that was not read, or that has
    # more than `MOST_ELEMENTS` elements.
    values: Annotated[tuple[tuple[Any, ...] | None, ...], Column("value", _values)] = ()

    def __repr__(self) -> str:
        return short_repr(self)

    @property
    def saved_bytes(self) -> int:
        """Bytes that this node keeps for backward.

        If several nodes keep the same storage, only the first of them counts it.
        """
        return sum([saved.nbytes for saved in self.saved])

    @property
    def device(self) -> str:
        """Device of the first output with metadata; "" if there is none."""
        for meta in self.outputs:
            if meta is not None:
                return meta.device
        return ""

    @property
    def line(self) -> str:
        """Source line of the user's own code that created the node: "train.py:41"."""
        return users_line(self.where)

    @property
    def is_checkpointed(self) -> bool:
        """True if `note` says that backward runs the node's forward again."""
        return any(said.startswith(CHECKPOINTED) for said in self.note.split("; "))

    @property
    def value_text(self) -> str:
        """Elements of the node's small outputs as text, "[3, 4, 5]"; "" if none were recorded.

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
        """Name of the forward operation; for a node without one, autograd's name."""
        return self.operation or self.name


class Edge(NamedTuple):
    """A tensor that flows from node `source` to node `target`; its gradient flows back.

    The edge begins at output `output_nr` of the source. It is entry `input_nr` of the target's
    `next_functions`.

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
    """Values recorded for one module of the program, over all its calls.

    >>> import torch
    >>> from graphviz_torch import record
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout().eval())
    >>> with record(model) as recording:
    ...     model(torch.ones(4, 2)).sum().backward()
    >>> [(row.path, row.mode) for row in recording.graph.modules]
    [('', 'train'), ('0', 'train'), ('1', 'eval')]
    """

    path: str  # as in named_modules(); "" for the model itself
    # Whether the module was in train or eval mode when the last backward began.
    mode: Annotated[Mode, Column("mode", compared=True, color=True)] = ""

    def __repr__(self) -> str:
        return short_repr(self)


Row = TypeVar("Row")


class Column(NamedTuple):
    """The declaration of a field of `Node` or `ModuleRow`.

    The declaration is part of the field's type, as in `seconds: Annotated[float | None,
    Column("time", seconds_text)]`.
    """

    title: str  # heading in `to_text`, `summary` and `diff`
    words: Callable[[Any], str] = str  # formats a recorded value
    detail: bool = False  # pictures write the value in a line of the node's box
    # True if `diff` reports different values of two matched nodes or modules, unless one was not
    # recorded. Values that need a tolerance are compared in comparison/diff.py instead.
    compared: bool = False
    color: bool = False  # the drawing option `color_by` accepts the field
    summed: bool = False  # a module or group has the sum of the values inside it

    def text(self, value: Any) -> str:
        """Return a value of the field as text; "" if the value was not recorded."""
        return self.words(value) if is_recorded(value) else ""


def is_recorded(value: Any) -> bool:
    """Return True if a field's value is not None, "" or (), which mean "not recorded".

    >>> is_recorded(0.0), is_recorded(None), is_recorded(""), is_recorded(())
    (True, False, False, False)
    """
    return value is not None and value != "" and value != ()


@cache
def columns_of(cls: type) -> dict[str, Column]:
    """Return field -> declaration for a class, in the order of its fields.

    >>> from graphviz_torch.graph import Node
    >>> columns_of(Node)["scope"].title
    'module'
    """
    found: dict[str, Column] = {}
    for name, hint in get_type_hints(cls, include_extras=True).items():
        found.update((name, part) for part in get_args(hint)[1:] if isinstance(part, Column))
    return found


@cache
def columns_except(cls: type, *names: str) -> tuple[tuple[str, Column], ...]:
    """Return (field, declaration) of a class for all fields except `names`.

    >>> from graphviz_torch.graph import Node
    >>> [name for name, _ in columns_except(Node, "scope", "where", "note", "saved", "seconds")]
    ['module_class', 'attributes', 'placement', 'fingerprints', 'influence', 'reruns', 'values']
    """
    return tuple(each for each in columns_of(cls).items() if each[0] not in names)


def columns_in(cls: type, rows: Iterable[Any]) -> dict[str, Column]:
    """Return field -> declaration for the fields that get a column in a table.

    These are fields with a number in at least one row, and fields with different texts in the rows.

    >>> from graphviz_torch.graph import ModuleRow
    >>> [*columns_in(ModuleRow, [ModuleRow("a", mode="train"), ModuleRow("b", mode="eval")])]
    ['mode']
    >>> columns_in(ModuleRow, [ModuleRow("a", mode="train"), ModuleRow("b", mode="train")])
    {}
    """
    rows = list(rows)
    found: dict[str, Column] = {}
    for name, column in columns_of(cls).items():
        values = {getattr(row, name) for row in rows}
        if any(map(is_recorded, values)) and (len(values) > 1 or not isinstance(values.pop(), str)):
            found[name] = column
    return found


@cache
def details(cls: type) -> tuple[tuple[str, Column], ...]:
    """Return (field, declaration) for the fields that pictures write in a node's box."""
    return tuple((name, column) for name, column in columns_of(cls).items() if column.detail)


# Operations, by the names that nodes have. The result of a view contains the elements of the input
# in the same order, with other sizes of the dimensions.
VIEWS = frozenset(("view", "unsafe_view", "reshape_alias"))
# The elements in the same order.
RESHAPES = VIEWS | {"alias", "squeeze", "unsqueeze"}
# Each element once, in any order, possibly copied or converted.
SAME_VALUES = RESHAPES | {"t", "transpose", "permute", "clone", "to_copy"}
SUMS = frozenset(("add", "sub", "rsub"))
REGRESSION_LOSSES = ("mse_loss", "smooth_l1_loss", "huber_loss", "l1_loss")
