"""Find arguments that a function of the program never reads, by inspecting its bytecode.

Two kinds of arguments are checked: tensors that the program passes to the forward of an outermost
module, and gradients that autograd passes to the backward of a custom Function. If forward never
reads its `**kwargs`, numbers in them are checked, too.
"""

from __future__ import annotations

import dis
import inspect
import weakref
from collections.abc import Callable
from functools import partial
from types import CodeType, FunctionType
from typing import Any

from torch import Tensor

from ...findings.rules.custom_functions import UnreadArgument
from ...internals.frames import OWN, frame_variables, user_frame
from ...internals.hooks.modules import ModuleBegan
from ...internals.tensors.metadata import is_custom
from ...tracing.nodes import GradFn
from ..listener import Listener
from ..live import LiveGraph
from ..program import Program
from ..program.events import UserLine

_LOADS = ("LOAD_FAST", "LOAD_DEREF", "LOAD_CLOSURE")
_MAX_CLASSES = 1024


class UnreadArguments(Listener):
    """Listener that reports tensor arguments that the called function never reads."""

    needs = ("every_call",)

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        # Class of a module or node -> names of the unread arguments; () if all are read.
        self._unread: weakref.WeakKeyDictionary[type, tuple[str, ...]] = weakref.WeakKeyDictionary()
        attempt = program.remarks.attempt
        program.stack.on_outermost_start.append(partial(attempt, self._on_outermost_start))

    def _on_outermost_start(self, event: ModuleBegan) -> None:
        kind = type(event.module)
        unread = self._unread_arguments(kind, _forward_arguments)
        if not unread:
            return
        args, kwargs = frame_variables(event.frame, "args", "kwargs")
        args, code = event.args if args is None else args, kind.forward.__code__
        names = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
        given = dict(zip(names, args, strict=False)) | (kwargs or {})
        named = [name for name in unread if isinstance(given.get(name), Tensor)]
        if _rest_name(code) in unread:
            rest = {name: value for name, value in given.items() if name not in names}
            named += [name for name, value in rest.items() if _is_number(value)]
        for name in named:
            found = UnreadArgument(owner=kind.__name__, argument=name)
            self.events.note(found, self.program.place(user_frame(event.frame)))

    def on_graph_read(self, live: LiveGraph) -> None:
        for kind in {type(fn) for fn in live.own}:
            if is_custom(kind) and (unread := self._unread_arguments(kind, _gradients)):
                self._note_function(kind, unread, [fn for fn in live.own if type(fn) is kind])

    def _note_function(self, kind: Any, unread: tuple[str, ...], fns: list[GradFn]) -> None:
        function = kind._forward_cls
        code = _code_of(function.backward)
        numbers = [int(fn._sequence_nr()) for fn in fns]
        place = None if code is None else (code, 0)
        if place is not None:
            _ = self.program.stack.files[place[0].co_filename]
        found = UnreadArgument(owner=function.__name__, argument=unread[0], gradient=True)
        self.events.note(found, None, numbers, defined=UserLine(place))

    def _unread_arguments(
        self, kind: type, read: Callable[[Any], tuple[str, ...]]
    ) -> tuple[str, ...]:
        found = self._unread.get(kind)
        if found is None:
            found = read(kind)
            owned = all(self.program.stack.files[c.co_filename] == OWN for c in _codes(kind))
            found = found if owned else ()
            if len(self._unread) < _MAX_CLASSES:
                self._unread[kind] = found
        return found


def _is_number(value: object) -> bool:
    return isinstance(value, Tensor) or type(value) in (int, float)


def _codes(kind: Any) -> list[CodeType]:
    function = kind._forward_cls.backward if is_custom(kind) else kind.forward
    code = _code_of(function)
    return [] if code is None else [code]


def _code_of(function: Any) -> CodeType | None:
    """Return the code of a Python function, or of the function that decorators wrap; else None."""
    function = inspect.unwrap(function) if callable(function) else None
    return function.__code__ if isinstance(function, FunctionType) else None


def _forward_arguments(kind: Any) -> tuple[str, ...]:
    """Return the names of the arguments that the forward of a module class never reads."""
    code: CodeType | None = getattr(kind.forward, "__code__", None)
    if code is None or code is not _code_of(kind.forward):
        return ()
    names = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
    names += (_rest_name(code),)
    read = _read_names(code)
    return tuple(n for n in names if n not in read and n.strip("_") == n != "") if read else ()


def _rest_name(code: CodeType) -> str:
    """Return the name of the argument `**kwargs` of a function; "" if there is none."""
    if not code.co_flags & inspect.CO_VARKEYWORDS:
        return ""
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS)
    return code.co_varnames[count]


def _gradients(kind: Any) -> tuple[str, ...]:
    """Return the names of the gradients passed to a custom backward that reads none of them.

    Returns () if backward reads any of its gradients.
    """
    code = _code_of(kind._forward_cls.backward)
    if code is None:
        return ()
    count = code.co_argcount + bool(code.co_flags & inspect.CO_VARARGS)
    names = code.co_varnames[1:count]
    return () if _read_names(code).intersection(names) else names


def _read_names(code: CodeType) -> set[str]:
    """Return the names of the local variables that a function reads."""
    read: set[str] = {*code.co_cellvars}
    for step in dis.get_instructions(code):
        if step.opname.startswith(_LOADS):
            read.update(step.argval if isinstance(step.argval, tuple) else (step.argval,))
    return read
