"""Represent the result of `.item()` in a rehearsal, a number that can be printed but not compared.

A rehearsal has no values. An `UnknownScalar` is printed as 0, and arithmetic with it returns an
`UnknownScalar`. A comparison or a conversion makes the rest of the program depend on the value.
Both therefore call a function, which returns the value to use or raises. `math` and C code read 0.
Source code decides whether a line only prints or logs the value.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Callable, Iterator
from functools import lru_cache
from types import FrameType
from typing import Any

# Names of methods: arithmetic returns an UnknownScalar; comparisons and conversions need its value.
_COMPUTES = (
    "add sub mul truediv floordiv mod pow radd rsub rmul rtruediv rfloordiv rmod rpow neg pos"
)
_COMPUTES += " abs round trunc floor ceil"
_DECIDES = "eq ne lt le gt ge bool int float"


class UnknownScalar(float):
    """A float whose value is unknown.

    Args:
        on_decision: called when the program needs the value; returns the value to use.
    """

    on_decision: Callable[[], float]

    def __new__(cls, on_decision: Callable[[], float]) -> UnknownScalar:
        made = super().__new__(cls)
        made.on_decision = on_decision
        return made

    def __reduce__(self) -> Any:
        return float, (0.0,)  # a copy, or a scalar loaded from a checkpoint, is a plain 0.0

    __hash__ = float.__hash__


def _compute(self: UnknownScalar, *others: Any) -> Any:
    return UnknownScalar(self.on_decision) if _are_numbers(others) else NotImplemented


def _deciding(name: str) -> Callable[..., Any]:
    def decide(self: UnknownScalar, *others: Any) -> Any:
        if not _are_numbers(others):
            return NotImplemented  # Python calls the method of the other operand, such as a tensor
        return getattr(float, name)(self.on_decision(), *others)

    return decide


def _are_numbers(values: tuple[Any, ...]) -> bool:
    return all(isinstance(each, (int, float)) or each is None for each in values)


for _name in _COMPUTES.split():
    setattr(UnknownScalar, f"__{_name}__", _compute)
for _name in _DECIDES.split():
    setattr(UnknownScalar, f"__{_name}__", _deciding(f"__{_name}__"))


_LOGS = {"print", "log", "logger", "logging", "writer", "wandb", "mlflow"}
_LOGS |= {"pbar", "progress", "tqdm"}
_Scope = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef
_FUNCTIONS = ast.FunctionDef, ast.AsyncFunctionDef


def only_printed(frame: FrameType) -> bool:
    """Return True if the running line of `frame` only prints or logs the value that it reads."""
    text = "".join(linecache.getlines(frame.f_code.co_filename, frame.f_globals))
    return _line_prints(text, frame.f_lineno)


@lru_cache(maxsize=1000)
def _line_prints(text: str, line: int) -> bool:
    tree = _tree(text)
    if tree is None:
        return False
    scope: _Scope = tree
    for each in ast.walk(tree):  # outer functions first
        if isinstance(each, _FUNCTIONS) and _covers(each, line):
            scope = each
    found = [each for each in _statements(scope) if _covers(each, line)]
    return bool(found) and all(_prints(each, scope, tree, set()) for each in found)


@lru_cache(maxsize=16)
def _tree(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):  # a notebook cell with a magic command
        return None


def _covers(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _statements(scope: _Scope) -> Iterator[ast.stmt]:
    """Yield the simple statements of a function or module, and its `if` and `while` tests."""
    for node in ast.walk(scope):
        if isinstance(node, ast.stmt) and node is not scope and not hasattr(node, "body"):
            yield node
        elif isinstance(node, (ast.If, ast.While)):
            yield ast.copy_location(ast.Assert(node.test, None), node.test)


def _prints(statement: ast.stmt, scope: _Scope, tree: ast.Module, known: set[str]) -> bool:
    """Return True if a statement only prints the values that it reads.

    Args:
        statement: the statement.
        scope: the function or module that contains the statement.
        tree: the whole file.
        known: names that are assumed to be only printed.
    """
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Call) and _logs(statement.value.func)
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, (ast.AugAssign, ast.AnnAssign)):
        targets = [statement.target]
    else:
        return False
    names = [each.id for each in targets if isinstance(each, ast.Name)]
    return len(names) == len(targets) and all(_is_printed(n, scope, tree, known) for n in names)


def _is_printed(name: str, scope: _Scope, tree: ast.Module, known: set[str]) -> bool:
    """Return True if all statements that read `name` only print it.

    A caller is checking the names in `known`.

    Args:
        name: name of a variable.
        scope: the function or module that contains the variable.
        tree: the whole file.
        known: names that are assumed to be only printed.
    """
    if name in known:
        return True
    known.add(name)
    outer = any(
        isinstance(n, (ast.Global, ast.Nonlocal)) and name in n.names for n in ast.walk(scope)
    )
    scope = tree if outer else scope
    reading = [node for node in ast.walk(scope) if isinstance(node, ast.Name) and node.id == name]
    reading = [node for node in reading if isinstance(node.ctx, ast.Load)]
    inside = {id(node): each for each in _statements(scope) for node in ast.walk(each)}
    return all(
        id(node) in inside and _prints(inside[id(node)], scope, tree, known) for node in reading
    )


def _logs(function: ast.expr) -> bool:
    """Return True if an expression names a logger: `print`, `logger.info`, `writer.add_scalar`."""
    while isinstance(function, ast.Attribute):
        if function.attr in _LOGS:
            return True
        function = function.value
    return isinstance(function, ast.Name) and function.id in _LOGS
