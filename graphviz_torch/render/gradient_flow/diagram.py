"""Define the values of a gradient flow diagram: modules, links between modules, and cuts."""

from __future__ import annotations

from typing import Literal, NamedTuple

State = Literal["learns", "learns_nothing", "frozen", ""]


class ParameterFlow(NamedTuple):
    """A parameter, which is drawn beside its module."""

    name: str  # name without the module's path
    state: State
    norm: float | None  # norm of the gradient; None if there was none


class FlowNode(NamedTuple):
    """A node of the diagram: a module, or another operation where links meet or end."""

    name: str  # "" for an unnamed operation that only joins links
    kind: str  # class of the module, or operation
    norm: float | None  # gradient norm of the result; None if there was no gradient
    segment: str  # title of the node's backward pass; "" if the step has only one pass
    parameters: tuple[ParameterFlow, ...] = ()
    output: bool = False
    times: int = 1  # number of identical blocks whose modules this node represents
    last_norm: float | None = None  # gradient norm of the module in the last of these blocks

    @property
    def state(self) -> State:
        """State of the node's parameters: "learns_nothing" if any of them learns nothing."""
        states = {each.state for each in self.parameters}
        return next((s for s in ("learns_nothing", "learns", "frozen") if s in states), "")


class FlowLink(NamedTuple):
    """A result of one node that another node uses."""

    source: int  # index of a node
    target: int
    norm: float | None  # norm of the result's gradient, summed over all users of the result
    nonfinite: bool = False


class FlowCut(NamedTuple):
    """A cut, such as a detach, where the gradient stops."""

    # index of the node that computed the detached tensor; None if no node of the diagram did
    source: int | None
    target: int | None
    text: tuple[str, ...]  # lines of text: the operation, and its source line
    harmful: bool  # True if a finding reports the cut


class FlowDiagram(NamedTuple):
    """The gradient flow of one training step."""

    nodes: tuple[FlowNode, ...]  # nodes in the order of forward
    links: tuple[FlowLink, ...]
    cuts: tuple[FlowCut, ...]
    sentence: str
    frozen: int  # number of frozen parameters; 0 if all are frozen, because `sentence` says so
    learns_nothing: bool  # True if a trainable parameter learns nothing
