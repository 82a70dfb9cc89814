"""Record which module forwards run in a thread, and the user's line that called each of them.

Modules inside a compiled region, lines of nodes that no observed call created, and nodes of other
threads are not recorded. Autograd numbers the nodes of each thread separately. A node of another
thread may therefore be mistaken for the node of this thread that has the same number.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import (
    BuiltinFunctionType,
    CodeType,
    FrameType,
    FunctionType,
    MethodDescriptorType,
    WrapperDescriptorType,
)
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from ...internals.dynamo import not_compiled
from ...internals.frames import LIBRARY, OTHER, OWN, CodePosition, frame_variables
from ...internals.hooks.calls import Called
from ...internals.hooks.dispatch import sequence_number
from ...internals.hooks.modes import function_mode_count
from ...internals.hooks.modules import ModuleBegan, ModuleEnded
from ...internals.tensors.pytree import flatten, tensors
from ...internals.tensors.references import Ref
from ...internals.wrappers import wrapped_module
from ...tracing.nodes import GradientEdge, gradient_edges_of
from .call_names import NO_CALL, Call, Functions, bare_name
from .parameters import ParameterTable
from .source_lines import FileOwners, Names, Origins, Source
from .variables import calling_model, has_another_model, variable

_FUNCTION_KINDS = (FunctionType, BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType)
_MAX_INPUTS = 100  # number of inputs of earlier outermost calls that are kept
_MAX_FRAMES = 20  # number of frames searched, from a call outwards


class RunningModule:
    """A running module call."""

    __slots__ = ("counts", "frame", "library", "module", "names", "place", "prefix", "start")

    def __init__(self, module: Module, names: Names, frame: FrameType, start: int) -> None:
        self.start = start  # sequence number of the next node when the call began
        self.module = module
        self.names = names  # path of the module, and scope of this call
        self.prefix = f"{names[0]}." if names[0] else ""  # of the paths of modules inside
        self.frame = frame  # frame that calls the forward
        self.place: CodePosition | None = None  # the user's line that led to the call, if cached
        self.library: CodePosition | None = None  # the innermost line in a library, if cached
        self.counts: dict[str, int] | None = None  # path below this module -> number of calls


class CallStack:
    """The running module calls of one thread.

    Args:
        table: the paths of modules. A called module without a path is added under the name of the
            variable that refers to it, or else of its class. The first module that is added becomes
            the model, unless the calling code has several models.
        origins: receives the module and the line of each node.
    """

    def __init__(self, table: ParameterTable, origins: Origins[Source]) -> None:
        self.files = FileOwners()
        self._owner = self.files.__getitem__  # faster than an index
        self._table = table
        self._origins = origins
        self._running: list[RunningModule] = []
        self._counts: dict[str, int] = {}  # path -> number of outermost calls since the backward
        self._forwards: dict[CodeType, bool] = {}  # code -> True for a custom Function's forward
        self._calls: dict[Any, Call] = {}  # cache: function of torch -> its `Call`
        # True if no other function mode was active at the last call that created nodes.
        self.is_alone = True
        # Callbacks for the start and the end of an outermost module call, and for the end of any
        # module call that created no node.
        self.on_outermost_start: Callable[[ModuleBegan], object] | None = None
        self.on_outermost_end: Callable[[ModuleEnded], object] | None = None
        self.on_call_without_node: Callable[[RunningModule, Any, FrameType], None] | None = None
        self.ends: list[GradientEdge] = []  # gradient edges of the last outermost call's outputs
        self._inputs: list[Ref] = []  # inputs of outermost calls since the last backward
        self.frame: FrameType | None = None  # the user's frame that entered the recording
        self.leading: set[CodeType] = set()  # functions that call modules or backward

    @property
    def module(self) -> str:
        """Return the path of the innermost running module; "" for none and for the root."""
        return self._running[-1].names[0] if self._running else ""

    @property
    def in_forward(self) -> bool:
        """Return True if a module's forward is running in this thread."""
        return bool(self._running)

    @property
    def is_outermost(self) -> bool:
        """Return True if exactly one module call is running."""
        return len(self._running) == 1

    def inputs(self) -> list[Tensor]:
        """Return those inputs of outermost module calls since the last backward that still exist.

        Calls without gradients enabled are ignored. A result of one call that the program passes to
        another call is an activation, and not an input.
        """
        found = (ref() for ref in self._inputs)
        return [tensor for tensor in found if tensor is not None]

    def close(self) -> None:
        """Drop the callbacks, to break their reference cycles with this object."""
        self.on_outermost_start = self.on_outermost_end = self.on_call_without_node = None

    def on_release(self, event: None) -> None:
        """Drop the references to autograd nodes, so that they can be freed."""
        self.ends = []

    def forget_running(self) -> None:
        """Forget the running modules, because their ends will not be observed."""
        self._running.clear()

    def begin_step(self) -> None:
        """Restart the numbers of outermost module calls at 1, after a backward's graph was read."""
        self._counts = {}

    def name_running(self) -> None:
        """Add the running modules to the table of module paths again, after it was cleared."""
        for call in self._running:
            self._table.add(call.module, call.names[0])

    def on_module_start(self, event: ModuleBegan) -> None:
        """Add a module call to the running ones, and name the module if it is unknown."""
        module, args, frame = event
        running, table = self._running, self._table
        path = table.call(module)
        if path is None:
            if table.take_in(module) is None:
                model, caller = calling_model(module, frame)
                table.add(model, self._name(model, caller))
            path = table.call(module) or ""
        counts, scope, below = self._counts, "", path
        if running:
            outer = running[-1]
            if path == outer.names[0] and wrapped_module(outer.module) is module:
                return  # a compiled module and the module that it wraps are one call
            if not path.startswith(outer.prefix):
                path = below = table.path_in(outer.module, outer.names[0], module, path)
            for call in reversed(running):
                # The new scope extends the scope of the innermost running call whose path is a
                # prefix of this module's path.
                if path.startswith(call.prefix):
                    scope, below = call.names[1], path[len(call.prefix) :]
                    if (known := call.counts) is None:
                        known = call.counts = {}
                    counts = known
                    break
        else:
            self.add_leading(frame)
            if self.on_outermost_start is not None:
                self.on_outermost_start(event)
            table.note(module)  # names the parameters before the program may replace them
            if torch.is_grad_enabled():  # without gradients, nothing is saved for backward
                positional, named = frame_variables(frame, "args", "kwargs")
                given = tensors(args if positional is None else positional, named)
                # A loss may depend on several module calls. Inputs are therefore kept until the
                # first call after a backward.

                before = self._inputs[-_MAX_INPUTS:] if self._counts else []
                self._inputs = before + [Ref(t) for t in given if t.grad_fn is None]
        count = counts[below] = counts.get(below, 0) + 1
        if count > 1:
            below = f"{below}#{count}"
        names = (path, f"{scope}.{below}" if scope and below else scope or below)
        number = sequence_number()
        if number != self._origins.end:
            self.nodes_without_call(number, frame)
        running.append(RunningModule(module, names, frame, number))
        self._origins.enter(number, names)

    def _name(self, module: Module, frame: FrameType) -> str:
        """Return a path for a module that has none yet; "" if the module is the model."""
        name = variable(module, frame)
        if len(self._table):
            return name or type(module).__name__
        return name if "." in name or has_another_model(module, frame) else ""

    def on_module_end(self, event: ModuleEnded) -> None:
        """Remove a module call, and record a line for its nodes that no observed call created."""
        module, output, frame = event
        number = sequence_number()
        if number != self._origins.end:  # unobserved calls created nodes: use the module's line
            self.add_nodes(self._origins.end, number, frame)
        running = self._running
        depth = len(running) - 1
        while depth >= 0 and running[depth].module is not module:
            depth -= 1  # the end of this call was not observed, because of an interrupt
        if depth < 0:
            return  # the start of this call was not observed, because another hook raised
        call = running[depth]
        if not depth and self.on_outermost_end is not None:
            self.on_outermost_end(event)
        del running[depth:]
        if number == call.start and output is not None and self.on_call_without_node is not None:
            self.on_call_without_node(call, output, frame)
        self._origins.enter(number, running[-1].names if running else None)
        if output is not None and not running:
            given = [("", output)] if type(output) is Tensor else flatten(output, ask=False)
            self.ends = [end for _, tensor in given for end in gradient_edges_of(tensor)]

    def on_call_end(self, event: Called) -> None:
        """Record the source line and the function that created nodes, after a call into torch."""
        _, _, _, _, frame, start, end = event
        origins = self._origins
        if start != origins.end:
            self.nodes_without_call(start, frame)
        if end != start:
            self.is_alone = not function_mode_count()
            code = frame.f_code
            call = self._calls.get(event.func) or self._call(event.func)
            if not self._running and frame is not self.frame:
                call = call._replace(functions=self._functions(frame))
            if self._owner(code.co_filename) == OWN:  # the usual case, without calling `source`
                origins.add_nodes(start, end, ((code, frame.f_lasti), None), call)
            else:
                self.add_nodes(start, end, frame, call)

    def _call(self, function: Any) -> Call:
        """Return the `Call` for a function, and cache it if the function keeps no tensor alive."""
        call = Call(bare_name(function))
        if type(function) in _FUNCTION_KINDS and not getattr(function, "__closure__", None):
            self._calls[function] = call
        return call

    @not_compiled
    def add_nodes(
        self, start: int, end: int, frame: FrameType | None, call: Call = NO_CALL
    ) -> None:
        """Record that a call in `frame` created nodes with start <= sequence number < end."""
        source = self.source(frame)
        self._origins.add_nodes(start, end, None if source[0] is None else source, call)  # type: ignore[arg-type]

    @not_compiled
    def add_leading(self, frame: FrameType | None) -> None:
        """Add the functions from `frame` outwards, which call modules or backward, to `leading`."""
        while frame is not None and frame is not self.frame:
            self.leading.add(frame.f_code)
            frame = frame.f_back

    @not_compiled
    def _functions(self, frame: FrameType) -> Functions:
        """Return the user's running functions that lead to a call in `frame`, outermost first."""
        found: list[tuple[CodeType, int]] = []
        one: FrameType | None = frame
        for _ in range(_MAX_FRAMES):
            if one is None or one is self.frame or one.f_code in self.leading:
                break
            outer = one.f_back
            code = one.f_code
            if code.co_name[0] != "<" and self.files[code.co_filename] == OWN:
                found.append((code, outer.f_lasti if outer is not None else 0))
            one = outer
        return tuple(found[::-1])

    @not_compiled
    def nodes_without_call(self, start: int, frame: FrameType | None) -> None:
        """Set the source line of nodes with numbers below `start` that no observed call created.

        If the next call is in the forward of a custom Function, the nodes get the line that called
        the Function. If it is in the forward of a PyTorch module, they get the line that called the
        module. Otherwise their line is unknown.

        Args:
            start: sequence number of the next node.
            frame: the frame of the next call.
        """
        outer = self.custom_function(frame)
        if outer is not None:
            self.add_nodes(self._origins.end, start, outer.f_back)
        elif self._runs_torch(frame):
            self.add_nodes(self._origins.end, start, frame)
        self._origins.skip(start)

    def custom_function(self, frame: FrameType | None) -> FrameType | None:
        """Return the innermost frame, from `frame` outwards, of a custom Function's forward.

        Returns None if there is none.
        """
        while frame is not None and not self._is_of_function(frame.f_code):
            frame = frame.f_back
        return frame

    def _runs_torch(self, frame: FrameType | None) -> bool:
        """Return True if only PyTorch's code runs between the innermost module call and `frame`."""
        last = self._running[-1].frame if self._running else None
        while frame is not None and frame is not last:
            if self.files[frame.f_code.co_filename] != OTHER:
                return False
            frame = frame.f_back
        return frame is not None

    def place(self, frame: FrameType | None) -> CodePosition | None:
        """Return the innermost position in the user's own code, from `frame` outwards."""
        return self.source(frame)[0]

    def source(self, frame: FrameType | None) -> tuple[CodePosition | None, CodePosition | None]:
        """Return the user's position that led to the code running in `frame`.

        Returns:
            The innermost position in the user's own code, and the innermost position in a library
            that is called from there. Either may be None.
        """
        if frame is None:
            return None, None
        owner_of, running = self._owner, self._running
        code = frame.f_code
        if owner_of(code.co_filename) == OWN:  # the usual case, in which the user's code runs
            return (code, frame.f_lasti), None
        depth = innermost = len(running) - 1
        call = running[depth] if running else None
        found = library = None
        if call is not None and call.place and frame.f_back is call.frame:
            library = (
                (code, frame.f_lasti) if owner_of(code.co_filename) == LIBRARY else call.library
            )
            return call.place, library
        while frame is not None:
            code = frame.f_code
            owner = owner_of(code.co_filename)
            if owner == OWN:
                found = (code, frame.f_lasti)
                break
            if owner == LIBRARY:
                here = (code, frame.f_lasti)
                library = library or here
                for met in running[depth + 1 :]:
                    met.library = met.library or here
            if call is not None and frame is call.frame:
                if call.place is not None:
                    found, library = call.place, library or call.library
                    for met in running[depth + 1 :]:
                        met.library = met.library or call.library
                    break
                depth -= 1
                call = running[depth] if depth >= 0 else None
            frame = frame.f_back
        if depth < innermost:  # cache the position for the module calls that were passed
            for call in running[depth + 1 :]:
                call.place = found
        return found, library

    def _is_of_function(self, code: CodeType) -> bool:
        # A custom Function is recognized by the frame of its `forward`, since `apply` has no
        # Python frame from torch 2.14 on.
        if code.co_name != "forward":
            return False
        known = self._forwards.get(code)
        if known is None:
            known = self._forwards[code] = code in _forwards()
        return known


def _forwards() -> set[CodeType]:
    """Return the code objects of `forward` of all subclasses of autograd.Function."""
    found, stack = set(), [torch.autograd.Function]
    while stack:
        kind = stack.pop()
        stack.extend(kind.__subclasses__())
        code = getattr(inspect.unwrap(kind.forward), "__code__", None)
        if code is not None:
            found.add(code)
    return found
