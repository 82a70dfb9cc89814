"""record(): one `with` block that notes all there is to know of a forward and a backward.

Seen: what the thread that enters it does, and what the backward of a region computes that
`torch.compile` made. Not seen: the forwards of other threads.

    record() ─► Recording     opens the seams of internals/, which tell
                Session       the listeners, until the block ends
                LiveGraph     a graph while its nodes are alive
                Backward      the same when it is over, as plain values
                graphs_of     ─► Graph, with what the listeners give
"""

from __future__ import annotations

import gc
from functools import partial
from typing import Any, Literal, get_args

import torch

from ..graph import Event, Graph
from ..graph.registry import mime_bundle
from ..graph.text import type_text
from ..graph.units import count_text
from ..internals.compiler.stance import EagerStance
from ..internals.frames import WarningLines, caller_frame
from ..internals.guards import set_grad_enabled
from ..internals.hooks.calls import CallWatch
from ..internals.hooks.captures import CaptureWatch
from ..internals.hooks.collectives.watch import CollectiveWatch
from ..internals.hooks.dispatch import OperatorWatch
from ..internals.hooks.engine import EngineWatch
from ..internals.hooks.modules import ModuleWatch
from ..internals.hooks.optimizers import StepWatch
from ..internals.hooks.regions import RegionWatch
from ..internals.recursion import RecursionRoom
from ..internals.tensors.weak import SwapSafeRefs
from .compiled.regions import Regions
from .compiled.trace import OperationTrace
from .failures.note import add_note
from .modules.first_call import RecordedCall
from .program.program import Compiled, Options
from .session import Session
from .transfers.profiler import Clock


def record(
    model: torch.nn.Module | None = None,
    *,
    gradients: bool | Literal["finite"] = True,
    transfers: bool = True,
    memory: bool | None = None,
    clock: bool = False,
    notes: bool = True,
    compiled: Compiled = "open",
    fingerprints: bool = False,
    experiments: bool = False,
) -> Recording:
    """Record what happens in a `with` block: forward, backward, or both.

    Args:
        model: gives modules and parameters their names, as in `named_modules()`, and has its
            parameters listed, and no others. None: the first module that is called is the model,
            unless the code that calls it holds several, such as the two players of a GAN. Then the
            variable that holds a module names it, else its class; so it is for every other module,
            too. The parameters of every module that is called are listed, or, where none is, the
            caller's leaves whose way to the loss was cut.
        gradients: describe the gradient at every node, and time it. "finite": tell only which
            gradients are not finite, and which result of the forward was the first; that is cheaper
            than `torch.autograd.detect_anomaly`, and raises nothing. Arguments, losses, the life of
            gradients and graphs that are kept are not looked at.
        transfers: note the copies between devices.
        memory: note what each node keeps for backward. None: unless `gradients` is "finite".
        clock: time the copies on CUDA with `torch.profiler`, which waits for the device at the end;
            copies of its own that PyTorch makes inside a kernel are listed too.
        notes: where an exception ends the block, add to it, in at most three lines, what `find`
            says of its cause, the line and what to try. Its traceback shows them; Python 3.10
            writes them to stderr. False: leave it as it is.
        compiled: show what a region that `torch.compile` made does inside, as far as it is known.
            "closed": leave it one node. "eager": run the block as it is written, with no compiled
            code in any thread, so that all is known; its numbers and its time are eager's. What was
            compiled is used again afterwards. "gradients": as "open", and run each region's
            backward once more, operation by operation, for the gradients of the nodes inside.
        fingerprints: note a fingerprint of each result of the forward and of each leaf, by which
            `first_difference` tells where two runs part. What makes no node has none: run the
            forward with gradients on.
        experiments: keep what `experiment` and `influence` need: the first outermost module that is
            called with gradients, copies of its arguments and buffers, and the random state. The
            recording holds them as long as it lives.

    The first recording registers two things that stay and then do nothing: operators fall through
    an unused dispatch key, and an optimizer's step looks whether anybody records.

    Returns:
        A context manager; `as recording` gives the Recording, and `recording.graph` the Graph.

    Raises:
        TypeError: if `model` is not a module.
        ValueError: for other `gradients` or `compiled`.
        RuntimeError: for `clock=True` without CUDA.

    >>> x = torch.arange(1, 4, dtype=torch.float32, requires_grad=True)
    >>> with record() as recording:
    ...     y = ((x + 2) ** 2 + 3).mean()
    ...     y.backward()
    >>> [round(value, 4) for value in recording.graph.nodes[0].grad_outputs[0].values]
    [2.0, 2.6667, 3.3333]
    """
    if model is not None and not isinstance(model, torch.nn.Module):
        raise TypeError(
            f"model is {type_text(model)}, not an nn.Module. Pass the model whose forward "
            "runs in the block, or nothing: with record() as recording."
        )
    if gradients not in (True, False, "finite"):
        raise ValueError(f'gradients={gradients!r}: pass True, False or "finite".')
    if compiled not in get_args(Compiled):
        raise ValueError(f'compiled={compiled!r}: pass "open", "closed", "eager" or "gradients".')
    if clock and not torch.cuda.is_available():
        raise RuntimeError("record(clock=True) times copies on CUDA, and there is no CUDA device.")
    keeps = gradients != "finite" if memory is None else memory
    options = Options(gradients, transfers, keeps, notes, compiled, fingerprints, experiments)
    return Recording(model, options, clock=clock)


class Recording:
    """The result of `record()`. It keeps nothing of the program alive after the block.

    >>> import torch
    >>> from graphviz_torch import record
    >>> model = torch.nn.Linear(2, 1)
    >>> with record(model) as recording:
    ...     model(torch.ones(4, 2)).sum().backward()
    >>> recording
    Recording(5 nodes, 2 parameters, 1 backward)
    >>> len(recording.graph.nodes), len(recording.graph.parameters)
    (5, 2)
    """

    def __init__(
        self,
        model: torch.nn.Module | None,
        options: Options,
        *,
        clock: bool,
    ) -> None:
        self._model = model
        self._options = options
        self._clock = Clock() if clock else None
        self._entered = False
        self._session: Session | None = None  # while the block is open
        self._seams: list[Any] = []  # what tells the session
        self._graphs: list[Graph] = []
        self._missed: list[str] = []  # what could not be read, and why
        self.first_call: RecordedCall | None = None  # of `experiments=True`

    def __enter__(self) -> Recording:
        if self._entered:
            raise RuntimeError("a recording is entered once: call record() for every block.")
        try:
            self._entered = True
            self._session = Session(self._model, caller_frame(), self._options)
            self._open(self._session)
            return self
        except BaseException:
            self._close()
            raise

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        try:
            if not self._entered:
                raise RuntimeError("this recording was not entered: with record() as recording.")
            if self._session is not None:  # else it is left already
                self._end(self._session, error)
        finally:
            self._close()

    def __repr__(self) -> str:
        if not self._entered or self._session is not None:  # a debugger may look while it records
            return f"Recording({'open' if self._entered else 'not entered'})"
        if not self._graphs:
            return "Recording(nothing was recorded)"
        last, named = self._graphs[-1], {p.name for graph in self._graphs for p in graph.parameters}
        ran = sum(any(n.order is not None for n in graph.nodes) for graph in self._graphs)
        counts = [
            (sum(len(graph.nodes) for graph in self._graphs), "node"),
            (len(named), "parameter"),
            (ran, "backward"),
            (len(last.transfers), "transfer"),
        ]
        parts = [count_text(n, name) for n, name in counts if n or name == "node"]
        from ..findings import find  # the rules are loaded where they are needed

        for worst in find(self)[:1]:
            at = f" at {worst.where}" if worst.where else ""
            parts.append(f"{worst.severity}: {worst.rule}{at}")
        return f"Recording({', '.join(parts)})"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        complete = self._session is None and self._graphs
        return mime_bundle(self, include, exclude) if complete else {"text/plain": repr(self)}

    @property
    def graph(self) -> Graph:
        """The graph of the last backward. After an exception: the graph up to it.

        Without a backward: the graph of the outermost module's result, and of the caller's
        variables.

        Raises:
            ValueError: if nothing was recorded.
        """
        graphs = self.graphs
        if not graphs and self._missed:
            raise ValueError("; ".join(self._missed))
        if not graphs:
            raise ValueError(
                "nothing was recorded: no backward ran in the block, and no module was called that "
                "returned a tensor with requires_grad. Run forward and backward inside the block."
            )
        return graphs[-1]

    @property
    def graphs(self) -> list[Graph]:
        """A graph for each backward that ran in the block, in order."""
        return self._graphs if self._session is None else self._session.graphs()

    def next_step(self) -> list[Graph]:
        """End a step of a run, and return its graphs, which the recording no longer keeps.

        For later steps it remembers, by weak references, which gradients were used, whose graphs
        are alive, and what was changed in place.

        Returns:
            A graph for each backward of the step, in order.

        Raises:
            RuntimeError: outside of the block.

        >>> weight = torch.ones(2, requires_grad=True)
        >>> with record() as recording:
        ...     steps = []
        ...     for _ in range(3):
        ...         weight.square().sum().backward()
        ...         steps.append(recording.next_step())
        >>> [len(graphs) for graphs in steps]
        [1, 1, 1]
        """
        session = self._open_session()
        graphs = session.program.remarks.attempt(session.graphs) or []
        self._take_first_call(session, graphs)
        session.end_step(caller_frame())
        return graphs

    def ineffective_calls(self) -> list[Event]:
        """Return the calls without effect since the last step, such as dropout in an evaluation,
        if no backward has run since.

        Raises:
            RuntimeError: outside of the block.
        """
        session = self._open_session()
        return session.program.remarks.attempt(session.ineffective_calls) or []

    def number_step(self, number: int) -> None:
        """Set the number of the current step; the first is 0, and each next one is one more.

        Raises:
            RuntimeError: outside of the block.
        """
        self._open_session().program.step = number

    def pause(self) -> None:
        """Stop recording until `resume()`, at no cost. Call it between two steps of a run.

        Raises:
            RuntimeError: outside of the block.
        """
        self._open_session().program.resume(None)  # a frame that has returned holds its variables
        self._unplug()

    def resume(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Record again after `pause()`.

        Args:
            optimizer: one that has stepped just now: whether its gradients are cleared is known
                from here on.

        Raises:
            RuntimeError: outside of the block.
        """
        session = self._open_session()
        if not self._seams:
            session.resume(caller_frame(), optimizer)
            self._open(session)

    def _take_first_call(self, session: Session, graphs: list[Graph]) -> None:
        attempt = session.program.remarks.attempt
        for listener in session.listeners if self.first_call is None else ():
            self.first_call = self.first_call or attempt(listener.persistent_state, graphs)

    def _open_session(self) -> Session:
        if self._session is None:
            raise RuntimeError("this recording is not open: steps are told apart in its block.")
        return self._session

    def _open(self, session: Session) -> None:
        """Open PyTorch's patch points for the session."""
        seams = _seams_of(session)
        if self._clock is not None:
            seams.insert(0, self._clock)
        for seam in seams:
            self._seams.append(seam)  # first: an interrupt may come between the two
            seam.__enter__()

    def _end(self, session: Session, error: BaseException | None) -> None:
        """Build the graphs."""
        enabled, collects = torch.is_grad_enabled(), gc.isenabled()
        try:
            self._unplug()
            if self._clock is not None:
                session.tell("on_copies_timed", self._clock.copies)
            if error is not None:
                session.fail(error)
            attempt = session.program.remarks.attempt
            self._graphs = attempt(session.graphs) or []
            self._missed = list(session.program.remarks.missed)
            self._take_first_call(session, self._graphs)
            if error is not None and self._options.notes and self._graphs:
                attempt(add_note, error, self._graphs[-1])
        finally:
            if torch.is_grad_enabled() is not enabled:  # an interrupt came where it was not
                set_grad_enabled(enabled)
            if collects:
                gc.enable()

    def _unplug(self) -> None:
        """Close the patch points."""
        while self._seams:
            self._seams[-1].__exit__(None, None, None)
            self._seams.pop()

    def _close(self) -> None:
        """Drop all references to the program."""
        try:
            self._unplug()
        finally:
            if self._session is not None:
                self._session.close()
            self._session = self._model = None


def _seams_of(session: Session) -> list[Any]:
    """Return the patch points that notify a session, in opening order."""
    program, telling, telling_any = session.program, session.telling, session.telling_any
    if program.options.opens_regions:
        program.table.trace_calls()
    found: list[Any] = [
        RecursionRoom(),
        SwapSafeRefs(session.release),
        program,
        RegionWatch(
            OperationTrace,
            partial(Regions, program, telling("on_region_end")),
            telling("on_function_skipped"),
        ),
        WarningLines(CallWatch.__torch_function__),
        ModuleWatch(telling("on_module_start"), telling("on_module_end")),
        EngineWatch(session.begin, session.end),
        StepWatch(telling("on_optimizer_step_start"), telling("on_optimizer_step_end")),
        CaptureWatch(on_replay=session.replayed),
        session.checkpoints,
    ]
    # Each once, however many ask for it.
    own = dict.fromkeys(pair for each in session.listeners for pair in each.watches.items())
    found += [watch(telling(event)) for event, watch in own]
    if program.options.compiled == "eager":
        found.append(EagerStance(program.remarks.ran_eager, program.remarks.miss))
    for listener in session.listeners:
        if listener.operators:
            # The engine's threads for devices work for this program too: whose operator one is, the
            # listener finds out.
            hand_on = telling_any("on_operator", (listener,))
            found.append(OperatorWatch(listener.operators, hand_on, everywhere=listener.everywhere))
    if any(hasattr(listener, "on_collective") for listener in session.listeners):
        sent, waited = telling_any("on_collective"), telling_any("on_collective_wait")
        found.append(CollectiveWatch(on_issue=sent, on_wait_end=waited))
    calls = session.audience("on_call_end"), program.key, program.remarks.miss
    return [*found, CallWatch(*calls, program.switches)]
