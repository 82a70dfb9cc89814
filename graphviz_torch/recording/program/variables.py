"""Find the user's name for a called module, and whether the user's code has several models."""

from __future__ import annotations

from collections.abc import Iterator
from dis import get_instructions
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any

from torch.nn import Module, Parameter

from ...internals.frames import local_variables, user_frame
from ...internals.tensors.pytree import own_attributes

_CONTAINERS = (list, tuple, dict)
_EXPRESSIONS = ("<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>", "<lambda>")
_MAX_ITEMS = 1000  # larger containers are not searched


def variable(module: Module, caller: FrameType) -> str:
    """Return the name of a module in the calling code; "" if nothing refers to the module.

    The variables and the attributes of `self` are searched. The name of a variable's value is
    "head", and that of an item of a list, dict or module is "heads.1". In a loop over a container,
    an item is named after the container, not after the loop variable.

    Args:
        module: the module.
        caller: frame of the calling code.
    """
    modules = list(modules_of(caller))
    own = next((name for name, value in modules if value is module), "")
    if own and own not in _loop_variables(caller):
        return own
    for name, value in modules:
        parts = dict(_parts(value))
        if value is module or (len(parts) < 2 and not isinstance(value, Module)):
            continue  # the only module of a list is better named after its class
        for path, part in parts.items():
            inner = next((inner for inner, one in _named_modules(part) if one is module), None)
            if inner is not None:
                return ".".join(filter(None, (name, path, inner)))
    return own


def calling_model(module: Module, caller: FrameType) -> tuple[Module, FrameType]:
    """Return the outermost module whose method led to a call, and the frame that called the method.

    If `q_network.get_action(x)` calls `self.network(x)`, the outermost module is `q_network`.

    Args:
        module: the module that was called.
        caller: frame of the calling code.
    """
    frame = user_frame(caller)
    while frame is not None and frame.f_back is not None:
        method_of: Any = local_variables(frame).get("self")
        if not issubclass(type(method_of), Module) or method_of is module:
            break
        if id(module) not in _ids(method_of):
            break
        module, caller = method_of, frame.f_back
        frame = user_frame(caller)
    return module, caller


def _loop_variables(caller: FrameType) -> frozenset[str]:
    """Return the names of the loop variables of the calling code."""
    frame = user_frame(caller)
    return frozenset() if frame is None else _bound_by_loops(frame.f_code)


@lru_cache(1000)
def _bound_by_loops(code: CodeType) -> frozenset[str]:
    found: set[str] = set()
    binds = False
    for instruction in get_instructions(code):
        if instruction.opname == "FOR_ITER":
            binds = True
        elif binds and instruction.opname.startswith("STORE_"):
            names = instruction.argval  # from Python 3.13 on, a tuple of two names
            found.update((names,) if isinstance(names, str) else names)
        else:
            binds = binds and instruction.opname.startswith("UNPACK_")
    return frozenset(found)


def has_another_model(module: Module, caller: FrameType) -> bool:
    """Return True if the calling code has another model besides `module`, as with a GAN.

    A module with parameters is another model if it does not contain `module`, and `module` does not
    contain it.
    """
    inside = _ids(module)
    return any(
        id(other) not in inside
        and next(parameters_of(other), None) is not None
        and id(module) not in _ids(other)
        for _, value in modules_of(caller)
        for _, other in _parts(value)
    )


def modules_of(caller: FrameType) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of variables of the calling code that may contain modules.

    These are modules, lists, tuples and dicts among the variables and the attributes of `self`.
    Variables of a notebook or script are yielded only if the running code mentions them.
    """
    frame = user_frame(caller)
    while frame is not None:
        yield from _modules_in(frame)
        # A comprehension has its own frame, so the frame around it is searched, too.
        frame = user_frame(frame.f_back) if frame.f_code.co_name in _EXPRESSIONS else None


def _modules_in(frame: FrameType) -> Iterator[tuple[str, Any]]:
    code = frame.f_code
    named = {*code.co_names, *code.co_varnames, *code.co_cellvars, *code.co_freevars}
    values = local_variables(frame)
    for name, value in values.items():
        if name in named and (issubclass(type(value), Module) or type(value) in _CONTAINERS):
            yield name, value
    attributes = own_attributes(values.get("self"))
    for name, value in (attributes | attributes.get("_modules", {})).items():
        listed = type(value) in _CONTAINERS and name[0] != "_"
        if listed or issubclass(type(value), Module):
            yield name, value


def _parts(value: Any) -> Iterator[tuple[str, Module]]:
    """Yield the modules in a list or dict, each with its key. A single module has the key ""."""
    if isinstance(value, Module):
        yield "", value
    elif len(value) <= _MAX_ITEMS:
        pairs = value.items() if type(value) is dict else enumerate(value)
        for place, part in pairs:
            if issubclass(type(part), Module) and type(place) in (str, int):
                yield str(place), part


def _named_modules(module: Module) -> Iterator[tuple[str, Module]]:
    """Yield the same pairs as `named_modules()`, without running code of the user."""
    found = {id(module)}
    stack = [("", module)]
    while stack:
        path, module = stack.pop()
        yield path, module
        for name, inner in module.__dict__.get("_modules", {}).items():
            if inner is not None and id(inner) not in found:
                found.add(id(inner))
                stack.append((f"{path}.{name}" if path else name, inner))


def _ids(module: Module) -> set[int]:
    """Return the id() of a module and its submodules."""
    return {id(inner) for _, inner in _named_modules(module)}


def parameters_of(module: Module) -> Iterator[Parameter]:
    """Yield the parameters of a module and its submodules, without running code of the user."""
    for _, inner in _named_modules(module):
        parameters = inner.__dict__.get("_parameters", {}).values()
        yield from (each for each in parameters if each is not None)
