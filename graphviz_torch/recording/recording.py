"""record(): one `with` block that notes all there is to know of a forward and a backward.

Seen: what the thread that enters it does. Not seen: the forwards of other threads, and what a
region compiled by `torch.compile` does inside.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack, suppress
from dataclasses import replace
from threading import get_ident
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch._guards import TracingContext

from ..graph import Graph, Parameter, SavedKind, Transfer
from ..graph.gc import uncollected
from ..internals.dispatch import Call, Watch, sequence_number
from ..internals.engine import Called, EngineWatch
from ..internals.frames import caller, local_variables
from ..internals.metadata import tensor_meta
from ..internals.optimizer_hooks import StepWatch, held_by_optimizers
from ..internals.pytree import flatten, is_nesting
from ..tracing.names import caller_names
from ..tracing.nodes import made_by
from .across import with_others
from .backward import End, Run, sinks
from .calls import Calls
from .cause import explained
from .failures.operands import Error, Failed
from .history import KeptGraphs
from .modules import Modules
from .profiler import Clock, match
from .source_lines import Place, raised, user_frame
from .tracking import name_of
from .transfers import OPERATORS, Transfers
from .zero_grad import Cleared

_CALLS = 20  # frames


def record(
    model: torch.nn.Module | None = None,
    *,
    gradients: bool = True,
    transfers: bool = True,
    memory: bool = True,
    clock: bool = False,
) -> Recording:
    """Record what happens in a `with` block: forward, backward, or both.

    Args:
        model: gives modules and parameters their names, as in `named_modules()`, and has its
            parameters listed, and no others. None: the first module that is called is the model;
            another outside it goes by the variable that holds it, else by its class; and the
            parameters of every module that is called are listed, or, where none is, the caller's
            leaves whose way to the loss was cut.
        gradients: describe the gradient at every node, and time it.
        transfers: note the copies between devices.
        memory: note what each node keeps for backward.
        clock: time the copies on CUDA with `torch.profiler`, which waits for the device at the end;
            copies of its own that PyTorch makes inside a kernel are listed too.

    The first recording registers two things that stay and then do nothing: operators fall through
    an unused dispatch key, and an optimizer's step looks whether anybody records.

    Returns:
        A context manager; `as recording` gives the Recording, and `recording.graph` the Graph.

    Raises:
        TypeError: if `model` is no module.
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
            f"model is a {type(model).__name__}, not an nn.Module. Pass the model whose forward "
            "runs in the block, or nothing: with record() as recording."
        )
    if clock and not torch.cuda.is_available():
        raise RuntimeError("record(clock=True) times copies on CUDA, and there is no CUDA device.")
    return Recording(model, gradients=gradients, transfers=transfers, memory=memory, clock=clock)


class Recording:
    """What `record()` noted. It holds nothing of the program once the block is left."""

    def __init__(
        self,
        model: torch.nn.Module | None,
        *,
        gradients: bool,
        transfers: bool,
        memory: bool,
        clock: bool,
    ) -> None:
        self._model = model
        self._with = {"gradients": gradients, "transfers": transfers, "memory": memory}
        self._clock = Clock() if clock else None
        self._unmatched: list[Transfer] = []
        self._entered = False
        self._open = False
        self._graphs: list[Graph] = []

    def __enter__(self) -> Recording:
        if self._entered:
            raise RuntimeError("a recording is entered once: call record() for every block.")
        self._entered = True
        self._frame = caller()
        self._thread = get_ident()
        self._first = sequence_number()  # nodes from this number on are in no run yet
        self._runs: list[Run] = []
        self._reached: set[int] = set()  # id() of the variables that these reached
        self._running: Run | None = None
        self._ends: list[End] = []  # outputs of the last outermost module call
        self._cleared = Cleared()
        self._uncleared: Place | None = None  # where gradients were used a second time
        self._steps = 0  # of optimizers
        self._stepped: set[int] | None = None  # id() of what they updated
        self._held: set[int] | None = None  # id() of what any optimizer holds
        self._kept = KeptGraphs(self._variable, lambda n: self._modules.found([n])["source"][0])
        self._modules = Modules(self._model, self._returned)
        self._transfers = Transfers()
        self._calls = Calls(self._modules)
        with ExitStack() as stack:
            stack.enter_context(self._modules)
            backwards = EngineWatch(self._begin, self._end)
            stack.callback(backwards.close)
            backwards.open()
            steps = StepWatch(self._step, self._stepped_by)
            stack.callback(steps.close)
            steps.open()
            if self._clock is not None:
                stack.enter_context(self._clock)
            if self._with["transfers"]:
                stack.enter_context(Watch(OPERATORS, self._copied))
            stack.enter_context(self._calls)
            self._stack = stack.pop_all()
        self._open = True
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        enabled = torch.is_grad_enabled()
        try:
            self._stack.close()
            for run in self._runs:
                run.unhook()
            if self._clock is not None:
                self._unmatched = match(self._transfers.seen, self._clock.copies)
            if error is not None:
                self._fail(error)
            self._graphs = self.graphs
        finally:
            torch._C._set_grad_enabled(enabled)  # an interrupt may have come where it was off
            self._open = False
            self._model = None
            self._modules.close()
            for name in ("_frame", "_runs", "_ends", "_calls", "_transfers", "_kept", "_cleared"):
                delattr(self, name)

    @property
    def graph(self) -> Graph:
        """The graph of the last backward. After an exception: the graph up to it.

        Without a backward: the graph of what the outermost module returned, and of the caller's
        variables.

        Raises:
            ValueError: if nothing was recorded.
        """
        graphs = self.graphs
        if not graphs:
            raise ValueError(
                "nothing was recorded: no backward ran in the block, and no module was called that "
                "returned a tensor with requires_grad. Run forward and backward inside the block."
            )
        return graphs[-1]

    @property
    def graphs(self) -> list[Graph]:
        """A graph for each backward that ran in the block, in order."""
        if not self._open:
            return self._graphs
        runs = list(self._runs)
        if not runs and (ends := self._last_ends()):
            runs = [self._read(ends)]
            runs[0].finish()
        self._held = None  # looked for once for all graphs
        with uncollected():
            return with_others([self._graph(run) for run in runs])

    def _last_ends(self) -> list[End]:
        assert self._frame is not None
        ends = list(self._ends)
        for _, tensor in self._names_in(self._frame):
            if tensor.grad_fn is not None and tensor.grad_fn._sequence_nr() >= self._first:
                ends.append((tensor.grad_fn, tensor.output_nr))
        return sinks(ends)

    def _read(self, ends: list[End], *, failed: bool = False) -> Run:
        parameters = self._modules.parameters()
        here = user_frame(sys._getframe(1))
        named = self._names_in(here)
        if here is not self._frame:
            named += self._names_in(self._frame)
        cuts = self._calls.cuts.take()
        known_as = parameters + named
        run = Run(ends, known_as, parameters, len(self._runs), self._reached, cuts, failed)
        run.place = self._modules.place(here)
        if self._with["memory"]:
            known: list[tuple[SavedKind, Tensor]] = []
            known += [("parameter", tensor) for _, tensor in parameters]
            known += [("buffer", tensor) for tensor in self._modules.buffers()]
            known += [("input", tensor) for tensor in self._modules.inputs()]
            run.keep(known)
        if self._calls.scaler is not None:
            scale = self._calls.scaler._scale  # private: get_scale() would wait for the device
            with suppress(RuntimeError):  # of a device that has failed: the user is told by others
                run.loss_scale = None if scale is None else scale.detach().clone()
        self._ends = []
        self._calls.scaler = self._calls.failed = None
        self._modules.new_step()
        return run

    def _names_in(self, frame: FrameType | None) -> list[tuple[str, Tensor]]:
        variables = {} if frame is None else local_variables(frame)
        modules = [
            value for value in variables.values() if issubclass(type(value), torch.nn.Module)
        ]
        named = caller_names(
            {k: v for k, v in variables.items() if issubclass(type(v), Tensor) or is_nesting(v)}
        )
        if self._model is None:
            named += [pair for module in modules for pair in caller_names(module)]
        return named

    def _graph(self, run: Run) -> Graph:
        graph = run.annotated(self._modules)
        line = self._modules.lines()
        found = [
            seen.transfer(run.node_of(seen), line(seen.place)) for seen in self._transfers.seen
        ]
        # Of the copies that trace reads from the graph alone, those that backward did not run.
        ahead = [
            copy
            for copy in graph.transfers
            if copy.node is None or graph.nodes[copy.node].order is None
        ]
        failure = None
        if run.failed is not None:
            failure = run.failed.value(lambda n: self._modules.found([n])["source"][0], line)
            if run.failed.error == run.error:
                failure = explained(failure, run, self._runs[: run.position], self._modules)
        return replace(
            graph,
            transfers=(*found, *ahead, *self._unmatched),
            parameters=self._parameters(run),
            failure=failure,
        )

    def _parameters(self, run: Run) -> tuple[Parameter, ...]:
        # What a compiled region calls inside is not known.
        columns = run.reading.columns
        unseen = None if any("compile" in note for note in set(columns["note"])) else False
        stepped, called = self._stepped, self._modules.was_called
        outputs = columns["outputs"]
        listed = self._modules.listed()
        if not listed:  # no module was called: what should learn is not known, but what cannot is
            named = ((key, node, columns["label"][node]) for key, node in run.cut_off.items())
            reached = {key for other in self._runs for key in other.reached}
            return tuple(
                Parameter(label, meta, True, node, reached=key in reached)
                for key, node, label in named
                if label and (meta := outputs[node][0]) is not None
            )
        idle = stepped is not None and any(
            id(tensor) not in stepped and tensor.grad is not None for _, tensor in listed
        )
        if idle and self._held is None:
            self._held = held_by_optimizers()
        found = []
        for name, tensor in listed:
            node = run.parameters.get(name)
            meta = None if node is None else outputs[node][0]
            found.append(
                Parameter(
                    name,
                    meta or tensor_meta(tensor),
                    tensor.requires_grad,
                    node,
                    node is not None or called(name) or unseen,
                    tensor.grad is not None,
                    None if stepped is None else id(tensor) in stepped,
                    held=None if self._held is None else id(tensor) in self._held,
                )
            )
        return tuple(found)

    def _variable(self, tensor: Tensor) -> str:
        """The variable that a tensor is in, as itself or in a list or the like."""
        for frame in (user_frame(sys._getframe(1)), self._frame):
            for name, value in local_variables(frame).items() if frame is not None else ():
                if any(part is tensor for _, part in flatten(value, ask=False)):
                    return name
        return ""

    # What the recorders report.

    def _returned(self, outputs: Any) -> None:
        self._ends = [end for _, tensor in flatten(outputs, ask=False) for end in _end(tensor)]

    def _copied(self, call: Call) -> None:
        fn = torch._C._current_autograd_node()
        run = self._running  # read once: another thread's call may find that it has just ended
        ours = {} if run is None else run.ids
        if get_ident() != self._thread and fn not in ours:
            return  # another recording's; the engine's threads for devices work for this one
        for seen, source, made in self._transfers.see(call):
            frame = user_frame(sys._getframe(1))
            # The engine's threads have no frames of the user's.
            seen.place = self._modules.place(frame) or (None if run is None else run.place)
            seen.module = self._modules.module
            seen.in_forward = self._modules.in_forward
            seen.moment = self._modules.calls + len(self._runs)
            if fn is not None:
                seen.run = len(self._runs)
                seen.node = ours.get(fn)
            else:
                seen.operation = name_of(self._calls.calling)
                seen.label = self._calls.label(source, frame)
                if made is not None:
                    self._calls.copied.append((made, seen))

    def _step(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        if get_ident() != self._thread:
            return
        self._steps += 1
        place = self._modules.place(user_frame(sys._getframe(1)))
        self._calls.changes.steps(optimizer, place)
        self._calls.stepping = True
        if self._cleared.step(optimizer) and self._runs:
            self._runs[-1].uncleared = self._uncleared = place
        self._stepped = self._stepped or set()
        self._stepped.update(id(p) for group in optimizer.param_groups for p in group["params"])

    def _stepped_by(self, optimizer: torch.optim.Optimizer) -> None:
        if get_ident() == self._thread:
            self._calls.changes.stepped(optimizer)
            self._calls.stepping = False

    def _begin(self, called: Called) -> Run | None:
        ends = [end for output in called.outputs for end in _end(output)]
        if not ends or self._running is not None or _is_trial():
            return None  # the engine will object; or inside a node: reentrant checkpointing
        self._calls.stepping = False  # of a step that raised nothing is told
        with uncollected():
            self._cleared.begin()
            run = self._running = self._read(ends)
            run.uncleared = self._uncleared
            run.keeps, run.grads = called.keeps, not called.accumulates
            run.step, run.calls = self._steps, self._calls_of(user_frame(sys._getframe(1)))
            self._runs.append(run)
            self._reached |= run.reached
            if self._with["gradients"]:
                run.start([end for value in called.inputs for end in _end(value)])
        run.look(self._kept, self._steps)
        return run

    def _calls_of(self, frame: FrameType | None) -> list[Place]:
        """The user's lines that lead to a frame from the one that entered the recording."""
        found: list[Place] = []
        while frame is not None and len(found) < _CALLS:
            found.append((frame.f_code, frame.f_lasti))
            frame = None if frame is self._frame else user_frame(frame.f_back)
        return found

    def _end(self, run: Run | None, gradients: Any, error: BaseException | None) -> None:
        if run is not None:
            with uncollected():
                if error is not None:
                    run.fail(error, self._calls.changes, self._runs[: run.position])
                run.finish(gradients)
            self._cleared.end()
            self._running = None
            self._first = sequence_number()

    def _fail(self, error: BaseException) -> None:
        failed = self._calls.failed
        told, inner = Error.of(error), raised(error, self._modules.foreign)
        if failed is None or failed.error != told:
            failed = Failed(told, place=inner)
        if self._runs and self._runs[-1].error == told:
            failed.raised = None if inner == failed.place else inner
        else:
            ends = [(part.fn, part.output_nr) for part in failed.operands if part.fn is not None]
            ends = ends or self._last_ends()
            if ends or not self._runs:
                run = self._read(ends, failed=True)
                for part in failed.operands:
                    part.node = run.ids.get(part.fn)
                run.finish()
                self._runs.append(run)
        self._runs[-1].failed = failed


def _is_trial() -> bool:
    """Is a backward torch.compile's trial of the program, or a part of a torch.func transform."""
    # Private (2.13).
    transformed = torch._C._functorch.maybe_current_level() is not None
    return transformed or TracingContext.try_get() is not None


def _end(output: Any) -> list[End]:
    if isinstance(output, Tensor):
        fn = made_by(output)
        return [] if fn is None else [(fn, output.output_nr)]
    return [(output.node, output.output_nr)]
