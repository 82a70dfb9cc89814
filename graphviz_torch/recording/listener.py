"""Base class of the recorders, which observe the program and add values to its graphs.

A listener implements the callbacks of the events that it needs:

    on_call_start  on_call_end  on_call_error  a call into torch; see internals/hooks/calls.py
    on_gradients_cleared         `zero_grad` returned; internals/hooks/zero_grad.py
    on_operator                  an operator below autograd ran; internals/hooks/dispatch.py
    on_collective  on_collective_wait        a collective; internals/hooks/collectives/
    on_module_start  on_module_end           a module's forward; internals/hooks/modules.py
    on_function_skipped          torch.compile skips a function; internals/compiler/skipped.py
    on_region_end                a compiled region ran (RegionRan)
    on_optimizer_step_start  on_optimizer_step_end    internals/hooks/optimizers.py
    on_batch                     a DataLoader yielded a batch; internals/hooks/optimizers.py
    on_graph_read                a graph was read while its nodes are alive (LiveGraph)
    on_backward_start  on_backward_end       BackwardBegan, BackwardEnded
    on_inner_backward_error      a nested backward raised (InnerBackwardRaised)
    on_block_error               an exception ends the block (BlockRaised)
    on_step_end                  a training step is over, and its records can be dropped (None)
    on_copies_timed              the profiler measured these copies (a list of Memcpy)
    on_resume                    recording continues after a pause (Resumed)
    on_release                   references to live nodes must be dropped (None)

A listener changes no value and no mode, keeps no tensor alive, and uses no other listener. Data
that two listeners need is in the event, in the `LiveGraph` or in the `Program`. An exception in a
callback becomes a "not recorded" note, and the program does not see it. Operators and collectives
are observed in all threads, other events only in the thread that is recorded.
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

# Values of nodes, by field of `Node` and then by node id. Nodes without a value are left out.
Columns = Mapping[str, Mapping[int, Any]]
# Values of modules, by field of `ModuleRow` and then by path. Modules without a value are left out.
Rows = Mapping[str, Mapping[str, Any]]


# By event, a context manager class that installs hooks; its argument is the event's callback.
Watches = Mapping[str, Callable[[Callable[[Any], None]], Any]]


class BackwardBegan(NamedTuple):
    """A backward is about to run."""

    live: LiveGraph
    outputs: Sequence[Any]  # the roots: tensors or gradient edges
    given: Sequence[Tensor | None]  # gradients of the roots
    asked: list[GradientEdge]  # the inputs of `autograd.grad`
    frame: FrameType | None  # the user's frame that calls backward


class BackwardEnded(NamedTuple):
    """A backward returned or raised. Its nodes may still be alive."""

    live: LiveGraph
    backward: Backward
    gradients: Sequence[Tensor | None]  # the result of `autograd.grad`
    error: BaseException | None


class InnerBackwardRaised(NamedTuple):
    """A nested backward raised, such as the one inside a reentrant checkpoint."""

    ends: list[GradientEdge]  # roots of the nested backward
    error: BaseException


class Reach(NamedTuple):
    """The nodes on which the roots of a graph depend, for listeners that read the graph."""

    graph: Container[GradFn]  # the nodes that backward runs, or would run
    before: set[int]  # id() of the variables that earlier backwards reached
    failed: bool  # an exception ended the recording; the graph ends at the failure
    peek: bool  # the graph is read without a backward, and the program continues afterwards


class BlockRaised(NamedTuple):
    """An exception ends the recording's block."""

    error: BaseException
    place: CodePosition | None  # innermost line of the user's own code in the traceback


class Resumed(NamedTuple):
    """Recording continues after a pause."""

    optimizer: Optimizer | None  # an optimizer that stepped just before, if any


class RegionRan(NamedTuple):
    """A compiled region ran."""

    region: Region  # the operations inside
    given: list[Tensor]  # inputs of the region's FX graph
    results: list[Any]  # outputs of the region's FX graph
    start: int  # the region created the nodes with start <= sequence number < end
    end: int


class Listener:
    """A recorder: it observes some events of the program, and adds values to the graphs.

    Args:
        program: the recorded program, which knows lines, modules and names of tensors.
    """

    # Properties of `Options`. The listener is used only if all of them are true.
    needs: ClassVar[tuple[str, ...]] = ()
    # `on_call_end` gets calls of these functions and calls with one of these keyword arguments.
    # None: it gets all calls, except those that only read metadata.
    functions: Container[Any] | None = None
    # `on_call_start` gets the calls of `functions` that are also in this container; None: all.
    before: Container[Any] | None = None
    # True if `on_call_end` gets each access to `.grad` by `zero_grad`.
    sees_zero_grad: ClassVar[bool] = False
    # `on_operator` gets operators with these names, such as "aten::copy_", if the operator's
    # function here returns True for arguments and result.
    operators: ClassVar[Mapping[str, Callable[[Any, Any], bool]]] = {}
    # True if the listener gets operators even on machines without an accelerator.
    everywhere: ClassVar[bool] = False
    # Additional hooks that this listener needs, by event.
    watches: ClassVar[Watches] = {}

    def __init__(self, program: Program) -> None:
        self.program = program
        self.events = program.events  # receives facts that no node can show

    def hidden_nodes(self, reach: Reach) -> list[GradFn]:
        """Return live nodes that are drawn, with the nodes upstream of them, although backward does
        not run them.
        """
        return []

    def edges_before_error(self) -> list[GradientEdge] | None:
        """Return the gradient edges of the operands of the call that raised; None if a backward
        raised.
        """
        return []

    def on_graphs_built(self, backwards: Sequence[Backward], graphs: Sequence[Graph]) -> None:
        """Run after all graphs have their columns, before `add_to_graph`."""

    def node_columns(self, backward: Backward) -> Columns:
        """Return the values of nodes, by field of `Node` and then by node id."""
        return {}

    def module_columns(self) -> Rows:
        """Return the values of modules, by field of `ModuleRow` and then by path.

        They are the same in all graphs of a recording.
        """
        return {}

    def add_to_graph(self, graph: Graph, backward: Backward) -> Graph:
        """Return the graph with the values of this listener that belong to no single node."""
        return graph

    def add_to_regions(
        self, regions: Mapping[int, Region], backward: Backward
    ) -> Mapping[int, Region]:
        """Return the compiled regions of a graph, by node, with this listener's values added."""
        return regions

    def persistent_state(self, graphs: Sequence[Graph]) -> Any:
        """Return a value that the recording keeps after its graphs are built; None if it keeps
        none.
        """
        return None

    def close(self) -> None:
        """Drop all references and hooks at the end of the block, or after an interrupt."""
