"""The seam of calls: every call into torch that a program makes, by what is called.

A listener with `calling` is told before a call, one with `called` after it, one with `raised` where
it raises. `functions` selects the calls: a set of functions and names of keywords; None for every
call that computes. Half of the calls of a step read what a tensor is (`x.shape`), and compute
nothing: those are told to who names them, and to nobody else. `before` selects in the same way the
calls that it is told before; None for all.

Private: how many function modes there are, and whether torch.jit.trace is at work (2.13).
"""

from __future__ import annotations

import sys
from collections.abc import Container, Sequence
from types import FrameType, FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling
from torch.nn import Parameter
from torch.overrides import TorchFunctionMode, handle_torch_function

from ..dynamo import is_jit_tracing, uncompiled_itself
from ..frames import hide, programs, variables
from ..functions import METADATA_CALLS, TensorBase
from ..guards import set_grad_enabled
from .dispatch import sequence_number
from .modes import FUNCTIONS, leave
from .watch import Miss, Tell, methods, tell

# torch.compile knows these as methods of a tensor, and in no other way.
_METHODS: tuple[Any, ...] = (
    Tensor.backward,
    Tensor.dim_order,
    Tensor.register_post_accumulate_grad_hook,
    Tensor.share_memory_,
    Tensor.split,  # 2.8
    Tensor.unflatten,
)
_PLAIN = (Tensor, Parameter)
# Calls that read what a tensor is, and make no node and no copy meanwhile.
_READS = METADATA_CALLS - {Tensor.backward, Tensor.__repr__, Tensor.__format__}
_REMEMBERED = (
    10_000  # kinds of calls whose listeners are known: a program may make new ones for ever
)


_IN_PYTHON = {
    name: method
    for name, method in vars(Tensor).items()
    if isinstance(method, FunctionType)
    and method.__code__.co_filename == torch._tensor.__file__  # not a program's already
}

_new: Any = tuple.__new__  # an event from a row of its fields, without a call of Python's


class Calling(NamedTuple):
    """A call into torch is about to be made."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any] | None
    frame: FrameType  # that makes it
    start: int  # number of this thread's next node


class Called(NamedTuple):
    """A call into torch has returned. It made the nodes start <= number < end."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any] | None
    result: Any
    frame: FrameType  # that made it
    start: int
    end: int


class Raised(NamedTuple):
    """A call into torch has raised."""

    error: BaseException
    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any] | None
    frame: FrameType  # that made it


class _Listening(NamedTuple):
    """Who listens to calls of one kind."""

    before: Tell
    after: Tell
    computes: bool
    own: Any  # PyTorch's function, where a program has put this one in its place; else None


class _ByKind(dict[Any, _Listening]):
    """That, by function, with the names of keywords if there are any: the one look-up of a call."""

    def __init__(self, listeners: Sequence[Any]) -> None:
        self._listeners = listeners

    def __missing__(self, kind: Any) -> _Listening:
        func, *keywords = kind if type(kind) is tuple else (kind,)
        computes = func not in _READS
        wanting = [one for one in self._listeners if wants(one, func, computes, keywords)]
        before = [one for one in wanting if _is_named(getattr(one, "before", None), func, keywords)]
        own = original(func)  # of `x.grad` each call has another object, which is equal
        told = methods(before, "calling"), methods(wanting, "called")
        found = _Listening(*told, computes, None if own == func else own)
        if len(self) < _REMEMBERED:
            self[kind] = found
        return found


def wants(listener: object, func: Any, computes: bool, keywords: Sequence[str] = ()) -> bool:
    """Does a listener want to be told of the calls of a function with these keywords."""
    functions: Container[Any] | None = getattr(listener, "functions", None)
    return computes if functions is None else _is_named(functions, func, keywords)


def _is_named(names: Container[Any] | None, func: Any, keywords: Sequence[str]) -> bool:
    return names is None or func in names or any(name in names for name in keywords)


class CallWatch(TorchFunctionMode):
    """Tells of each call into torch that a program makes.

    Args:
        listeners: in the order in which they are told.
        program: a key of `programs`: calls that are made where it is not there are another's.
        miss: takes what a listener raised.
    """

    def __init__(self, listeners: Sequence[object], program: object, miss: Miss) -> None:
        super().__init__()
        self._by_kind = _ByKind(listeners)
        every = [one for one in listeners if wants(one, None, True)]
        self._every = methods(every, "called")
        self._raised = methods(listeners, "raised")
        self.program = program
        self._miss = miss
        self._end = sequence_number()  # when a call that computes was told last

    def __enter__(self) -> CallWatch:
        self._end = sequence_number()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *_: object) -> None:
        leave(self, FUNCTIONS)  # where recordings overlap, another's may be uppermost

    def tell(self, called: Called) -> None:
        """Tell of a call that the mode did not see."""
        tell(self._by_kind[called.func].after, called, self._miss)

    @uncompiled_itself
    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is set_grad_enabled:  # at once: a Ctrl-C on the way would leave the mode as it is
            return func(*args, **(kwargs or {}))
        if is_dynamo_compiling():
            if func in _METHODS and type(args[0]) in _PLAIN:
                return getattr(args[0], func.__name__)(*args[1:], **(kwargs or {}))
            return func(*args, **(kwargs or {}))
        if self.program not in programs() or is_jit_tracing():
            return func(*args, **(kwargs or {}))
        before, after, computes, own = self._by_kind[(func, *kwargs) if kwargs else func]
        if own is not None and _is_called_by_itself(own, sys._getframe(1)):
            func = own  # the program's function has run already, or was never called
            before, after, computes, _ = self._by_kind[(func, *kwargs) if kwargs else func]
        start = sequence_number() if computes or before else -1
        if before:
            tell(before, Calling(func, args, kwargs, _outside(sys._getframe(1)), start), self._miss)
        try:
            result = func(*args, **kwargs) if kwargs else func(*args)
        except BaseException as error:
            # In no variable: frames below this one, which the error holds, hold this one.
            tell(
                self._raised,
                Raised(error, func, args, kwargs, _outside(sys._getframe(1))),
                self._miss,
            )
            hide(error)
            raise
        end = sequence_number()
        if not computes:
            start = end
            if end == self._end and not after:
                return result
            if end != self._end:  # nodes were made by no call that was seen
                after = (*self._every, *after)
        self._end = end
        if after:
            frame = sys._getframe(1)
            if frame.f_code is _HANDLER:
                frame = _outside(frame)
            row = func, args, kwargs, result, frame, start, end
            tell(after, _new(Called, row), self._miss)
        return result


_HANDLER = CallWatch.__torch_function__.__code__


def under_way() -> Any:
    """The function whose call, as far as it is watched, is under way in this thread; None: none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not _HANDLER:
        frame = frame.f_back
    return None if frame is None else variables(frame, "func")[0]


def _outside(frame: FrameType) -> FrameType:
    """The program's own frame, where another watch of calls stands above this one."""
    while frame.f_code is _HANDLER and frame.f_back is not None:
        frame = frame.f_back
    return frame


def original(function: Any) -> Any:
    """PyTorch's own method of a tensor where a program has put this function in its place.

    A method that is written in C++ names itself to a function mode by `torch.Tensor`'s attribute of
    its name, which is the program's function then.

    Returns:
        The function itself where it stands in the place of no method, or of more than one.

    >>> original(torch.relu) is torch.relu, original(Tensor.norm) is Tensor.norm
    (True, True)
    """
    names = [name for name, method in vars(Tensor).items() if method is function]
    if len(names) != 1:
        return function
    return _IN_PYTHON.get(names[0]) or vars(TensorBase).get(names[0], function)


def _is_called_by_itself(method: Any, caller: FrameType) -> bool:
    """Has PyTorch's own method, and not a function in its place, called the function mode.

    Args:
        method: from `original`.
        caller: the frame that called the mode.
    """
    if caller.f_code is not handle_torch_function.__code__:  # C++ has called
        return not isinstance(method, FunctionType)
    python = caller.f_back
    its = getattr(method, "__code__", None)
    return python is not None and python.f_code is its
