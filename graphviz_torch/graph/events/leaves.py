"""Events about leaves and parameters that are created, registered or assigned wrongly."""

from __future__ import annotations

from typing import Literal

from ..immutable import immutable
from ..values import Operand
from .base import Occurrence

Holder = Literal["list", "dict", "attribute", "forward", "outside", "variable"]


@immutable
class AttributeAssignment(Occurrence):
    """An assignment without effect: the attribute's name is a misspelling of requires_grad."""

    owner: str = ""  # "fc1", or "fc1.weight"
    attribute: str = ""  # "require_grad"


@immutable
class DataAssignment(Occurrence):
    """An assignment `x.data = h`: no gradient flows from x back to h."""

    label: str = ""  # name of the caller's variable x
    value: Operand | None = None  # h


@immutable
class LeafBackward(Occurrence):
    """A backward pass that started at a leaf. `where` is the line that created the leaf."""

    label: str = ""  # name of the caller's variable for the leaf
    maker: str = ""  # function that created the leaf: "requires_grad_"; "" if unknown


@immutable
class NewLeaves(Occurrence):
    """Leaves that are not parameters of the model, but get gradients from a backward pass.

    `where` is the line that created the leaves; `nodes` are the ids of their nodes.
    """

    maker: str = ""  # function that created the leaves: "stack_module_state", "requires_grad_"


@immutable
class RepeatedLayer(Occurrence):
    """A list of modules that contains one module several times.

    `where` is the line that creates the list.
    """

    container: str = ""  # path of the list
    count: int = 0  # number of times that the list contains the module
    layer: str = ""  # class of the module


@immutable
class UnregisteredParameters(Occurrence):
    """Parameters that the model uses, but that are not registered in any of its modules."""

    # Where the parameters are: in a plain list or dict of the model, in a layer created in forward,
    # in a module outside of the model, or (a single parameter) in a variable of the program; or,
    # for a tensor that is not an nn.Parameter, in an attribute of a module.
    holder: Holder = "outside"
    name: str = ""  # name of this object
