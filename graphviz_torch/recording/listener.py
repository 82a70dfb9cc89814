"""Define `Listener`, the base class of the recorders.

A recorder observes the program, and adds values to the program's graphs.

A listener implements the callbacks of the events that it needs:

    on_function                  a custom Function is applied; internals/hooks/functions.py
    on_call_start  on_call_end  on_call_error  a call into torch; see internals/hooks/calls.py
    on_gradients_cleared         `zero_grad` returned; internals/hooks/zero_grad.py
    on_operator                  an ATen operator was dispatched; internals/hooks/dispatch.py
    on_collective  on_collective_wait        a collective; internals/hooks/collectives.py
    on_module_start  on_module_end           a module's forward; internals/hooks/modules.py
    on_outermost_start  on_outermost_end     the same events, for an outermost module only
    on_region_end                a compiled region ran (RegionRan)
    on_optimizer_step_start  on_optimizer_step_end    internals/hooks/optimizers.py
    on_batch                     a DataLoader yielded a batch; internals/hooks/optimizers.py
    on_graph_read                a graph was read while its nodes are alive (LiveGraph)
    on_backward_start  on_backward_end       internals/hooks/engine.py; session.py sends these
                                 events after it has read the graph (BackwardBegan, BackwardEnded)
    on_later_backward            a backward after the last recorded step; internals/hooks/engine.py
    on_inner_backward_error      a nested backward raised (InnerBackwardRaised)
    on_block_error               an exception ends the block (BlockRaised)
    on_next_step                 the next training step begins; graphs are built after it (None)
    on_step_end                  a training step is over, and its records can be dropped (None)
    on_copies_timed              the profiler measured these copies (a list of Memcpy)
    on_resume                    recording continues after a pause (Resumed)
    on_release                   references to live nodes must be dropped (None)
    on_state_loaded  on_initialize           internals/hooks/weights.py
    on_program_end               the program has ended without an exception (None)

A question that plain values can answer, such as whether gradients are cleared, is a query over the
log (program/log.py). A listener then only appends rows to the log. No listener is needed if a
function can return the rows of an event from the event alone: the query names the function.

A listener changes no value and no mode of the program, keeps no tensor alive, and uses no other
listener. Data that two listeners need is in the event, in the `LiveGraph` or in the `Program`. An
exception in a callback becomes a "not recorded" note, and does not propagate into the program.
Operators and collectives are observed in all threads. Other events are observed only in the thread
that is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from types import FrameType
from typing import Any, ClassVar

from torch import Tensor
from torch.optim import Optimizer

from ..graph import Graph
from ..graph.immutable import NamedTuple
from ..internals.frames import CodePosition
from ..tracing.nodes import GradFn, GradientEdge
from ..tracing.regions import Region
from .backward import Backward
from .live import LiveGraph
from .program import Program
from .program.log import Query
from .program.rows import Row
from .recorder import Recorder
from .resolver import Resolver

# Field of `Graph` -> value, and field of `Step` -> value.
GraphValues = Mapping[str, Any]
StepValues = Mapping[str, Any]

# Name of an event -> class of a context manager that installs hooks. The class takes the callback
# of the event as its argument.
Watches = Mapping[str, Callable[[Callable[[Any], None]], Any]]


class BackwardBegan(NamedTuple):
    """A backward is about to run."""

    live: LiveGraph
    outputs: Sequence[Any]  # the roots: tensors or gradient edges
    given: Sequence[Tensor | None]  # gradients of the roots
    asked: list[GradientEdge]  # gradient edges of `inputs`; [] if backward computes all gradients
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
    """The nodes that a backward reaches, for listeners that add nodes behind cuts (`detach`)."""

    graph: Container[GradFn]  # the nodes that backward runs, or would run
    before: set[int]  # id() of the leaves that earlier backwards reached
    failed: bool  # True if an exception ended the recording; the graph then ends at the failure
    peek: bool  # True if there is no backward, and the program continues after the graph is read


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


class Listener(Recorder):
    """A recorder that observes some events of the program.

    Args:
        program: the recorded program, which knows lines, modules and names of tensors.
    """

    # `on_call_end` gets the calls of these functions. A str is the name of a keyword argument: all
    # calls with this argument are included. None: all calls, except those that read only metadata.
    functions: Container[Any] | None = None
    # `on_call_start` gets the calls of those `functions` that are also in this container. None: all
    # calls of `functions`.
    before: Container[Any] | None = None
    # True if `on_call_end` gets a call that created a node only if a tensor of the call requires no
    # gradient, as most data.
    needs_constant: bool = False
    # True if `on_call_end` also gets the accesses to `.grad` that `zero_grad` makes.
    sees_zero_grad: ClassVar[bool] = False
    # Name of an operator, such as "aten::copy_" -> function of its arguments and result.
    # `on_operator` gets a call of the operator if the function returns True.
    operators: ClassVar[Mapping[str, Callable[[Any, Any], bool]]] = {}
    # True if `on_operator` is also called on machines without an accelerator.
    everywhere: ClassVar[bool] = False
    # True if the listener also gets the events of `observe_steps_only` after the recorded steps.
    sees_later_steps: bool = False
    # Additional hooks that this listener needs, by name of the event.
    watches: ClassVar[Watches] = {}

    def __init__(self, program: Program) -> None:
        self.program = program
        self.events = program.events  # receives facts that no node can show

    def hidden_nodes(self, reach: Reach) -> list[GradFn]:
        """Return autograd nodes that the graph shows although backward does not run them.

        The graph will also contain all nodes upstream of them.
        """
        return []

    def edges_before_error(self) -> list[GradientEdge] | None:
        """Return the gradient edges (node, output index) at which the graph of a failed run ends.

        They belong to the operands of the call that raised. Returns None if a backward raised.
        """
        return []

    def on_graphs_built(self, backwards: Sequence[Backward], graphs: Sequence[Graph]) -> None:
        """Handle the end of the first stage, in which all graphs got their node columns."""

    def graph_values(self, graph: Graph, resolver: Resolver) -> GraphValues:
        """Return this listener's values that belong to no single node, by field of `Graph`.

        Args:
            graph: the graph of one backward, which has the node columns only.
            resolver: finds the node ids and texts of this graph.
        """
        return {}

    def step_values(self, resolver: Resolver) -> StepValues:
        """Return this listener's values of the training step, by field of `Step`.

        Args:
            resolver: finds the node ids and texts of the graph of one backward.
        """
        return {}

    def add_to_regions(
        self, regions: Mapping[int, Region], backward: Backward
    ) -> Mapping[int, Region]:
        """Return the compiled regions of a graph, by node, with this listener's values added."""
        return regions

    def persistent_state(self, graphs: Sequence[Graph]) -> Any:
        """Return a value that the recording keeps after the graphs are built; None for no value."""
        return None

    def close(self) -> None:
        """Drop all references and hooks at the end of the block, or after an interrupt."""


class RowListener(Listener):
    """Listener that appends the rows of the events that a query names in `rows_of`.

    Args:
        program: the recorded program.
        query: the class of the query.
    """

    def __init__(self, program: Program, query: type[Query]) -> None:
        super().__init__(program)
        self.functions, self.sees_later_steps = query.functions, query.sees_later_steps
        self.needs_constant = query.needs_constant
        for event, rows in query.rows_of.items():
            setattr(self, event, _appender(rows, program))


def _appender(
    rows: Callable[[Any, Program], Iterable[Row]], program: Program
) -> Callable[[Any], None]:
    """Return a callback that appends the rows of an event.

    A method of the listener would be a reference cycle.

    Args:
        rows: returns the rows of an event.
        program: the recorded program.
    """
    append = program.log.append

    def on_event(event: Any) -> None:
        for row in rows(event, program):
            append(row)

    return on_event
