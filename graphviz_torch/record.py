"""record(): one `with` block that notes all there is to know of a forward and a backward.

Seen: what the thread that enters it does. Not seen: the forwards of other threads, and what a
region compiled by `torch.compile` does inside.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from .dispatch import Call, Watch, sequence_number
from .engine import EngineWatch
from .following import ASIDE, Following, tensors
from .graph import Graph
from .modules import Modules
from .names import caller, caller_names
from .run import End, Run
from .tracer import flatten
from .transfers import OPERATORS, Seen, Transfers


def record(
    model: torch.nn.Module | None = None, *, gradients: bool = True, transfers: bool = True
) -> Recording:
    """Record what happens in a `with` block: forward, backward, or both.

    Args:
        model: gives modules and parameters their names, as in `named_modules()`; None takes the
            first module that is called.
        gradients: describe the gradient at every node, and time it.
        transfers: note the copies between devices.

    Returns:
        A context manager; `as recording` gives the Recording, and `recording.graph` the Graph.

    >>> x = torch.arange(1, 4, dtype=torch.float32, requires_grad=True)
    >>> with record() as recording:
    ...     y = ((x + 2) ** 2 + 3).mean()
    ...     y.backward()
    >>> [round(value, 4) for value in recording.graph.nodes[0].grad_outputs[0].values]
    [2.0, 2.6667, 3.3333]
    """
    return Recording(model, gradients=gradients, transfers=transfers)


class Recording:
    """What `record()` noted. It holds nothing of the program once the block is left."""

    def __init__(self, model: torch.nn.Module | None, *, gradients: bool, transfers: bool) -> None:
        self._model = model
        self._with_gradients = gradients
        self._with_transfers = transfers
        self._stack = ExitStack()
        self._frame: FrameType | None = None  # that entered the block
        self._graphs: list[Graph] = []
        self._runs: list[Run] = []
        self._running: Run | None = None
        self._ends: list[End] = []  # outputs of the last outermost module call

    def __enter__(self) -> Recording:
        self._frame = caller()
        self.modules = Modules(self._model, self._returned)
        self.transfers = Transfers()
        self.following = Following()
        self.operation: Any = None  # what the user called
        self.made: list[tuple[Tensor, Seen]] = []  # copies that this call made
        with ExitStack() as stack:
            stack.enter_context(self.modules)
            stack.enter_context(EngineWatch(self._begin))
            if self._with_transfers:
                stack.enter_context(Watch(OPERATORS, self._copied))
            stack.enter_context(_Calls(self))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        try:
            self._stack.close()
            self._graphs = self.graphs
        finally:
            self._runs.clear()
            self._ends.clear()
            self.following.clear()
            self.transfers.close()
            self.modules.close()
            self._frame = None

    @property
    def graph(self) -> Graph:
        """The graph of the last backward; without one, of what the outermost module returned.

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
        if self._frame is None:
            return self._graphs
        runs = self._runs
        if self._ends and not runs:
            runs = [self._read(self._ends)]
            runs[0].finish()
        return [self._graph(run) for run in runs]

    def _read(self, ends: list[End]) -> Run:
        parameters = self.modules.parameters()
        names = {id(tensor): name for name, tensor in reversed(parameters)}
        return Run(ends, self._named(parameters), names, len(self._runs))

    def _graph(self, run: Run) -> Graph:
        columns = run.columns(self.modules)
        places = self.modules.names()
        found = [
            seen.transfer(run.node_of(seen), places(seen.place)) for seen in self.transfers.seen
        ]
        # Of the copies that trace reads from the graph alone, those that backward did not run.
        ahead = [copy for copy in run.graph.transfers if copy.node not in columns.get("order", ())]
        return replace(run.graph.annotate(**columns), transfers=(*found, *ahead))

    # What the recorders report.

    def _returned(self, outputs: Any) -> None:
        edges = [
            torch.autograd.graph.get_gradient_edge(tensor)
            for _, tensor in flatten(outputs)
            if tensor.requires_grad
        ]
        self._ends = [(edge.node, edge.output_nr) for edge in edges]

    def _copied(self, call: Call) -> None:
        for seen, source, made in self.transfers.see(call):
            frame = self.modules.user_frame(sys._getframe(1))
            seen.place = self.modules.place(frame)
            seen.module = self.modules.module
            seen.in_forward = self.modules.in_forward
            fn = torch._C._current_autograd_node()
            if fn is not None:
                seen.run = len(self._runs) - 1
                seen.node = self._running.ids.get(fn) if self._running is not None else None
            else:
                seen.operation = getattr(self.operation, "__name__", "").strip("_")
                seen.label = self._label(source, frame)
                if made is not None:
                    self.made.append((made, seen))

    def follow(self, result: Any) -> None:
        """Follow the copies that the call just made, as far as it returned them."""
        returned = {id(tensor) for tensor in tensors(result)}
        for made, seen in self.made:
            if id(made) in returned:
                self.following.add(made, seen)
        self.made.clear()

    def _begin(self, outputs: Sequence[Any], gradients: Any, inputs: Any) -> Run | None:
        ends = [end for output in outputs for end in _end(output)]
        if self._running is not None or not ends:
            return None  # inside a node, as reentrant checkpointing does; or the engine will object
        run = self._running = self._read(ends)
        self._runs.append(run)
        self._ends = []
        self.modules.new_step()
        asked = [end for value in inputs for end in _end(value)]
        run.start(asked, self._with_gradients, self._ended)
        return run

    def _ended(self) -> None:
        self._running = None

    def _named(self, parameters: list[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
        here = self.modules.user_frame(sys._getframe(1))
        frames = [here] if here is self._frame else [here, self._frame]
        named = [
            pair
            for frame in frames
            if frame is not None
            for pair in caller_names(dict(frame.f_locals))
        ]
        return named + parameters

    def _label(self, tensor: Tensor, frame: FrameType | None) -> str:
        local = [] if frame is None else frame.f_locals.items()
        for name, value in (*local, *self.modules.parameters()):
            if value is tensor:
                return str(name)
        return ""


class _Calls(TorchFunctionMode):
    """Sees every call into torch."""

    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self._recording = recording

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if torch.compiler.is_compiling():
            return func(*args, **(kwargs or {}))
        recording = self._recording
        recording.operation = func
        start = sequence_number()
        result = func(*args, **kwargs) if kwargs else func(*args)
        end = sequence_number()
        recording.operation = None
        if end != start:
            recording.modules.made(start, end, sys._getframe(1))
        if func not in ASIDE:
            if recording.following:
                recording.following.call((args, kwargs), start, end, result)
            if recording.made:
                recording.follow(result)
        return result


def _end(output: Any) -> list[End]:
    if isinstance(output, Tensor):
        if not output.requires_grad:
            return []
        output = torch.autograd.graph.get_gradient_edge(output)
    return [(output.node, output.output_nr)]
