"""The grammar of a small tensor language: names, numbers, operators, indexing and functions.

    a = x.to(device) + 2
    y = mean(a ** 2 + 3)

The text is parsed to a Python syntax tree, and the tree is checked. Python never runs any part of
the text: `evaluation.py` walks the tree. Inputs are lines such as `x = 1, 2, 3` or
`w = randn(3, 4)`.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NoReturn

from . import advice
from .functions import BINARY, FUNCTIONS, METHODS_ONLY_AS_FUNCTIONS, UNARY

MAX_LENGTH = 2_000  # largest number of characters in a program
MAX_DEPTH = 100  # largest number of nested expressions
MAX_NUMBER = 1e15  # largest absolute value; powers of larger ints could fill the memory
_LIBRARIES = {"torch", "nn", "F", "np", "numpy", "math", "jnp", "jax", "tf", "sp", "scipy"}

GRAMMAR = (
    "A line is `name = expression`; the last line is the output. An expression has names, "
    "numbers, + - * / ** @, parentheses, indexing such as x[0] or x[:, 1:3], x.to(device), "
    "x.cpu(), and these functions, also as methods: {functions}."
)


class ExpressionError(ValueError):
    """An error in a text. `line` and `column` of its position are counted from 1."""

    def __init__(self, message: str, text: str = "", line: int = 1, column: int = 1) -> None:
        lines = text.splitlines()
        shown = lines[line - 1] if 0 < line <= len(lines) else ""
        # Cut long lines around the position, so that the "^" below it stays visible.
        start = max(0, column - 41)
        pointer = (
            f"\n  {shown[start : start + 80]}\n  {' ' * (column - 1 - start)}^" if shown else ""
        )
        super().__init__(f"{message}{pointer}")
        self.message, self.line, self.column = message, line, column


@dataclass(frozen=True)
class ParsedProgram:
    """A parsed program. Each line is a name and the expression that is assigned to this name."""

    text: str
    lines: tuple[tuple[str, ast.expr], ...]

    @property
    def output(self) -> str:
        """The name that the last line assigns."""
        return self.lines[-1][0]

    @property
    def moves(self) -> bool:
        """True if any line copies a tensor to the device."""
        nodes = (node for _, expression in self.lines for node in ast.walk(expression))
        return any(isinstance(node, ast.Call) and callee(node)[0] == "to" for node in nodes)

    def with_copies(self, names: Iterable[str]) -> tuple[ParsedProgram, dict[str, str]]:
        """Return a program that first copies these inputs to the device, and then uses the copies.

        Returns:
            The program, and a dict: name that an added line assigns -> name of the input that it
            copies.
        """
        taken = {name for name, _ in self.lines} | set(names)
        copies: dict[str, str] = {}
        for name in names:
            copy = f"{name}_there"
            while copy in taken:
                copy += "_"
            copies[name] = copy
            taken.add(copy)
        lines = [(copy, _parse_expression(f"{name}.to(device)")) for name, copy in copies.items()]
        renamed = dict(copies)
        for name, expression in self.lines:
            lines.append((name, _Renamer(renamed).visit(_copy(expression))))
            renamed.pop(name, None)
        return ParsedProgram(self.text, tuple(lines)), {copy: n for n, copy in copies.items()}


class _Renamer(ast.NodeTransformer):
    """A transformer that replaces names in a syntax tree, and keeps their positions in the text."""

    def __init__(self, names: dict[str, str]) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.copy_location(ast.Name(self.names.get(node.id, node.id)), node)


def _parse_expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _copy(expression: ast.expr) -> ast.expr:
    copied: ast.expr = copy.deepcopy(expression)
    return copied


def parse(text: str) -> ParsedProgram:
    """Return the program in `text`.

    Raises:
        ExpressionError: if `text` is empty, too long, too deep, or not in the grammar.
    """
    lines: list[tuple[str, ast.expr]] = []
    body = _statements(text)
    for position, statement in enumerate(body):
        if isinstance(statement, ast.Assign):
            lines.append((_target(text, statement), statement.value))
        elif isinstance(statement, ast.Expr) and position == len(body) - 1:
            taken = {name for name, _ in lines}
            free = next(name for name in ("y", "out", "result", "_") if name not in taken)
            lines.append((free, statement.value))
        else:
            refuse(text, statement, advice.for_statement(statement))
    program = ParsedProgram(text, tuple(lines))
    for _, expression in lines:
        _check(text, expression, 1)
    return program


def input_lines(text: str) -> list[tuple[str, ast.expr]]:
    """Return the names and values in lines such as `x = 1, 2, 3` and `w = randn(3, 4)`.

    Raises:
        ExpressionError: if a line has a different form, or a name is assigned twice.
    """
    lines: dict[str, ast.expr] = {}
    for statement in _statements(text, "Inputs is empty. Give each name a value: `x = 1, 2, 3`."):
        if not isinstance(statement, ast.Assign):
            refuse(text, statement, "An input is `name = values`, such as `x = 1, 2, 3`.")
        name = _target(text, statement)
        if name in lines:
            refuse(text, statement, f"The input {name} is given twice: use another name.")
        lines[name] = statement.value
    return list(lines.items())


def unread_names(program: ParsedProgram, names: Iterable[str]) -> list[str]:
    """Return the names whose values no line of the program reads."""
    read: set[str] = set()
    given: set[str] = set()
    for name, expression in program.lines:
        inside = {node.id for node in ast.walk(expression) if isinstance(node, ast.Name)}
        read |= inside - given
        given.add(name)
    return [name for name in names if name not in read]


def _statements(
    text: str, empty: str = "There is nothing here yet. Try `mean((x + 2)**2 + 3)`."
) -> list[ast.stmt]:
    if len(text) > MAX_LENGTH:
        raise ExpressionError(
            f"{len(text):,} characters are too many: at most {MAX_LENGTH:,} are allowed."
        )
    try:
        body = ast.parse(text).body
    except SyntaxError as error:
        message = advice.for_syntax(error, text)
        raise ExpressionError(message, text, error.lineno or 1, error.offset or 1) from None
    except (ValueError, RecursionError, MemoryError) as error:
        reason = str(error) or "nested too deeply"
        raise ExpressionError(f"This is not an expression: {reason}.", text) from None
    if not body:  # empty text, or only comments
        raise ExpressionError(empty)
    return body


def _target(text: str, statement: ast.Assign) -> str:
    target = statement.targets[0]
    if len(statement.targets) != 1 or not isinstance(target, ast.Name):
        refuse(text, statement, "The left side of `=` is one name, such as `a = x + 2`.")
    if len(target.id) > 40:
        refuse(text, target, "A name has at most 40 letters.")
    return target.id


def _check(text: str, node: ast.expr, depth: int) -> None:
    """Raise ExpressionError if the expression is not in the grammar, without evaluating it."""
    if depth > MAX_DEPTH:
        refuse(text, node, f"Nested more than {MAX_DEPTH} deep.")
    inner: list[ast.expr | None] = []
    match node:
        case ast.Constant(value=number):
            if not isinstance(number, (int, float)):
                refuse(text, node, f"{str(number)[:40]!r} is not a number.")
            if not abs(number) <= MAX_NUMBER:
                refuse(text, node, f"A number may be at most {MAX_NUMBER:.0e}.")
        case ast.Name():
            pass
        case ast.BinOp(left, operator, right) if type(operator) in BINARY:
            inner = [left, right]
            for side in inner:
                # `[0] * 10 ** 9` would fill the memory.
                if isinstance(side, (ast.List, ast.Tuple)):
                    refuse(text, side, "A list can only be an argument of cat() and stack().")
        case ast.BinOp(left, ast.BitXor(), right):
            power = f"{ast.unparse(left)} ** {ast.unparse(right)}"[:80]
            refuse(text, node, f"^ is not a power in Python: write {power}.")
        case ast.UnaryOp(operator, operand) if type(operator) in UNARY:
            inner = [operand]
        case ast.Tuple(elts=items) | ast.List(elts=items):
            inner = list(items)
        case ast.Subscript(value=value, slice=index):
            inner = [value, index]
        case ast.Slice(lower, upper, step):
            inner = [lower, upper, step]
        case ast.Attribute(value=value, attr="T"):
            inner = [value]
        case ast.Call():
            inner = _check_call(text, node)
        case _:
            refuse(text, node, advice.for_expression(node))
    for child in inner:
        if child is not None:
            _check(text, child, depth + 1)


def _check_call(text: str, node: ast.Call) -> list[ast.expr | None]:
    name, receiver = callee(node)
    if receiver is not None and name in ("to", "cpu", "cuda"):
        return _check_copy(text, node, name, receiver)
    for word in node.keywords:
        if name in FUNCTIONS and word.arg not in FUNCTIONS[name].keywords:
            allowed = ", ".join(FUNCTIONS[name].keywords) or "none"
            refuse(text, word.value, f"{name}() has no argument {word.arg!r}; it has: {allowed}.")
    written = _written(*node.args, *node.keywords)
    if receiver is not None and name in FUNCTIONS and (root := _root(receiver)) in _LIBRARIES:
        is_torch = root in ("torch", "nn", "F")
        why = f"{_written(receiver)} is not needed" if is_torch else "There is only PyTorch"
        refuse(text, node.func, f"{why} here: write {name}({written}).")
    if name not in FUNCTIONS:
        if (layer := _layer(node)) is not None:
            refuse(text, node.func, advice.for_layer(layer, _written(*node.args)))
        refuse(text, node.func, advice.for_function(name))
    if receiver is not None and name in METHODS_ONLY_AS_FUNCTIONS:
        written = _written(receiver, *node.args, *node.keywords)
        refuse(text, node.func, f"{name} is not a method: write {name}({written}).")
    return [receiver, *node.args, *(word.value for word in node.keywords)]


def _check_copy(text: str, node: ast.Call, name: str, receiver: ast.expr) -> list[ast.expr | None]:
    given = [getattr(argument, "id", "") for argument in node.args]
    if node.keywords or (name, given) not in (("to", ["device"]), ("cpu", [])):
        whose = ast.unparse(receiver)[:40]
        refuse(text, node, f"Write a copy as {whose}.to(device) or {whose}.cpu().")
    return [receiver]


def callee(node: ast.Call) -> tuple[str, ast.expr | None]:
    """Return the name of the called function and, for a method, the expression before the dot."""
    match node.func:
        case ast.Name(id=name):
            return name, None
        case ast.Attribute(value=ast.Name(id="torch" | "F"), attr=name):
            return name, None
        case ast.Attribute(value=receiver, attr=name):
            return name, receiver
    return ast.unparse(node.func)[:40], None


def _written(*arguments: ast.AST) -> str:
    """Return the source text of arguments; "..." if the text is too long."""
    written = ", ".join(map(ast.unparse, arguments))
    return written if len(written) <= 60 else "..."


def _root(value: ast.expr) -> str:
    """Return the first name in a chain such as `torch.nn.functional`; "" for other expressions."""
    while isinstance(value, ast.Attribute) and value.attr != "T":  # `x.T` is a tensor
        value = value.value
    return value.id if isinstance(value, ast.Name) else ""


def _layer(node: ast.Call) -> str | None:
    """Return the created or called layer, such as "Linear" for `nn.Linear(3, 1)`, or None."""
    function = node.func.func if isinstance(node.func, ast.Call) else node.func
    match function:
        case ast.Attribute(value=ast.Name(id="nn") | ast.Attribute(attr="nn"), attr=name):
            return name
        case ast.Name(id=name) if isinstance(node.func, ast.Call):
            return name
    return None


def refuse(text: str, node: ast.AST, message: str) -> NoReturn:
    """Raise ExpressionError with the position of `node` in the text."""
    line = getattr(node, "lineno", 1)
    column = getattr(node, "col_offset", 0)
    shown = text.splitlines()[line - 1] if text.splitlines() else ""
    # `ast` counts columns in bytes, the message counts characters.
    column = len(shown.encode()[:column].decode(errors="replace"))
    raise ExpressionError(message, text, line, column + 1)
