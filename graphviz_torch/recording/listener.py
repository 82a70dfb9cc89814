"""What a recorder is: a listener to the stream of events, and what it gives to the graphs.

A listener has a method for each event that it wants, of any of these:

    calling  called  raised          a call into torch                internals/hooks/calls.py
    dispatched                       an operator, below autograd      internals/hooks/dispatch.py
    sent  waited                     a collective between ranks       internals/hooks/collectives/
    module_began  module_ended       a module's forward               internals/hooks/modules.py
    function_skipped                 torch.compile leaves one alone   internals/compiler/skipped.py
    region_ran                       what torch.compile made has run  RegionRan
    stepping  stepped                an optimizer's step              internals/hooks/optimizers.py
    batch_came                       a DataLoader's, if it is watched internals/hooks/optimizers.py
    graph_read                       a graph was read, alive          LiveGraph
    backward_began  backward_ended   the same around its backward     BackwardBegan, BackwardEnded
    inner_backward_raised            one that a node runs             InnerBackwardRaised
    block_raised                     an exception ends the block      BlockRaised
    step_ended                       a step of a run is over: forget  None
                                     what is known by its graphs
    copies_timed                     the profiler's copies are there  Memcpy, each
    resumed                          a run is watched again           Resumed
    release                          to let go of live nodes          None

It changes no value and no mode, keeps no tensor alive, and knows no other listener: what two of
them need is in the event, in the graph that is alive (`LiveGraph`), or asked of the `Program`. What
it raises is noted as "not recorded". Nobody sees what it reads. An event of another thread or task
is not told, but for operators and collectives.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from types import FrameType
from typing import Any, ClassVar, NamedTuple

from torch import Tensor
from torch.optim import Optimizer

from ..graph import Graph
from ..internals.frames import CodePosition
from ..tracing.nodes import GradFn, GradientEdge
from ..tracing.regions import Region
from .backward import Backward
from .live import LiveGraph
from .program import Program

# Values by the id of the node, for the nodes that have one.
Columns = Mapping[str, Mapping[int, Any]]
# Values by the path of the module, for the modules that have one.
Rows = Mapping[str, Mapping[str, Any]]


# A seam by the event that it tells, made with what takes that event.
Watches = Mapping[str, Callable[[Callable[[Any], None]], Any]]


class BackwardBegan(NamedTuple):
    """A backward is about to run."""

    live: LiveGraph
    outputs: Sequence[Any]  # what it starts from: tensors, gradient edges
    given: Sequence[Tensor | None]  # their gradients
    asked: list[GradientEdge]  # the inputs of `autograd.grad`
    frame: FrameType | None  # of the user's, that calls it


class BackwardEnded(NamedTuple):
    """A backward ran, or raised; its nodes may still be alive."""

    live: LiveGraph
    backward: Backward
    gradients: Sequence[Tensor | None]  # what `autograd.grad` returned
    error: BaseException | None


class InnerBackwardRaised(NamedTuple):
    """A nested backward raised, as of a reentrant checkpoint."""

    ends: list[GradientEdge]
    error: BaseException


class Reach(NamedTuple):
    """The reach of a backward, while its graph is read."""

    graph: Container[GradFn]  # the nodes that it runs
    before: set[int]  # id() of the variables that earlier backwards reached
    failed: bool  # an exception ended the recording: the graph is that of what led to it
    peek: bool  # no backward runs: it is read in between, and the program goes on


class BlockRaised(NamedTuple):
    """An exception ends the recording's block."""

    error: BaseException
    place: CodePosition | None  # the innermost of the user's own code that it came through


class Resumed(NamedTuple):
    """A run is watched again after a pause."""

    optimizer: Optimizer | None  # that has stepped just now


class RegionRan(NamedTuple):
    """A compiled region ran."""

    region: Region  # what is inside
    given: list[Tensor]  # by its graph
    results: list[Any]  # of its graph
    start: int  # it made the nodes start <= number < end
    end: int


class Listener:
    """A recorder: it overrides the methods of the events that it needs.

    Args:
        program: what is watched: names lines, modules and tensors.
    """

    # It listens where all of these properties of `Options` hold.
    needs: ClassVar[tuple[str, ...]] = ()
    # The calls that it is told: a set of functions and of names of keywords; None for every one
    # that computes.
    functions: Container[Any] | None = None
    # Those of them that it is told before they are made, too: such a set; None for all.
    before: Container[Any] | None = None
    # The operators that it is told: "aten::copy_", and a test of arguments and result.
    operators: ClassVar[Mapping[str, Callable[[Any, Any], bool]]] = {}
    # Is it told of operators where there is only the CPU, too.
    everywhere: ClassVar[bool] = False
    # Seams that it needs beside those that all have.
    watches: ClassVar[Watches] = {}

    def __init__(self, program: Program) -> None:
        self.program = program
        self.events = program.events  # where it notes what no node shows

    def hidden(self, reach: Reach) -> list[GradFn]:
        """Return live nodes that are drawn beside those that run, with their predecessors."""
        return []

    def behind_error(self) -> list[GradientEdge] | None:
        """Return the makers of the failed call's operands; None if a backward failed."""
        return []

    def conclude(self, backwards: Sequence[Backward], graphs: Sequence[Graph]) -> None:
        """Called when all graphs have their columns, before `complete`."""

    def columns(self, backward: Backward) -> Columns:
        """Return values of nodes, by field of `Node`."""
        return {}

    def rows(self) -> Rows:
        """Return values of modules over the whole block, by field of `ModuleRow`."""
        return {}

    def complete(self, graph: Graph, backward: Backward) -> Graph:
        """Return the graph with this listener's values beside its nodes."""
        return graph

    def regions(self, regions: Mapping[int, Region], backward: Backward) -> Mapping[int, Region]:
        """Return the compiled regions of a graph by node, with this listener's values inside."""
        return regions

    def keep(self, graphs: Sequence[Graph]) -> Any:
        """Return a value that the recording keeps after its graphs were built; or None."""
        return None

    def close(self) -> None:
        """Drop all references and hooks at the end of the block, or after an interrupt."""
