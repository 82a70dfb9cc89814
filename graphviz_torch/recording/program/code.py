"""Find source positions in the program's bytecode, without running it."""

from __future__ import annotations

import dis
from collections.abc import Iterable, Iterator
from types import CodeType, FrameType

from ...internals.frames import OWN, CodePosition
from .program import Program


def codes(
    program: Program, classes: Iterable[type] = (), more: Iterable[CodeType] = ()
) -> Iterator[CodeType]:
    """Yield the code objects of the user's functions that are involved in a recording.

    These are the functions that are running around the recording, innermost first, and the methods
    of the classes of the program's modules. Functions nested in them follow.

    Args:
        program: the recorded program.
        classes: classes whose methods are included in addition.
        more: code objects that are yielded first.
    """
    found: list[CodeType] = list(more)
    frame, files = program.frame, program.stack.files
    while frame is not None:
        if files[frame.f_code.co_filename] == OWN:
            found.append(frame.f_code)
        frame = frame.f_back
    for kind in {*classes, *(type(module) for module, _ in program.table.modules())}:
        functions = (getattr(value, "__code__", None) for value in vars(kind).values())
        found += [code for code in functions if code and files[code.co_filename] == OWN]
    for code in found:
        yield code
        found += [part for part in code.co_consts if isinstance(part, CodeType)]


def find_method_call(codes: Iterable[CodeType], method: str, name: str = "") -> CodePosition | None:
    """Return the position of the only call of a method; None if there is no call or several.

    Args:
        codes: the code objects to search.
        method: name of the method.
        name: name of the variable or attribute whose method is called. "" matches any name.
    """
    found: set[CodePosition] = set()
    for code in codes:
        before = ""
        for step in dis.get_instructions(code) if method in code.co_names else ():
            loaded = step.opname in ("LOAD_METHOD", "LOAD_ATTR") and step.argval == method
            if loaded and (not name or before == name):
                found.add((code, step.offset))
            before = step.argval if step.opname.startswith("LOAD_") else ""
    return found.pop() if len(found) == 1 else None


def owners_of_method(codes: Iterable[CodeType], method: str) -> set[str]:
    """Return the names of the variables and attributes on which code calls this method.

    Args:
        codes: the code objects to search.
        method: name of the method.
    """
    found: set[str] = set()
    for code in codes:
        before = ""
        for step in dis.get_instructions(code) if method in code.co_names else ():
            if step.opname in ("LOAD_METHOD", "LOAD_ATTR") and step.argval == method:
                found.add(before)
            before = step.argval if step.opname.startswith("LOAD_") else ""
    return found


def find_assignment(codes: Iterable[CodeType], attribute: str) -> CodePosition | None:
    """Return the position of the only assignment to an attribute; None for none or several.

    If the first code object assigns to the attribute, the other code objects are ignored.
    """
    return _find_only_store(codes, attribute, ("STORE_ATTR",))


def find_store(codes: Iterable[CodeType], name: str) -> CodePosition | None:
    """Return the position of the only assignment to an attribute or item of this name.

    Returns None if there is no assignment, or several.
    """
    found: set[CodePosition] = set()
    for code in codes:
        known = name in code.co_names or name in code.co_consts
        before: object = None
        for step in dis.get_instructions(code) if known else ():
            stores = step.opname == "STORE_ATTR" and step.argval == name
            if stores or (step.opname == "STORE_SUBSCR" and before == name):
                found.add((code, step.offset))
            before = step.argval if step.opname == "LOAD_CONST" else None
    return found.pop() if len(found) == 1 else None


def find_variable(codes: Iterable[CodeType], name: str) -> CodePosition | None:
    """Return the position of the only assignment to a variable or to an attribute of this name."""
    return _find_only_store(codes, name, ("STORE_ATTR", "STORE_NAME", "STORE_GLOBAL", "STORE_FAST"))


def _find_only_store(
    codes: Iterable[CodeType], name: str, operations: tuple[str, ...]
) -> CodePosition | None:
    lines: list[list[CodePosition]] = []
    for code in codes:
        known = name in code.co_names or name in code.co_varnames
        steps = dis.get_instructions(code) if known else ()
        found = [s for s in steps if s.opname in operations and s.argval == name]
        lines.append([(code, step.offset) for step in found])
    every = [place for found in lines for place in found]
    chosen = lines[0] if lines and lines[0] else every
    return chosen[0] if len(set(chosen)) == 1 else None


def is_made_by_call(frame: FrameType, name: str) -> bool:
    """Return True if the frame last assigned the result of a call to this local variable."""
    made, before = False, ""
    for step in dis.get_instructions(frame.f_code):
        if step.offset > frame.f_lasti:
            break
        if step.opname.startswith("STORE_") and step.argval == name:
            made = before.startswith("CALL")
        before = step.opname
    return made
