"""What a sheet shows of a step's gradient, as plain values: modules, streams between them, dams."""

from __future__ import annotations

from typing import Literal, NamedTuple

State = Literal["learns", "starves", "frozen", ""]


class Tributary(NamedTuple):
    """A parameter."""

    name: str  # without the path of its place
    state: State
    norm: float | None  # of its gradient; None where it got none


class Place(NamedTuple):
    """A module, or an operation outside of modules at which streams meet or end."""

    name: str  # "" where streams only meet
    kind: str  # its class, or its operation
    norm: float | None  # of the gradient of its result; None where none came
    part: str  # the backward that it belongs to, where there are several
    tributaries: tuple[Tributary, ...] = ()
    output: bool = False

    @property
    def state(self) -> State:
        """That of its parameters: one that starves counts first."""
        states = {each.state for each in self.tributaries}
        return next((s for s in ("starves", "learns", "frozen") if s in states), "")


class Stream(NamedTuple):
    """A result that one place hands another."""

    source: int  # number of a place
    target: int
    norm: float | None  # of its gradient, of all users together
    nonfinite: bool = False


class Dam(NamedTuple):
    """A place where the way of the gradient was cut."""

    source: int | None  # what is cut off; None where that is in no graph of the step
    target: int | None
    text: tuple[str, ...]  # how, and file and line
    harmful: bool  # does a finding tell of it


class River(NamedTuple):
    """A step."""

    places: tuple[Place, ...]  # in the order of the forward
    streams: tuple[Stream, ...]
    dams: tuple[Dam, ...]
    sentence: str
    frozen: int  # parameters that require no gradient, beside others that do
    starves: bool  # does any parameter learn nothing
