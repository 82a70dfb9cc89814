"""Values of a gradient flow diagram: modules, links between them, and cuts."""

from __future__ import annotations

from typing import Literal, NamedTuple

State = Literal["learns", "learns_nothing", "frozen", ""]


class ParameterFlow(NamedTuple):
    """A parameter beside its module."""

    name: str  # without the path of its module
    state: State
    norm: float | None  # of its gradient; None if it got none


class FlowNode(NamedTuple):
    """A module, or an operation outside of modules at which links meet or end."""

    name: str  # "" if links only meet here
    kind: str  # class of the module, or operation
    norm: float | None  # of the gradient of its result; None if there is none
    segment: str  # title of its backward pass, if there are several
    parameters: tuple[ParameterFlow, ...] = ()
    output: bool = False

    @property
    def state(self) -> State:
        """Return the state of its parameters: "learns_nothing" if any of them does not learn."""
        states = {each.state for each in self.parameters}
        return next((s for s in ("learns_nothing", "learns", "frozen") if s in states), "")


class FlowLink(NamedTuple):
    """A result of one node that another node uses."""

    source: int  # index of a node
    target: int
    norm: float | None  # of its gradient, summed over all users
    nonfinite: bool = False


class FlowCut(NamedTuple):
    """A place at which the gradient is cut, such as a detach."""

    source: int | None  # index of the detached node; None if it is in no graph of the step
    target: int | None
    text: tuple[str, ...]  # the operation, and file and line
    harmful: bool  # a finding reports it


class FlowDiagram(NamedTuple):
    """The gradient flow of one training step."""

    nodes: tuple[FlowNode, ...]  # in the order of forward
    links: tuple[FlowLink, ...]
    cuts: tuple[FlowCut, ...]
    sentence: str
    frozen: int  # number of frozen parameters; 0 if all are frozen
    learns_nothing: bool  # a trainable parameter does not learn
