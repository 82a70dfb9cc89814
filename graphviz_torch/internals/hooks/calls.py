"""Watch calls into torch, selected by the function called.

A listener's `on_call_start` runs before a call, `on_call_end` after it, and `on_call_error` if it
raises.

A listener's attribute `functions` selects its calls. It is a set of functions and of keywords: the
keyword "out" selects all calls with `out=`. None selects every call that computes something. Half
of the calls of a training step only read metadata (`x.shape`), and are passed only to listeners
that name these functions. In the same way, the attribute `before` selects which of the listener's
calls are passed to `on_call_start`; None selects all of them. If the attribute `needs_constant` is
True, a call that created a node is passed only if a tensor of the call requires no gradient.

Uses private API: the number of function modes and the flag of torch.jit.trace (2.13).
"""

from __future__ import annotations

import sys
from collections.abc import Container, Sequence
from types import FrameType, FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling
from torch.nn import Parameter
from torch.overrides import TorchFunctionMode, handle_torch_function

from ...graph.immutable import NamedTuple
from ..dynamo import is_jit_tracing, not_compiled_itself
from ..frames import active_programs, frame_variables, hide_frame
from ..functions import METADATA_CALLS, READ_GRAD, SET_GRAD, TensorBase
from ..guards import set_grad_enabled
from .dispatch import sequence_number
from .grad_mode import GradModeSwitches
from .modes import FUNCTIONS, function_mode_count, leave
from .watch import Callbacks, OnError, listener_methods, notify

# Methods that torch.compile supports as `tensor.method()`, but not as `Tensor.method(tensor)`.
_METHODS: tuple[Any, ...] = (
    Tensor.backward,
    Tensor.dim_order,
    Tensor.register_post_accumulate_grad_hook,
    Tensor.share_memory_,
    Tensor.split,  # only in torch 2.8
    Tensor.unflatten,
)
_PLAIN = (Tensor, Parameter)
_ATOMS = frozenset((int, float, bool, str, type(None), torch.dtype, torch.device, slice))
# An argument of these types contains no tensor if its first item is an atom.
_LISTS = frozenset((tuple, list, torch.Size))
# Calls that read metadata and create neither a node nor a copy.
_READS = METADATA_CALLS - {Tensor.backward, Tensor.__repr__, Tensor.__format__}
_MAX_CACHED_KINDS = 10_000  # a limit, because a program may create any number of functions


_ACCESSES = (READ_GRAD, SET_GRAD)
_IN_PYTHON = {
    name: method
    for name, method in vars(Tensor).items()
    if isinstance(method, FunctionType)
    # Methods that the program has already replaced are left out.
    and method.__code__.co_filename == torch._tensor.__file__
}

_new: Any = tuple.__new__  # creates an event without a Python-level call


class Calling(NamedTuple):
    """A call into torch that is about to be made."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any] | None
    frame: FrameType  # the frame that makes the call
    start: int  # sequence number of this thread's next node


class Called(NamedTuple):
    """A call into torch that has returned; its nodes have start <= sequence number < end."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any] | None
    result: Any
    frame: FrameType  # the frame that made the call
    start: int
    end: int


class Raised(NamedTuple):
    """A call into torch that raised."""

    error: BaseException
    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any] | None
    frame: FrameType  # the frame that made the call


class _Listening(NamedTuple):
    """The listeners to notify of calls with the same function and the same keyword names."""

    before: Callbacks
    after: Callbacks
    without_constant: Callbacks  # those of `after` that do not need a constant
    computes: bool  # False for calls that only read metadata
    own: Any  # PyTorch's method, if the called function replaces one; else None


class _ListenerCache(dict[Any, _Listening]):
    """A cache of the listeners to notify of a call, by the function that is called.

    If listeners select calls by keyword, the key is (function, *keyword names).
    """

    def __init__(self, listeners: Sequence[Any]) -> None:
        self._listeners = listeners  # those that handle calls

    def __missing__(self, kind: Any) -> _Listening:
        func, *keywords = kind if type(kind) is tuple else (kind,)
        computes = func not in _READS
        wanting = [one for one in self._listeners if selects(one, func, computes, keywords)]
        before = [one for one in wanting if _is_named(getattr(one, "before", None), func, keywords)]
        own = original_method(func)  # compared by `==`: each read of a getter is a new object
        most = [one for one in wanting if not getattr(one, "needs_constant", False)]
        after, rest = (listener_methods(some, "on_call_end") for some in (wanting, most))
        rest = rest if len(rest) < len(after) else after
        own = None if own == func else own
        found = _Listening(listener_methods(before, "on_call_start"), after, rest, computes, own)
        if len(self) < _MAX_CACHED_KINDS:
            self[kind] = found
        return found


def selects(listener: object, func: Any, computes: bool, keywords: Sequence[str] = ()) -> bool:
    """Return True if `listener` selects calls of `func` with these keywords.

    Args:
        listener: the listener.
        func: the called function.
        computes: False if a call of `func` only reads metadata.
        keywords: names of the keyword arguments.
    """
    functions: Container[Any] | None = getattr(listener, "functions", None)
    return computes if functions is None else _is_named(functions, func, keywords)


def _is_named(names: Container[Any] | None, func: Any, keywords: Sequence[str]) -> bool:
    return names is None or func in names or any(map(names.__contains__, keywords))


class CallWatch(TorchFunctionMode):
    """Function mode that notifies listeners of each call into torch.

    Args:
        listeners: notified in this order.
        program: key in `active_programs()`; calls made in contexts without this key are ignored.
        miss: called with each exception that a listener raises.
        switches: notified of each line that switches gradients off or on, if not None.
    """

    def __init__(
        self,
        listeners: Sequence[object],
        program: object,
        miss: OnError,
        switches: GradModeSwitches | None = None,
    ) -> None:
        super().__init__()
        self._switches = switches
        self._raised = listener_methods(listeners, "on_call_error")
        handlers = ("on_call_start", "on_call_end")
        listeners = [one for one in listeners if any(hasattr(one, name) for name in handlers)]
        # The method is called: an index of a subclass of dict takes three times as long.
        self._by_kind = _ListenerCache(listeners).__getitem__
        every = [one for one in listeners if selects(one, None, True)]
        self._every = listener_methods(every, "on_call_end")
        # True if a listener needs each access of `zero_grad` to `.grad`.
        accesses = [one for one in listeners if any(selects(one, f, False) for f in _ACCESSES)]
        self.sees_zero_grad = any(getattr(one, "sees_zero_grad", True) for one in accesses)
        self.program = program
        self._miss = miss
        # Sequence number of the next node after the last call that this mode saw. If it has grown
        # by the next call, a call that this mode did not see has created nodes.
        self._end = sequence_number()

    def __enter__(self) -> CallWatch:
        self._end = sequence_number()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *_: object) -> None:
        leave(self, FUNCTIONS)  # another recording's mode may be above this one in the stack

    def notify(self, called: Called) -> None:
        """Notify listeners of a call that this function mode did not intercept."""
        notify(self._by_kind(called.func).after, called, self._miss)

    @not_compiled_itself
    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        # Nothing else is done for this call, as an interrupt would then leave a wrong grad mode.
        if func is set_grad_enabled:
            if self._switches is not None and self.program in active_programs():
                self._switches.note(args[0], _program_frame(sys._getframe(1)))
            return func(*args, **(kwargs or {}))
        if is_dynamo_compiling():
            if func in _METHODS and type(args[0]) in _PLAIN:
                return getattr(args[0], func.__name__)(*args[1:], **(kwargs or {}))
            return func(*args, **(kwargs or {}))
        if self.program not in active_programs() or is_jit_tracing():
            return func(*args, **(kwargs or {}))
        before, after, rest, computes, own = self._by_kind((func, *kwargs) if kwargs else func)
        if own is not None and _is_called_by_itself(own, sys._getframe(1)):
            func = own  # PyTorch's method was called, not the program's replacement
            before, after, rest, computes, _ = self._by_kind((func, *kwargs) if kwargs else func)
        start = sequence_number() if computes or before else -1
        if before:
            notify(
                before,
                Calling(func, args, kwargs, _program_frame(sys._getframe(1)), start),
                self._miss,
            )
        try:
            result = func(*args, **kwargs) if kwargs else func(*args)
        except BaseException as error:
            # The event is not stored in a variable, to avoid a reference cycle: it refers to the
            # error, and the error's traceback refers to this frame.
            notify(
                self._raised,
                Raised(error, func, args, kwargs, _program_frame(sys._getframe(1))),
                self._miss,
            )
            hide_frame(error)
            raise
        end = sequence_number()
        if not computes:
            start = end
            if end == self._end and not after:
                return result
            if end != self._end:  # a call that this mode did not see has created nodes
                after = (*self._every, *after)
        elif end != start and rest is not after and not _has_constant(args, kwargs, result):
            after = rest
        self._end = end
        if after:
            frame = sys._getframe(1)
            if frame.f_code is _HANDLER:
                frame = _program_frame(frame)
            row = func, args, kwargs, result, frame, start, end
            notify(after, _new(Called, row), self._miss)
        return result


def _has_constant(args: tuple[Any, ...], kwargs: dict[str, Any] | None, result: Any) -> bool:
    """Return False if all tensors of a call certainly require a gradient."""
    if function_mode_count():  # another mode would see the reads
        return True
    for given in (*args, *kwargs.values()) if kwargs else args:
        kind = type(given)
        if kind in _PLAIN:
            if not given.requires_grad:
                return True
        elif kind not in _ATOMS and not (kind in _LISTS and given and type(given[0]) in _ATOMS):
            return True
    return type(result) is not Tensor


_HANDLER = CallWatch.__torch_function__.__code__


def running_function() -> Any:
    """Return the function whose call a `CallWatch` is handling in this thread, or None."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not _HANDLER:
        frame = frame.f_back
    return None if frame is None else frame_variables(frame, "func")[0]


def _program_frame(frame: FrameType) -> FrameType:
    """Return the innermost frame, from `frame` outwards, that is not of `CallWatch` itself."""
    while frame.f_code is _HANDLER and frame.f_back is not None:
        frame = frame.f_back
    return frame


def original_method(function: Any) -> Any:
    """Return PyTorch's own tensor method if the program has replaced it by `function`.

    For a method that is implemented in C++, PyTorch looks up the attribute of `torch.Tensor` and
    passes it to the function mode, which thus receives the program's replacement instead.

    Returns:
        `function` itself if it replaces no method, or more than one.

    >>> original_method(torch.relu) is torch.relu, original_method(Tensor.norm) is Tensor.norm
    (True, True)
    """
    names = [name for name, method in vars(Tensor).items() if method is function]
    if len(names) != 1:
        return function
    return _IN_PYTHON.get(names[0]) or vars(TensorBase).get(names[0], function)


def _is_called_by_itself(method: Any, caller: FrameType) -> bool:
    """Return True if PyTorch's own method was called, not the program's replacement.

    Args:
        method: PyTorch's own method, as `original_method` returns it.
        caller: the frame that called the mode.
    """
    if caller.f_code is not handle_torch_function.__code__:  # called from C++
        return not isinstance(method, FunctionType)
    python = caller.f_back
    its = getattr(method, "__code__", None)
    return python is not None and python.f_code is its
