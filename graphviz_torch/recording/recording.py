"""Record forward and backward in a `with record()` block.

Only the thread that enters the block is observed. Forwards in other threads are not recorded.

    record()      returns a Recording
    Recording     installs the hooks of internals/ while the block is open
    Session       passes the hooks' events to the listeners
    LiveGraph     a graph while its nodes are alive
    Backward      a finished backward as plain values
    graphs_of     builds a Graph from each Backward, with the values of the listeners
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
from ..internals.hooks.collectives import CollectiveWatch
from ..internals.hooks.dispatch import OperatorWatch
from ..internals.hooks.engine import EngineWatch
from ..internals.hooks.modules import ModuleWatch
from ..internals.hooks.optimizers import BatchWatch, StepWatch
from ..internals.hooks.regions import RegionWatch
from ..internals.hooks.weights import (
    InitializationWatch,
    LoadStateWatch,
    OverridableInitializationWatch,
)
from ..internals.hooks.zero_grad import ZeroGradWatch
from ..internals.tensors.references import SwapSafeRefs
from .compiled_regions import Regions
from .compiled_trace import OperationTrace
from .failures import add_note
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
    """Record forward and backward passes that run in a `with` block.

    Args:
        model: the model. Its modules and parameters are named as in `model.named_modules()`, and
            only its parameters are listed. If None, the first module that is called is the model,
            unless the calling code has several models, such as the two networks of a GAN. Every
            other module is then named after its variable, or else after its class, and the
            parameters of every called module are listed. If no module is called, the leaves in the
            caller's variables that do not reach the loss are listed.
        gradients: record statistics of the gradient at every node, and the node's duration.
            "finite": only report non-finite gradients, and the first non-finite result of the
            forward. This is cheaper than `torch.autograd.detect_anomaly`, and raises no exception.
            Arguments, losses, gradient lifetimes and retained graphs are then not checked.
        transfers: record copies between devices.
        memory: record the saved tensors of each node. If None, they are recorded unless `gradients`
            is "finite".
        clock: measure copies on CUDA with `torch.profiler`, which synchronizes when the block ends.
            Copies that are part of an operator are then listed, too.
        notes: if an exception ends the block, add a note of up to three lines to the exception. It
            names the cause, the source line and a remedy, as `find` reports them. Tracebacks show
            the note. On Python 3.10, where they do not, it is written to stderr.
        compiled: "open": show the operations inside regions made by `torch.compile`, as far as
            known. "closed": show each region as one node. "eager": run the block without compiled
            code, in all threads. Values and durations are then those of eager mode. Compiled code
            is used again after the block.
        fingerprints: record a fingerprint of each forward result and each leaf. `first_difference`
            compares the fingerprints of two runs to find where these diverge. Results that have no
            autograd node get no fingerprint; the forward must therefore run with gradients enabled.
        experiments: keep the data that `experiment` and `influence` need: the first outermost
            module called with gradients enabled, copies of its arguments and buffers, and the
            random state. The data live as long as the recording.

    After the first recording of a process, two things stay installed, which have no effect outside
    of a recording: a fallthrough kernel for a dispatch key that PyTorch does not use, and a check
    in `Optimizer.step` for an active recording.

    Returns:
        A Recording, which is a context manager. Its `graph` is the graph of the last backward.

    Raises:
        TypeError: if `model` is not a module.
        ValueError: if `gradients` or `compiled` has another value than those above.
        RuntimeError: if `clock` is True without a CUDA device.

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
        raise ValueError(f'compiled={compiled!r}: pass "open", "closed" or "eager".')
    if clock and not torch.cuda.is_available():
        raise RuntimeError("record(clock=True) times copies on CUDA, and there is no CUDA device.")
    keeps = gradients != "finite" if memory is None else memory
    options = Options(gradients, transfers, keeps, notes, compiled, fingerprints, experiments)
    return Recording(model, options, clock=clock)


class Recording:
    """A recorded block. After the block it keeps no tensor or module of the program alive.

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
        self._session: Session | None = None  # set while the block is open
        self._hooks: list[Any] = []  # installed hooks, which notify the session
        self._graphs: list[Graph] = []
        self._missed: list[str] = []  # "not recorded" notes
        self.first_call: RecordedCall | None = None  # set with `experiments=True`

    def __enter__(self) -> Recording:
        if self._entered:
            raise RuntimeError(
                "a recording can be entered only once: call record() again for every block."
            )
        try:
            self._entered = True
            self._session = Session(self._model, caller_frame(), self._options)
            self._install_hooks(self._session)
            return self
        except BaseException:
            self._close()
            raise

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        try:
            if not self._entered:
                raise RuntimeError("this recording was not entered: with record() as recording.")
            if self._session is not None:  # None if the block was left before
                self._end(self._session, error)
        finally:
            self._close()

    def __repr__(self) -> str:
        # A debugger may print the recording while the block is open.
        if not self._entered or self._session is not None:
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
        from ..findings.check import find  # imported late: the rules are slow to load

        for worst in find(self)[:1]:
            at = f" at {worst.where}" if worst.where else ""
            parts.append(f"{worst.severity}: {worst.rule}{at}")
        return f"Recording({', '.join(parts)})"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        complete = self._session is None and self._graphs
        return mime_bundle(self, include, exclude) if complete else {"text/plain": repr(self)}

    @property
    def graph(self) -> Graph:
        """The graph of the last backward; after an exception, the graph up to the failure.

        If no backward ran, it is the graph of the last outermost module's outputs and of the
        tensors in the caller's variables.

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
        """The graphs of all backwards that ran in the block, in order."""
        return self._graphs if self._session is None else self._session.graphs()

    def next_step(self) -> list[Graph]:
        """End a training step and return its graphs, which the recording does not keep.

        The recording keeps only weak references, for the checks of later steps: to gradients that
        were used, to graphs, and to tensors that were changed in place.

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
        session.tell("on_next_step", None)
        graphs = session.program.remarks.attempt(session.graphs) or []
        self._keep_first_call(session, graphs)
        session.end_step(caller_frame())
        return graphs

    def ineffective_calls(self) -> list[Event]:
        """Return the calls since the last step that have no effect.

        An example is functional dropout in eval mode. The list is empty if a backward ran since the
        last step. Such calls are then in the `events` of that backward's graph.

        Raises:
            RuntimeError: outside of the block.
        """
        session = self._open_session()
        return session.program.remarks.attempt(session.ineffective_calls) or []

    def number_step(self, number: int) -> None:
        """Set the number of the current step. Steps count from 0.

        Raises:
            RuntimeError: outside of the block.
        """
        self._open_session().program.step = number

    def pause(self) -> None:
        """Stop recording until `resume()` is called. A paused recording takes no time.

        Call this between training steps.

        Raises:
            RuntimeError: outside of the block.
        """
        self._open_session().program.resume(None)  # drops the frame, which keeps variables alive
        self._remove_hooks()

    def resume(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Record again after `pause()`.

        Args:
            optimizer: an optimizer that stepped just before this call. If the program does not
                clear the gradients of this optimizer's parameters, that is reported.

        Raises:
            RuntimeError: outside of the block.
        """
        session = self._open_session()
        if not self._hooks:
            session.resume(caller_frame(), optimizer)
            self._install_hooks(session)

    def observe_steps_only(self) -> None:
        """Observe only losses, steps, batches, loaded states and initializations from now on.

        Raises:
            RuntimeError: outside of the block.
        """
        self.pause()
        session = self._open_session()
        session.drop_detail()
        self._enter_hooks(_step_hooks_of(session))

    def end_program(self) -> list[Event]:
        """Return the calls without effect that are known once the program has ended.

        Raises:
            RuntimeError: outside of the block.
        """
        session = self._open_session()
        session.tell("on_program_end", None)
        return self.ineffective_calls()

    def _keep_first_call(self, session: Session, graphs: list[Graph]) -> None:
        attempt = session.program.remarks.attempt
        for listener in session.listeners if self.first_call is None else ():
            self.first_call = self.first_call or attempt(listener.persistent_state, graphs)

    def _open_session(self) -> Session:
        if self._session is None:
            raise RuntimeError("this recording is not open: call this inside its `with` block.")
        return self._session

    def _install_hooks(self, session: Session) -> None:
        """Install the hooks, which notify the session."""
        hooks = _hooks_of(session)
        if self._clock is not None:
            hooks.insert(0, self._clock)
        self._enter_hooks(hooks)

    def _enter_hooks(self, hooks: list[Any]) -> None:
        for hook in hooks:
            self._hooks.append(hook)  # first, so that it is removed after an interrupt
            hook.__enter__()

    def _end(self, session: Session, error: BaseException | None) -> None:
        """Build the graphs at the end of the block."""
        enabled, collects = torch.is_grad_enabled(), gc.isenabled()
        try:
            self._remove_hooks()
            if self._clock is not None:
                session.tell("on_copies_timed", self._clock.copies)
            if error is not None:
                session.fail(error)
            attempt = session.program.remarks.attempt
            self._graphs = attempt(session.graphs) or []
            self._missed = list(session.program.remarks.missed)
            self._keep_first_call(session, self._graphs)
            if error is not None and self._options.notes and self._graphs:
                attempt(add_note, error, self._graphs[-1])
        finally:
            # An interrupt may have left gradients or the garbage collector disabled.
            if torch.is_grad_enabled() is not enabled:
                set_grad_enabled(enabled)
            if collects:
                gc.enable()

    def _remove_hooks(self) -> None:
        """Remove the hooks, the last one first."""
        while self._hooks:
            self._hooks[-1].__exit__(None, None, None)
            self._hooks.pop()

    def _close(self) -> None:
        """Remove the hooks, and drop all references to the program."""
        try:
            self._remove_hooks()
        finally:
            if self._session is not None:
                self._session.close()
            self._session = self._model = None


def _step_hooks_of(session: Session) -> list[Any]:
    """Return the hooks that notify a session after the recorded steps."""
    callback = session.callback
    return [
        SwapSafeRefs(session.release),
        session.program,
        EngineWatch(callback("on_later_backward"), lambda event: None),
        StepWatch(callback("on_optimizer_step_start"), callback("on_optimizer_step_end")),
        BatchWatch(callback("on_batch")),
        InitializationWatch(callback("on_initialize")),
        OverridableInitializationWatch(callback("on_initialize")),
        LoadStateWatch(callback("on_state_loaded")),
    ]


def _hooks_of(session: Session) -> list[Any]:
    """Return the hooks that notify a session, in the order in which they are installed."""
    program, callback, any_thread_callback = (
        session.program,
        session.callback,
        session.any_thread_callback,
    )
    if program.options.opens_regions:
        program.table.trace_calls()
    found: list[Any] = [
        SwapSafeRefs(session.release),
        program,
        RegionWatch(
            OperationTrace,
            partial(Regions, program, callback("on_region_end")),
            callback("on_observed"),
        ),
        WarningLines(CallWatch.__torch_function__),
        ModuleWatch(callback("on_module_start"), callback("on_module_end")),
        EngineWatch(session.begin, session.end),
        StepWatch(callback("on_optimizer_step_start"), callback("on_optimizer_step_end")),
        CaptureWatch(on_replay=session.on_cuda_graph_replay),
        session.checkpoints,
        # Also with gradients="finite": if the function mode sees no access to `.grad`, `zero_grad`
        # takes a third of the time.
        ZeroGradWatch(callback("on_gradients_cleared")),
    ]
    # A hook that several listeners request is installed once.
    own = dict.fromkeys(pair for each in session.listeners for pair in each.watches.items())
    if any(hasattr(each, "on_batch") for each in session.listeners):
        own["on_batch", BatchWatch] = None
    found += [watch(callback(event)) for event, watch in own]
    asked = dict.fromkeys(watch for query in program.log.queries for watch in query.watches)
    found += [watch(callback("on_observed")) for watch in asked]
    if program.options.compiled == "eager":
        found.append(EagerStance(program.remarks.ran_eager, program.remarks.miss))
    for listener in session.listeners:
        if listener.operators:
            # The autograd engine runs operators of this program in threads of its own. Operators of
            # all threads are therefore passed on, and the listener selects those of this program.
            pass_on = any_thread_callback("on_operator", (listener,))
            found.append(OperatorWatch(listener.operators, pass_on, everywhere=listener.everywhere))
    if any(hasattr(listener, "on_collective") for listener in session.listeners):
        sent, waited = (
            any_thread_callback("on_collective"),
            any_thread_callback("on_collective_wait"),
        )
        found.append(CollectiveWatch(on_issue=sent, on_wait_end=waited))
    calls = session.receivers("on_call_end"), program.key, program.remarks.miss
    return [*found, CallWatch(*calls, program.switches)]
