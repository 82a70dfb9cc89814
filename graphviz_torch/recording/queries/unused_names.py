"""Find functions that a script never calls, and names and values that it never reads.

The source of the script is parsed once; nothing is evaluated. Only names that usually belong to a
training are reported, such as `update`, `mask` or `aux_loss`, because a script may well contain
other code that it does not use. A value that is overwritten before it is read is always reported.

The variable is assigned again before it is read. The statements of a function are followed from the
last to the first, with the set of variables that are read later. Where the order is not certain, as
in `try`, or with variables that nested functions read, a variable counts as read.
"""

from __future__ import annotations

import ast
import linecache
import re
import symtable
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from types import FrameType
from typing import Any, ClassVar

from torch.nn import Module

from ...findings.rules.unused_values import UnusedName, UnusedValue
from ...graph.immutable import NamedTuple
from ...internals.frames import OWN, CodePosition, notebook_cell, user_frames
from ...internals.hooks.optimizers import Stepping
from ..program import Program
from ..program.events import UserLine
from ..program.log import Found, Query, RowsOf
from ..program.source_lines import place_of

_MAX_SOURCE = 1 << 20  # characters of a file that is parsed
# Words in the names of functions that a training calls.
_FUNCTIONS = re.compile(
    r"(^|_)(loss|update|step|reset|init|freeze|unfreeze|normalize|mask|clip|sync|regulariz\w*|"
    r"penalty|schedule|warmup|tie)(_|$)"
)
# Words in the names of variables that change a loss or an average.
_VARIABLES = re.compile(
    r"(^|_)(loss|losses|mask|masks|padding|weights?|lengths?|valid|dones?|terminated|truncated|kl|"
    r"penalty|advantages?|entropy)(_|$)"
)
# Words in the names of further arguments of functions that change a training.
_ARGUMENTS = re.compile(
    r"(^|_)(schedulers?|ema|scaler|teacher|reference|negatives|temperature)(_|$)"
)
_SCRIPT = "__main__"


class UnusedNameRow(NamedTuple):
    """An unused name or value, with the position of its definition; for an argument, of the call.

    `assigned` is the position of the assignment to or of the event's owner, or of the next
    assignment to the variable.
    """

    event: UnusedName | UnusedValue
    place: CodePosition
    assigned: CodePosition | None = None


def unused_names(event: Stepping, program: Program) -> Iterable[UnusedNameRow]:
    """Return the unused names and values of the script, at its first optimizer step."""
    if program.log.admits(UnusedNameRow, "step", in_run=True):
        for frame in user_frames(event.frame.f_back):
            file = frame.f_code.co_filename
            if program.stack.files[file] == OWN and _is_script(frame):
                return _unused_names(file, frame.f_globals)
    return ()


class UnusedNames(Query):
    """Find functions, variables, arguments and values of the script that nothing uses."""

    rows_of: ClassVar[RowsOf] = {"on_optimizer_step_start": unused_names}

    def __init__(self) -> None:
        self._found: list[UnusedNameRow] = []

    def on_unused_name(self, row: UnusedNameRow) -> None:
        self._found.append(row)

    def events_of_run(self) -> Iterator[Found]:
        for row in self._found:
            yield Found(row.event, row.place, latest={"assigned": UserLine(row.assigned)})


def _is_script(frame: FrameType) -> bool:
    """Return True if the frame's file is the script, and not a cell of a notebook."""
    name, file = frame.f_globals.get("__name__"), frame.f_code.co_filename
    return name == _SCRIPT and not notebook_cell(file)


def _unused_names(file: str, variables: Mapping[str, Any]) -> list[UnusedNameRow]:
    """Return the unused functions, variables, arguments and values of a file.

    Args:
        file: the source file.
        variables: the global variables of the file.
    """
    source = "".join(linecache.getlines(file))
    parsed = _parse(source, file) if len(source) <= _MAX_SOURCE else None
    if parsed is None:
        return []
    tree, table = parsed
    assigned = dict(_assignments(tree, {"": set(variables)}))
    found = []
    for event, line in _unused_functions(tree, variables):
        set_at = assigned.get(event.owner)
        place = None if set_at is None else place_of(file, set_at)
        found.append(UnusedNameRow(event, place_of(file, line), place))
    for name, line in _assignments(tree, _unread_names(table)):
        found.append(UnusedNameRow(UnusedName(kind="variable", name=name), place_of(file, line)))
    for event, line, function in _unread_arguments(tree, table):
        found.append(UnusedNameRow(event, place_of(file, line), place_of(file, function)))
    for value in unused_values(tree):
        place, again = place_of(file, value.line), place_of(file, value.again)
        found.append(UnusedNameRow(UnusedValue(name=value.name), place, again))
    return found


@lru_cache(maxsize=1)  # a program may record each of its steps in a block of its own
def _parse(source: str, file: str) -> tuple[ast.Module, symtable.SymbolTable] | None:
    """Return the syntax tree and the symbol table of a file; None if it cannot be parsed.

    Args:
        source: the text of the file.
        file: name of the file.
    """
    try:
        return ast.parse(source), symtable.symtable(source, file, "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _unused_functions(
    tree: ast.Module, variables: Mapping[str, Any]
) -> Iterator[tuple[UnusedName, int]]:
    """Yield the functions and methods whose name occurs nowhere else in the file.

    Args:
        tree: the parsed file.
        variables: the global variables of the file.
    """
    used = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            used.add(node.attr)
        elif isinstance(node, ast.Name):
            used.add(node.id)
        elif isinstance(node, ast.Constant) and type(node.value) is str:
            used.update(node.value.split())  # getattr(model, "update")
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            if _is_unused(node, used):
                yield UnusedName(kind="function", name=node.name), node.lineno
        elif isinstance(node, ast.ClassDef):
            owner = variables.get(node.name)
            for each in node.body:
                if not isinstance(each, ast.FunctionDef) or not _is_unused(each, used):
                    continue
                # A metaclass may call the methods of its classes.
                if type(owner) is type and not _inherits(owner, each.name):
                    name = _instance(owner, variables)
                    yield UnusedName(kind="method", name=each.name, owner=name), each.lineno


def _is_unused(function: ast.FunctionDef, used: set[str]) -> bool:
    name = function.name
    return name not in used and not name.startswith("_") and bool(_FUNCTIONS.search(name))


def _inherits(owner: type, name: str) -> bool:
    """Return True if a base class may call the method; nn.Module calls only methods that it has.

    Args:
        owner: the class that defines the method.
        name: name of the method.
    """
    bases = owner.__mro__[1:-1]
    others = [base for base in bases if base is not Module]
    return bool(others) or any(name in vars(base) for base in bases)


def _instance(owner: type, variables: Mapping[str, Any]) -> str:
    """Return the name of a global variable with an instance of a class, or the class's name."""
    names = (name for name, value in variables.items() if type(value) is owner)
    return next(names, owner.__name__)


def _unread_names(table: symtable.SymbolTable) -> dict[str, set[str]]:
    """Return the variables that are assigned and never read, by the name of their function.

    The key of the module's own variables is "".
    """
    tables = [table]
    for each in tables:
        tables += each.get_children()
    outer = {s.get_name() for t in tables[1:] for s in t.get_symbols() if s.is_global()}
    found: dict[str, set[str]] = {}
    for each in tables:
        if each.get_type() == "class":
            continue
        is_module = each is table
        for symbol in each.get_symbols():
            name = symbol.get_name()
            if not symbol.is_assigned() or symbol.is_referenced() or symbol.is_parameter():
                continue
            if is_module and name in outer:
                continue
            if not is_module and (symbol.is_global() or not symbol.is_local()):
                continue
            if any(name in [s.get_name() for s in t.get_symbols()] for t in each.get_children()):
                continue  # a nested function may read it
            if _VARIABLES.search(name) and not name.startswith("_"):
                found.setdefault("" if is_module else each.get_name(), set()).add(name)
    return found


def _unread_arguments(
    tree: ast.Module, table: symtable.SymbolTable
) -> Iterator[tuple[UnusedName, int, int]]:
    """Yield the arguments that a function never reads, although the file passes a value for them.

    The lines of the call and of the function follow.

    Only functions that the file calls by name, and does nothing else with, are searched: the
    arguments of a function that is passed on, or that a base class calls, are given by its caller.

    Args:
        tree: the parsed file.
        table: the symbol table of the file.
    """
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    scopes = {each.get_name(): each for each in table.get_children()}
    names = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    for function in functions:
        own = [c for c in calls if isinstance(c.func, ast.Name) and c.func.id == function.name]
        other = names.count(function.name) > len(own) or function.decorator_list
        scope = scopes.get(function.name)
        computes = any(
            isinstance(node, ast.Call) for part in function.body for node in ast.walk(part)
        )
        if not own or other or scope is None or not computes:
            continue
        arguments = [each.arg for each in function.args.args]
        for name in arguments:
            given = [(_argument(call, name, arguments.index(name)), call.lineno) for call in own]
            lines = [line for value, line in given if isinstance(value, (ast.Name, ast.Attribute))]
            unread = not scope.lookup(name).is_referenced() and not _reads_inside(scope, name)
            if lines and unread and (_VARIABLES.search(name) or _ARGUMENTS.search(name)):
                event = UnusedName(kind="argument", name=name, owner=function.name)
                yield event, lines[0], function.lineno


def _argument(call: ast.Call, name: str, index: int) -> ast.expr | None:
    """Return the value that a call passes for an argument; None if it passes none.

    Args:
        call: the call.
        name: name of the argument.
        index: position of the argument.
    """
    if index < len(call.args):
        return call.args[index]
    return next((each.value for each in call.keywords if each.arg == name), None)


def _reads_inside(scope: symtable.SymbolTable, name: str) -> bool:
    """Return True if a function inside a function has a variable of this name."""
    inside = scope.get_children()
    return any(name in each.get_identifiers() or _reads_inside(each, name) for each in inside)


def _assignments(tree: ast.Module, unread: Mapping[str, set[str]]) -> Iterator[tuple[str, int]]:
    """Yield each unread variable, with the line of the first assignment of a computed value.

    Args:
        tree: the parsed file.
        unread: names of unread variables, by the name of their function.
    """
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name in unread]
    scopes: list[tuple[ast.AST, set[str]]] = [(each, unread[each.name]) for each in functions]
    if "" in unread:
        scopes.append((tree, unread[""]))
    for scope, names in scopes:
        known = set[str]()
        for node in _statements(scope):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                for name in _targets(node.targets):
                    if name in names and name not in known:
                        known.add(name)
                        yield name, node.lineno


def _statements(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function or module, without those of functions and classes inside."""
    rest = list(ast.iter_child_nodes(scope))
    while rest:
        node = rest.pop(0)
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Lambda)):
            rest += ast.iter_child_nodes(node)


def _targets(targets: Iterable[ast.expr]) -> Iterator[str]:
    for target in targets:
        if isinstance(target, ast.Name):
            yield target.id
        elif isinstance(target, ast.Tuple):
            yield from _targets(target.elts)


_MAX_DEPTH = 30  # deeper nested statements are not followed
_Scope = ast.Module | ast.FunctionDef
_Loop = ast.For | ast.AsyncFor | ast.While


class UnusedStore(NamedTuple):
    """An assignment whose value is never read, although the variable is."""

    name: str
    line: int
    again: int  # line of the next assignment to the variable


def unused_values(tree: ast.Module) -> Iterator[UnusedStore]:
    r"""Yield the assignments of a file whose computed values are never read, by line.

    >>> [*unused_values(ast.parse("def f(x):\n  y = g(x)\n  y = h(x)\n  return y"))]
    [UnusedStore(name='y', line=2, again=3)]

    Args:
        tree: the parsed file.
    """
    scopes: list[_Scope] = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    found = [each for scope in (tree, *scopes) for each in _Liveness(scope).unused_stores()]
    yield from sorted(found, key=lambda each: each.line)


class _Liveness:
    """The variables that are read after each statement of a function or a module."""

    def __init__(self, scope: _Scope) -> None:
        self._scope = scope
        nodes = [node for part in scope.body for node in _nodes_of(part)]
        self._read = {
            n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)
        }
        self._lines: dict[str, list[int]] = {}  # lines that assign each variable
        for node in nodes:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                self._lines.setdefault(node.id, []).append(node.lineno)
        self._names = self._lines.keys() - {
            name for node in nodes for name in _captured_names(node)
        }
        self._found: dict[int, UnusedStore] = {}
        self._in_loops: set[int] = set()  # lines of unused values inside of loops
        self._breaks: list[tuple[set[str], set[str]]] = []  # live after each loop, and at its start

    def unused_stores(self) -> list[UnusedStore]:
        """Return the assignments whose values are never read."""
        self._block(self._scope.body, set(), 0)
        if not isinstance(self._scope, ast.Module):
            return list(self._found.values())
        # Whoever runs a script may read its variables after the last line, but only the values of
        # the last iteration of a loop.
        in_loops = [each for each in self._found.values() if each.line in self._in_loops]
        self._found = {}
        self._block(self._scope.body, set(self._names), 0)
        return [*{*in_loops, *self._found.values()}]

    def _block(self, body: Sequence[ast.stmt], live: set[str], depth: int) -> set[str]:
        """Return the variables that are read from the begin of a block on.

        Args:
            body: the statements.
            live: the variables that are read after the block.
            depth: number of blocks around this one.
        """
        if depth > _MAX_DEPTH:
            return set(self._names)
        for statement in reversed(body):
            live = self._live_before(statement, live, depth)
        return live

    def _live_before(self, statement: ast.stmt, live: set[str], depth: int) -> set[str]:
        """Return the variables that are read from a statement on."""
        if isinstance(statement, ast.Assign):
            return self._assign(statement, live)
        if isinstance(statement, ast.If):
            branches = [self._block(b, live, depth + 1) for b in (statement.body, statement.orelse)]
            return set.union(*branches, _reads(statement.test))
        if isinstance(statement, _Loop):
            return self._loop(statement, live, depth)
        if isinstance(statement, (ast.With, ast.AsyncWith)):
            # A context manager may end its block at any statement.
            return self._block(statement.body, live, depth + 1) | live | _reads(*statement.items)
        if isinstance(statement, (ast.Try, ast.Match)):
            return set(self._names)
        if isinstance(statement, (ast.Return, ast.Raise)):
            return _reads(statement)
        if isinstance(statement, ast.Break):
            return set(self._breaks[-1][0])
        if isinstance(statement, ast.Continue):
            return set(self._breaks[-1][1])
        return live | _reads(statement)

    def _loop(self, loop: _Loop, live: set[str], depth: int) -> set[str]:
        head = loop.test if isinstance(loop, ast.While) else loop.iter
        after = self._block(loop.orelse, live, depth + 1) | live
        start = after | _reads(head)
        for _ in range(2):  # the second time with the variables that the next iteration reads
            self._breaks.append((after, start))
            before, self._found = self._found, {}
            start = start | self._block(loop.body, start, depth + 1)
            found, self._found = self._found, before
            self._breaks.pop()
        self._found |= found
        return start

    def _assign(self, statement: ast.Assign, live: set[str]) -> set[str]:
        """Return the variables that are read from an assignment on, and note an unused value."""
        targets = [t for t in statement.targets if isinstance(t, ast.Name)]
        names = {target.id for target in targets} & self._names
        if len(targets) == len(statement.targets) and not names & live:
            for name in names & self._read:
                if not name.startswith("_") and _is_computed(statement.value):
                    line, lines = statement.lineno, sorted(self._lines[name])
                    again = next((at for at in lines if at > line), lines[0])
                    self._found[line] = UnusedStore(name, line, again)
                    self._in_loops.update([statement.lineno] if self._breaks else [])
        return (live - names) | _reads(statement)


def _nodes_of(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and the nodes in it, and functions and classes without their bodies."""
    yield node
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
        for child in ast.iter_child_nodes(node):
            yield from _nodes_of(child)


def _captured_names(node: ast.AST) -> Iterator[str]:
    """Yield the variables that a function, a class or a declaration in a scope may read."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
        yield from _reads(node)
    elif isinstance(node, (ast.Global, ast.Nonlocal)):
        yield from node.names


def _reads(*nodes: ast.AST) -> set[str]:
    """Return the names that are read anywhere in these nodes."""
    every = [each for node in nodes for each in ast.walk(node)]
    names = [n for n in every if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Store)]
    augmented = [n.target for n in every if isinstance(n, ast.AugAssign)]
    return {n.id for n in names} | {n.id for n in augmented if isinstance(n, ast.Name)}


def _is_computed(value: ast.expr) -> bool:
    """Return True for a value that a call or an operator computes, but not from numbers alone."""
    parts = list(ast.walk(value))
    computes = any(isinstance(each, (ast.Call, ast.BinOp)) for each in parts)
    return computes and any(isinstance(each, ast.Name) for each in parts)
