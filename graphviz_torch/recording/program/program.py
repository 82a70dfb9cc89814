"""Keep track of the recorded program: its running modules, source lines and names of tensors."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from threading import get_ident
from types import FrameType
from typing import Any, Literal

import torch.distributed as dist
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from ...graph.immutable import NamedTuple
from ...internals.frames import (
    OTHER,
    CodePosition,
    active_programs,
    enter_program,
    leave_program,
    local_variables,
    parameter_names,
    user_frame,
    user_frames,
)
from ...internals.hooks.dispatch import sequence_number
from ...internals.hooks.grad_mode import GradModeSwitches
from ...internals.tensors.pytree import ATOMS, flatten, is_nesting
from ...tracing.names import caller_names, with_outer
from .call_stack import CallStack
from .events import Events, RecordingNotes
from .identities import Identities
from .in_place import Changes
from .log import Log
from .optimizers import Scaling, StepLog
from .parameters import ParameterTable
from .rows import ObservedRow
from .source_lines import Origins, Source, lines, sources
from .tracking import Tracker

Compiled = Literal["open", "closed", "eager"]  # `compiled` of `record`


class Options(NamedTuple):
    """The options of `record`."""

    gradients: bool | Literal["finite"]
    transfers: bool
    memory: bool
    notes: bool
    compiled: Compiled = "open"
    fingerprints: bool = False
    experiments: bool = False

    @property
    def with_gradients(self) -> bool:
        """Return True if gradients are recorded."""
        return self.gradients is not False

    @property
    def light(self) -> bool:
        """Return True if gradients="finite", so that only non-finite values are recorded."""
        return self.gradients == "finite"

    @property
    def every_call(self) -> bool:
        """Return True if listeners may observe every call into torch."""
        return not self.light

    @property
    def opens_regions(self) -> bool:
        """Return True if the operations inside compiled regions are read."""
        return self.compiled != "closed" and not self.light

    @property
    def is_distributed(self) -> bool:
        """Return True if this process is a rank of a process group, or may become one.

        Otherwise the program cannot use DTensors, DDP or FSDP.
        """
        started = os.environ.get("WORLD_SIZE", "1") not in ("", "1")  # set by torchrun
        return dist.is_available() and (dist.is_initialized() or started)


_KEPT_STEPS = 3  # number of training steps for whose nodes module and line are kept
_MAX_CUTS = 1000  # number of latest cuts whose operands are known


class Program:
    """The recorded code of one thread, or of one asyncio task.

    The program has several services, most of which receive every event before the listeners do:

        stack, origins   modules and lines of nodes
        table            paths of modules, names of parameters
        steps            optimizer steps
        changes          in-place changes
        scaling          the loss scale
        tracker          later uses of tensors
        identities       numbers of tensors in rows
        log              rows about the run, which listeners append and queries read
        events           facts that belong to no node, which listeners and queries add

    Args:
        model: the root of the paths. If None, the first called module is the root.
        frame: the frame that enters the recording.
        options: the options of the recording.
    """

    def __init__(self, model: Module | None, frame: FrameType | None, options: Options) -> None:
        self.frame = frame
        self.step = 0  # number of the current training step
        self.options = options
        self.origins: Origins[Source] = Origins(sequence_number())
        self.table = ParameterTable(model)
        self.stack = CallStack(self.table, self.origins)
        self.stack.frame = frame
        self.steps = StepLog(self.table.own_ids)
        self.changes = Changes(self.stack.place, self.steps)
        self.scaling = Scaling()
        self.tracker = Tracker()
        self.identities = Identities()
        # Sequence numbers of the nodes through which backwards of this training step ran.
        self.numbers_ran: set[int] = set()
        self.events = Events()
        self.remarks = RecordingNotes()
        self.log = Log(self.events, self.remarks)
        self.switches = GradModeSwitches()
        self.cuts = 0  # number of cuts so far
        # Sequence numbers of the nodes that computed the operands of the latest cuts.
        self.cut_numbers: deque[int] = deque(maxlen=_MAX_CUTS)
        # True while a compiled graph runs for which the program has gradients enabled. PyTorch runs
        # the graph itself under no_grad.

        self.in_compiled_graph = False
        # Sequence numbers at which the latest training steps began.
        self._began = deque([sequence_number()], maxlen=_KEPT_STEPS)
        self._model = model
        self.thread = get_ident()
        self.key = object()  # identifies this program in `active_programs()`

    def __enter__(self) -> Program:
        """Make the code of the `with` block, and of tasks created in it, part of the program."""
        enter_program(self.key)
        return self

    def __exit__(self, *_: object) -> None:
        leave_program(self.key)

    def is_here(self) -> bool:
        """Return True if the caller runs in the recorded thread, and in its asyncio task if any."""
        return self.key in active_programs() and get_ident() == self.thread

    @property
    def services(self) -> tuple[object, ...]:
        """Return the services that receive events. The stack is first, because others read it."""
        return self.stack, self, self.steps, self.changes, self.scaling

    def compiled_graph_began(self) -> None:
        """Record that a compiled graph runs for which the program has gradients enabled."""
        self.in_compiled_graph = True

    def compiled_graph_ended(self) -> None:
        """Record that the compiled graph has ended."""
        self.in_compiled_graph = False

    def on_backward_start(self, event: Any) -> None:
        """Count a backward that starts, so that later events belong to the next forward."""
        self.stack.add_leading(event.frame)
        self.events.begin_backward()
        self.numbers_ran.update(event.live.numbers)

    def on_graph_read(self, live: Any) -> None:
        """Restart module numbers for the next graph, after the graph of a backward was read.

        A call of autograd.grad with retain_graph, such as an inner step of MAML, does not restart
        the numbers of module calls, because the next graph contains the same calls.
        """
        self.stack.on_release(None)
        self.table.begin_step()
        if live.call.accumulates or not live.call.retains:
            self.stack.begin_step()

    def on_observed(self, event: Any) -> None:
        """Append the event of a hook to the log, with the user's line instead of the frame."""
        place = self.place(getattr(event, "frame", None))
        event = event._replace(frame=None) if "frame" in event._fields else event
        self.log.append(ObservedRow(event, place))

    def on_step_end(self, event: None) -> None:
        """Forget modules and events at the end of a training step, and lines of old nodes."""
        self.log.end_step()
        self.stack.on_release(None)
        self.step += 1
        self.remarks.begin_step()
        self.table.clear(self._model)
        self.stack.name_running()
        self.stack.begin_step()
        self.steps.begin_step()
        self.numbers_ran = set()
        self.events.begin_step()
        self.tracker.clear()
        if len(self._began) == _KEPT_STEPS:
            self.origins.forget(self._began[0])
        self._began.append(sequence_number())

    def forget_modules(self) -> None:
        """Drop the references to modules, because module calls are no longer observed.

        The key changes, so that a removed hook that is still running does not notify the program.
        """
        self.key = object()
        self.stack.forget_running()
        self.table.clear(self._model)

    def resume(self, frame: FrameType | None) -> None:
        """Continue the recording, with the variables of this frame as names of tensors."""
        self.frame = self.stack.frame = frame
        self.origins.skip(sequence_number())

    @property
    def module(self) -> str:
        """Return the path of the innermost running module; "" for none and for the root."""
        return self.stack.module

    @property
    def in_forward(self) -> bool:
        """Return True if a module's forward is running."""
        return self.stack.in_forward

    def parameters(self) -> list[tuple[str, Tensor]]:
        """Return names and parameters of the model and of all other called modules."""
        return self.table.parameters()

    def place(self, frame: FrameType | None) -> CodePosition | None:
        """Return the innermost position in the user's own code, from `frame` outwards."""
        return self.stack.place(frame)

    def line(self) -> Callable[[CodePosition | None], str]:
        """Return a function that formats a position, such as "train.py:41".

        If several files have the same name, the text includes folders.
        """
        return lines([file for file, owner in self.stack.files.items() if owner != OTHER])

    def source(self, number: int) -> str:
        """Return the line that created the node with this sequence number."""
        return self.source_in(self.line())(number)

    def source_in(self, line: Callable[[CodePosition | None], str]) -> Callable[[int], str]:
        """Return a function that maps a sequence number to a source line, formatted by `line`."""
        return partial(self.origins.source, text=sources(line))

    def label(self, tensor: Tensor, frame: FrameType | None) -> str:
        """Return the user's name for a tensor, in this frame or in the model; "" if unknown."""
        return self.labels((tensor,), frame)[0]

    def labels(self, given: Sequence[Tensor], frame: FrameType | None) -> list[str]:
        """Return the user's names for several tensors; "" for unknown ones."""
        found = self.table.names(given)
        if "" in found and frame is not None:
            names: dict[int, str] = {}
            for name, value in local_variables(frame).items():
                names.setdefault(id(value), name)
            found = [f or names.get(id(one), "") for f, one in zip(found, given, strict=True)]
        return found

    def optimizer_name(self, optimizer: Optimizer, frame: FrameType | None) -> str:
        """Return the name of an optimizer's variable, or else of the optimizer's class.

        The variables of `frame` and of the frames around it are searched.
        """
        for one in user_frames(frame, self.frame):
            for name, value in local_variables(one).items():
                if value is optimizer:
                    return name
        return type(optimizer).__name__

    def variable(self, tensor: Tensor) -> str:
        """Return the name of the user's variable that is or contains a tensor; "" if unknown."""
        for frame in (user_frame(sys._getframe(1)), self.frame):
            for name, value in local_variables(frame).items() if frame is not None else ():
                if any(part is tensor for _, part in flatten(value, ask=False)):
                    return name
        return ""

    def names_in(self, frame: FrameType | None) -> list[tuple[str, Tensor]]:
        """Return the names and values of variables that are tensors or contain tensors.

        The variables of `frame` and its callers are searched, up to the frame that entered the
        recording. If no model was given, the tensors of modules among these variables are included.
        """
        frames = user_frames(frame, self.frame)
        if self.frame is not None and self.frame not in frames:
            frames.append(self.frame)
        found: list[tuple[str, Tensor]] = []
        for one in reversed(frames):
            variables = local_variables(one, without=ATOMS)
            found = with_outer(self._names(variables), found, parameter_names(one))
        return found

    def _names(self, variables: Mapping[str, Any]) -> list[tuple[str, Tensor]]:
        modules = [value for value in variables.values() if issubclass(type(value), Module)]
        named = caller_names(
            {k: v for k, v in variables.items() if issubclass(type(v), Tensor) or is_nesting(v)}
        )
        if self._model is None:
            named += [pair for module in modules for pair in caller_names(module)]
        return named

    def callers(self, frame: FrameType | None) -> list[CodePosition]:
        """Return the user's lines from the frame that entered the recording to this frame."""
        return [(one.f_code, one.f_lasti) for one in user_frames(frame, self.frame)]
