"""Base class of the recorders: callbacks for events, and the values that they add to the graphs.

A listener implements the callbacks that it needs:

    on_call_start  on_call_end  on_call_error  a call into torch; see internals/hooks/calls.py
    on_operator                  an operator, below autograd; internals/hooks/dispatch.py
    on_collective  on_collective_wait        between ranks; internals/hooks/collectives/
    on_module_start  on_module_end           a module's forward; internals/hooks/modules.py
    on_function_skipped          torch.compile skips a function; internals/compiler/skipped.py
    on_region_end                a compiled region ran (RegionRan)
    on_optimizer_step_start  on_optimizer_step_end    internals/hooks/optimizers.py
    on_batch                     a DataLoader yielded a batch; internals/hooks/optimizers.py
    on_graph_read                a graph was read while its nodes are alive (LiveGraph)
    on_backward_start  on_backward_end       BackwardBegan, BackwardEnded
    on_inner_backward_error      a nested backward raised (InnerBackwardRaised)
    on_block_error               an exception ends the block (BlockRaised)
    on_step_end                  a training step is over: drop the records about its graphs (None)
    on_copies_timed              the profiler's list of copies (Memcpy)
    on_resume                    recording continues after a pause (Resumed)
    on_release                   drop references to live nodes (None)

A listener changes no value and no mode, keeps no tensor alive, and does not use other listeners:
data that two of them need is in the event, in the `LiveGraph` or in the `Program`. An exception in
a callback is noted as "not recorded", and the program does not see it. Callbacks run for events of
the recording's own thread only, except operators and collectives.
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


# By event: a class of hooks whose only argument is the callback for that event.
Watches = Mapping[str, Callable[[Callable[[Any], None]], Any]]


class BackwardBegan(NamedTuple):
    """A backward is about to run."""

    live: LiveGraph
    outputs: Sequence[Any]  # the roots: tensors or gradient edges
    given: Sequence[Tensor | None]  # gradients of the roots
    asked: list[GradientEdge]  # the inputs of `autograd.grad`
    frame: FrameType | None  # the user's frame that calls backward


class BackwardEnded(NamedTuple):
    """A backward ran, or raised; its nodes may still be alive."""

    live: LiveGraph
    backward: Backward
    gradients: Sequence[Tensor | None]  # the result of `autograd.grad`
    error: BaseException | None


class InnerBackwardRaised(NamedTuple):
    """A nested backward raised, such as the one inside a reentrant checkpoint."""

    ends: list[GradientEdge]  # roots of the nested backward
    error: BaseException


class Reach(NamedTuple):
    """The nodes that a backward will run, while its graph is read."""

    graph: Container[GradFn]  # the nodes that backward will run
    before: set[int]  # id() of the variables that earlier backwards reached
    failed: bool  # an exception ended the recording, and this is the graph up to it
    peek: bool  # no backward runs: the graph is read in between, and the program continues


class BlockRaised(NamedTuple):
    """An exception ends the recording's block."""

    error: BaseException
    place: CodePosition | None  # innermost line of the user's own code in the traceback


class Resumed(NamedTuple):
    """Recording continues after a pause."""

    optimizer: Optimizer | None  # one that stepped just before


class RegionRan(NamedTuple):
    """A compiled region ran."""

    region: Region  # the operations inside
    given: list[Tensor]  # inputs of its FX graph
    results: list[Any]  # outputs of its FX graph
    start: int  # it created the nodes with start <= sequence number < end
    end: int


class Listener:
    """A recorder, with the callbacks for the events that it needs.

    Args:
        program: the recorded program, which names lines, modules and tensors.
    """

    # Properties of `Options` that must all be true for this listener to be used.
    needs: ClassVar[tuple[str, ...]] = ()
    # Calls passed to `on_call_end`: of these functions, or with one of these keyword arguments;
    # None: all calls except those that only read metadata.
    functions: Container[Any] | None = None
    # Calls also passed to `on_call_start`, selected in the same way; None: all of `functions`.
    before: Container[Any] | None = None
    # Operators passed to `on_operator`: by name ("aten::copy_"), a test of arguments and result.
    operators: ClassVar[Mapping[str, Callable[[Any, Any], bool]]] = {}
    # True to receive operators on machines without an accelerator, too.
    everywhere: ClassVar[bool] = False
    # Additional hooks that this listener needs, by event.
    watches: ClassVar[Watches] = {}

    def __init__(self, program: Program) -> None:
        self.program = program
        self.events = program.events  # receives facts that no node can show

    def hidden_nodes(self, reach: Reach) -> list[GradFn]:
        """Return live nodes to draw, with their predecessors, though backward does not run them."""
        return []

    def edges_before_error(self) -> list[GradientEdge] | None:
        """Return the gradient edges of the failed call's operands; None if a backward failed."""
        return []

    def on_graphs_built(self, backwards: Sequence[Backward], graphs: Sequence[Graph]) -> None:
        """Run after all graphs have their columns, before `add_to_graph`."""

    def node_columns(self, backward: Backward) -> Columns:
        """Return values of nodes by field of `Node`, then by node id."""
        return {}

    def module_columns(self) -> Rows:
        """Return values of modules over the whole block by field of `ModuleRow`, then by path."""
        return {}

    def add_to_graph(self, graph: Graph, backward: Backward) -> Graph:
        """Return the graph with the values of this listener that belong to no single node."""
        return graph

    def add_to_regions(
        self, regions: Mapping[int, Region], backward: Backward
    ) -> Mapping[int, Region]:
        """Return a graph's compiled regions (by node) with this listener's values added."""
        return regions

    def persistent_state(self, graphs: Sequence[Graph]) -> Any:
        """Return a value that the recording keeps after its graphs are built; None for nothing."""
        return None

    def close(self) -> None:
        """Drop all references and hooks at the end of the block, or after an interrupt."""
