"""Where the watched program is: in which modules, at which line of the user's, with which names."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from threading import get_ident
from types import FrameType
from typing import Any, Literal, NamedTuple

import torch.distributed as dist
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

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
from .events import Events, Remarks
from .in_place import Changes
from .optimizers import Scaling, Steps
from .parameters import ParameterTable
from .source_lines import Origins, Source, lines, sources
from .tracking import Tracker

Compiled = Literal["open", "closed", "eager", "gradients"]  # how a recording takes compiled code


class Options(NamedTuple):
    """As `record` is given them."""

    gradients: bool | Literal["finite"]
    transfers: bool
    memory: bool
    notes: bool
    compiled: Compiled = "open"
    fingerprints: bool = False
    experiments: bool = False

    @property
    def with_gradients(self) -> bool:
        """Is anything noted of gradients."""
        return self.gradients is not False

    @property
    def light(self) -> bool:
        """Is only what is not finite looked for: as little as can be asked of each call."""
        return self.gradients == "finite"

    @property
    def every_call(self) -> bool:
        """May something be asked of each call."""
        return not self.light

    @property
    def opens_regions(self) -> bool:
        """Is looked into what `torch.compile` made."""
        return self.compiled != "closed" and not self.light

    @property
    def inside_regions(self) -> bool:
        """Are the gradients inside compiled regions looked for."""
        return self.compiled == "gradients" and self.gradients is True

    @property
    def distributed(self) -> bool:
        """Is this process a rank: else there is no DTensor and no wrapper for ranks."""
        started = os.environ.get("WORLD_SIZE", "1") not in ("", "1")  # its group may come later
        return dist.is_available() and (dist.is_initialized() or started)


_STEPS = 3  # whose nodes are still known by module and line


class Program:
    """A context: what one thread runs while it is recorded, and in asyncio one task.

    It is told of every event before the listeners, with its services: `stack` and `origins` know
    the modules and lines, `table` the parameters, `steps` what optimizers do, `changes` what is
    changed in place, `scaling` the loss scale; `tracker` recognises a tensor that comes again, and
    in `events` listeners note what no node shows.

    Args:
        model: gives modules and parameters their names; None: the first module called is it.
        frame: the one that enters the recording.
        options: of the recording.
    """

    def __init__(self, model: Module | None, frame: FrameType | None, options: Options) -> None:
        self.frame = frame
        self.step = 0  # its number, for who counts steps
        self.options = options
        self.origins: Origins[Source] = Origins(sequence_number())
        self.table = ParameterTable(model)
        self.stack = CallStack(self.table, self.origins)
        self.stack.frame = frame
        self.steps = Steps(self.table.own)
        self.changes = Changes(self.stack.place, self.steps)
        self.scaling = Scaling()
        self.tracker = Tracker()
        self.events = Events()
        self.remarks = Remarks()
        self.switches = GradModeSwitches()
        # Does a compiled graph run: without gradients, though the program has them.
        self.in_compiled_graph = False
        self._began = deque([sequence_number()], maxlen=_STEPS)  # the last steps, at these numbers
        self._model = model
        self.thread = get_ident()
        self.key = object()  # is among `programs()` where this program runs

    def __enter__(self) -> Program:
        """What runs from here on, and in tasks that are made here, is this program."""
        enter_program(self.key)
        return self

    def __exit__(self, *_: object) -> None:
        leave_program(self.key)

    def is_here(self) -> bool:
        """Is it this program that runs, and not another thread or another task."""
        return self.key in active_programs() and get_ident() == self.thread

    @property
    def services(self) -> tuple[object, ...]:
        """What of it is told of events, the stack first: what listeners ask is to be up to date."""
        return self.stack, self, self.steps, self.changes, self.scaling

    def compiled_graph_began(self) -> None:
        """What a compiler made of a graph runs, with gradients as far as the program knows."""
        self.in_compiled_graph = True

    def compiled_graph_ended(self) -> None:
        """It has run."""
        self.in_compiled_graph = False

    def backward_began(self, event: Any) -> None:
        """A backward is about to run: what is noted from here on came after its forward."""
        self.stack.lead(event.frame)
        self.events.begin_backward()

    def graph_read(self, live: Any) -> None:
        """A graph has been read: what comes now belongs to the next one.

        Of autograd.grad that keeps its graph, as in the inner steps of MAML, a later one goes on.
        """
        self.stack.release(None)
        self.table.begin_step()
        if live.call.accumulates or not live.call.retains:
            self.stack.begin_step()

    def step_ended(self, event: None) -> None:
        """A step of a run is over: the next one names modules, nodes and lines anew."""
        self.stack.release(None)
        self.step += 1
        self.remarks.begin_step()
        self.table.clear(self._model)
        self.stack.name_running()
        self.stack.begin_step()
        self.steps.begin_step()
        self.events.begin_step()
        self.tracker.clear()
        if len(self._began) == _STEPS:
            self.origins.forget(self._began[0])
        self._began.append(sequence_number())

    def resume(self, frame: FrameType | None) -> None:
        """What is watched from now on runs in this frame of the user's."""
        self.frame = self.stack.frame = frame
        self.origins.skip(sequence_number())

    @property
    def module(self) -> str:
        """Path of the module whose forward is running; "" where none is, or the root's is."""
        return self.stack.module

    @property
    def in_forward(self) -> bool:
        """Is a module's forward running."""
        return self.stack.in_forward

    def parameters(self) -> list[tuple[str, Tensor]]:
        """Names and parameters of the model and of every other module called."""
        return self.table.parameters()

    def place(self, frame: FrameType | None) -> CodePosition | None:
        """The innermost place in the user's own code from `frame` outwards."""
        return self.stack.place(frame)

    def line(self) -> Callable[[CodePosition | None], str]:
        """What turns a place into "train.py:41", with as many folders as tell files apart."""
        return lines([file for file, owner in self.stack.files.items() if owner != OTHER])

    def source(self, number: int) -> str:
        """The line that made the node with this sequence number."""
        return self.source_in(self.line())(number)

    def source_in(self, line: Callable[[CodePosition | None], str]) -> Callable[[int], str]:
        """The same for many: `line` is written by."""
        return partial(self.origins.source, text=sources(line))

    def label(self, tensor: Tensor, frame: FrameType | None) -> str:
        """What the user calls a tensor, in this frame or in the model."""
        return self.labels((tensor,), frame)[0]

    def labels(self, given: Sequence[Tensor], frame: FrameType | None) -> list[str]:
        """The same for several."""
        found = self.table.names(given)
        if "" in found and frame is not None:
            names: dict[int, str] = {}
            for name, value in local_variables(frame).items():
                names.setdefault(id(value), name)
            found = [f or names.get(id(one), "") for f, one in zip(found, given, strict=True)]
        return found

    def optimizer_name(self, optimizer: Optimizer, frame: FrameType | None) -> str:
        """What the code that steps an optimizer calls it, or the code around; else its class."""
        for one in user_frames(frame, self.frame):
            for name, value in local_variables(one).items():
                if value is optimizer:
                    return name
        return type(optimizer).__name__

    def variable(self, tensor: Tensor) -> str:
        """The variable that a tensor is in, as itself or in a list or the like."""
        for frame in (user_frame(sys._getframe(1)), self.frame):
            for name, value in local_variables(frame).items() if frame is not None else ():
                if any(part is tensor for _, part in flatten(value, ask=False)):
                    return name
        return ""

    def names_in(self, frame: FrameType | None) -> list[tuple[str, Tensor]]:
        """Names and tensors of the variables of a frame, and of those from the recording's on.

        Those of the modules among them too, where no model was given.
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
        """The user's lines that lead to a frame from the one that entered the recording."""
        return [(one.f_code, one.f_lasti) for one in user_frames(frame, self.frame)]
