"""Find arguments that a function never reads, and Functions whose context keeps their result.

Two kinds of arguments are checked: tensors that the program passes to the forward of an outermost
module, and gradients that autograd passes to the backward of a custom Function. If forward never
reads its `**kwargs`, numbers in them are checked, too.

The context of a Function is the node of its result. A result that is an attribute of its own node
is a reference cycle: it is freed only when Python's garbage collector runs.
"""

from __future__ import annotations

import dis
import inspect
import weakref
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any, ClassVar

from torch import Tensor

from ...findings.rules.custom_functions import ResultOnContext, UnreadArgument
from ...internals.frames import OWN, CodePosition, frame_variables, user_frame
from ...internals.hooks.modules import ModuleBegan
from ...internals.tensors.metadata import is_custom
from ...tracing.nodes import grad_fn_of
from ..live import LiveGraph
from ..program import Program
from ..program.events import UserLine
from ..program.log import Found, Query, RowsOf

_LOADS = ("LOAD_FAST", "LOAD_DEREF", "LOAD_CLOSURE")
_MAX_CLASSES = 1024


# Class of a module or node -> names of the unread arguments; () if all are read.
_unread: weakref.WeakKeyDictionary[type, tuple[str, ...]] = weakref.WeakKeyDictionary()


def forwards(event: ModuleBegan, program: Program) -> Iterator[Found]:
    """Yield the tensors that the program passes to a forward that never reads them."""
    kind = type(event.module)
    unread = _unread_arguments(kind, _forward_arguments, program)
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
        yield Found(found, program.place(user_frame(event.frame)))


def functions(live: LiveGraph, program: Program) -> Iterator[Found]:
    """Yield the custom Functions of a graph whose backward reads no gradient."""
    for kind in {type(fn) for fn in live.own}:
        if not is_custom(kind) or not (unread := _unread_arguments(kind, _gradients, program)):
            continue
        function, code = kind._forward_cls, _code_of(kind._forward_cls.backward)
        numbers = tuple([int(fn._sequence_nr()) for fn in live.own if type(fn) is kind])
        found = UnreadArgument(owner=function.__name__, argument=unread[0], gradient=True)
        place = None if code is None else (code, 0)
        yield Found(found, None, numbers, latest={"defined": UserLine(place)})


class UnreadArguments(Query):
    """Find tensor arguments that the called function never reads."""

    rows_of: ClassVar[RowsOf] = {"on_outermost_start": forwards, "on_graph_read": functions}


def _unread_arguments(
    kind: Any, read: Callable[[Any], tuple[str, ...]], program: Program
) -> tuple[str, ...]:
    """Return the unread arguments of a class of modules or nodes; () if it is not the program's."""
    found = _unread.get(kind)
    if found is None:
        found = read(kind)
        if len(_unread) < _MAX_CLASSES:
            _unread[kind] = found
    files = program.stack.files
    owned = found and all(files[code.co_filename] == OWN for code in _codes(kind))
    return found if owned else ()


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


def context_results(live: LiveGraph, program: Program) -> Iterator[Found]:
    """Yield the results that custom Functions keep as attributes of `ctx`."""
    kinds = {kind for kind in set(map(type, live.own)) if is_custom(kind)}
    for fn in live.own if kinds else ():
        for name, value in vars(fn).items() if type(fn) in kinds else ():
            if isinstance(value, Tensor) and grad_fn_of(value) is fn:
                function = fn._forward_cls
                place = _assignment(function, name)
                if place is not None:
                    _ = program.stack.files[place[0].co_filename]
                event = ResultOnContext(function=function.__name__, attribute=name)
                yield Found(event, place, (int(fn._sequence_nr()),))


class ContextTensors(Query):
    """Find results that a custom Function keeps as attributes of `ctx`."""

    rows_of: ClassVar[RowsOf] = {"on_graph_read": context_results}


def _assignment(function: Any, attribute: str) -> CodePosition | None:
    """Return the position at which a Function assigns to an attribute; None if it is unknown."""
    for method in (function.forward, function.setup_context):
        code: CodeType | None = getattr(method, "__code__", None)
        for step in dis.get_instructions(code) if code is not None else ():
            if step.opname == "STORE_ATTR" and step.argval == attribute and code is not None:
                return code, step.offset
    return None
