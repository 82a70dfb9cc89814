"""Find values that a script computes, assigns to a variable, and never reads.

The variable is assigned again before it is read. The statements of a function are followed from the
last to the first, with the set of variables that are read later. Where the order is not certain, as
in `try`, or with variables that nested functions read, a variable counts as read.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import NamedTuple

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
