"""What the user's code that calls a module calls it, and whether it has several models."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from types import FrameType

from torch.nn import Module

from ...internals.frames import local_variables, user_frame


def variable(module: Module, caller: FrameType) -> str:
    """The variable, or the attribute of `self`, that holds a module; "" if none does."""
    return next((name for name, value in _modules(caller) if value is module), "")


def has_another_model(module: Module, caller: FrameType) -> bool:
    """Does that code hold another model beside this one: two players of a GAN, say.

    Two modules are two models if both have parameters and neither is inside the other.
    """
    inside = _ids(module)
    return _has_parameters(module) and any(
        id(other) not in inside and _has_parameters(other) and id(module) not in _ids(other)
        for _, other in _modules(caller)
    )


def _modules(caller: FrameType) -> Iterator[tuple[str, Module]]:
    """The modules in the variables of the user's code that calls, and in the attributes of `self`.

    Of the variables of a notebook or a script only those that its code names.
    """
    frame = user_frame(caller)
    if frame is None:
        return
    code = frame.f_code
    named = {*code.co_names, *code.co_varnames, *code.co_cellvars, *code.co_freevars}
    values = local_variables(frame)
    for name, value in values.items():
        if name in named and issubclass(type(value), Module):
            yield name, value
    with suppress(AttributeError):  # without `self`, or one without a dict
        attributes = object.__getattribute__(values.get("self"), "__dict__")
        for name, value in (attributes | attributes.get("_modules", {})).items():
            if issubclass(type(value), Module):
                yield name, value


def _ids(module: Module) -> set[int]:
    """id() of a module and of all inside it."""
    return {id(inner) for inner in _inside(module)}


def _has_parameters(module: Module) -> bool:
    return any(
        parameter is not None
        for inner in _inside(module)
        for parameter in inner.__dict__.get("_parameters", {}).values()
    )


def _inside(module: Module) -> Iterator[Module]:
    """As `modules()`, without a line of the user's: a class may have its own."""
    found = {id(module)}
    stack = [module]
    while stack:
        module = stack.pop()
        yield module
        for inner in module.__dict__.get("_modules", {}).values():
            if inner is not None and id(inner) not in found:
                found.add(id(inner))
                stack.append(inner)
