"""A small language for tensors: names, numbers, + - * / ** @, indexing, and a list of functions.

    a = x + 2
    y = mean(a ** 2 + 3)

The text is parsed to Python's syntax tree and walked; no part of it is ever evaluated by Python.
A program first runs on `meta` tensors, which have shapes and no values, so that a result that
would be too large is refused before it is made. Inputs are `x = 1, 2, 3` or `w = randn(3, 4)`.
"""

from __future__ import annotations

import ast
import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor

from app.expression.functions import BINARY, CONSTANTS, FUNCTIONS, INPUTS, UNARY

MAX_LENGTH = 2_000  # characters of a program
MAX_DEPTH = 100  # of nested expressions
MAX_STEPS = 300  # operations that a program may run
MAX_ELEMENTS = 1_000_000  # of one tensor
MAX_TOTAL = 10_000_000  # elements of all results together
MAX_NUMBER = 1e15  # an absolute value above it is a slip, and an int power could fill memory

GRAMMAR = (
    "A line is `name = expression`; the last line is the output. An expression has names, "
    "numbers, + - * / ** @, parentheses, indexing such as x[0] or x[:, 1:3], and these functions, "
    "also as methods: " + ", ".join(sorted(FUNCTIONS)) + "."
)


class ExpressionError(ValueError):
    """What is wrong with a text, and where: `line` and `column` count from 1."""

    def __init__(self, message: str, text: str = "", line: int = 1, column: int = 1) -> None:
        lines = text.splitlines()
        shown = lines[line - 1] if 0 < line <= len(lines) else ""
        # Long lines are cut around the place, so that the mark stays in view.
        start = max(0, column - 41)
        pointer = (
            f"\n  {shown[start : start + 80]}\n  {' ' * (column - 1 - start)}^" if shown else ""
        )
        super().__init__(f"{message}{pointer}")
        self.message, self.line, self.column = message, line, column


@dataclass(frozen=True)
class Program:
    """Parsed lines, each a name and the expression that it is given to."""

    text: str
    lines: tuple[tuple[str, ast.expr], ...]

    @property
    def output(self) -> str:
        """The name of the last line."""
        return self.lines[-1][0]


def parse(text: str) -> Program:
    """The program in `text`.

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
            _refuse(text, statement, "Only the last line may stand without `name =`.")
    program = Program(text, tuple(lines))
    for _, expression in lines:
        _check(text, expression, 1)
    return program


def input_lines(text: str) -> list[tuple[str, ast.expr]]:
    """Names and values of lines such as `x = 1, 2, 3` and `w = randn(3, 4)`.

    Raises:
        ExpressionError: if `text` is not such lines, or has a name twice.
    """
    lines: dict[str, ast.expr] = {}
    for statement in _statements(text):
        if not isinstance(statement, ast.Assign):
            _refuse(text, statement, "An input is `name = values`, such as `x = 1, 2, 3`.")
        name = _target(text, statement)
        if name in lines:
            _refuse(text, statement, f"The input {name} is given twice: use another name.")
        lines[name] = statement.value
    return list(lines.items())


def parse_inputs(text: str, seed: int = 0) -> dict[str, Tensor]:
    """Tensors on the CPU from `input_lines(text)`.

    Floating-point tensors require gradients; integers made by `randint` do not.

    Raises:
        ExpressionError: as `input_lines`, and if a tensor would be too large.
    """
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    for name, value in input_lines(text):
        tensor = _input(text, value, generator)
        if sum(t.numel() for t in tensors.values()) + tensor.numel() > MAX_ELEMENTS:
            _refuse(text, value, f"All inputs together have over {MAX_ELEMENTS:,} elements.")
        if tensor.is_floating_point():
            tensor.requires_grad_()
        tensors[name] = tensor
    return tensors


def evaluate(program: Program, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What each line of the program gives, by name. `inputs` may be on any device.

    Raises:
        ExpressionError: for a name that is not there, an operation that torch refuses,
            and a result that would be too large; nothing large was made then.
    """
    shapes = {
        name: torch.empty(value.shape, dtype=value.dtype, device="meta")
        for name, value in inputs.items()
    }
    with torch.no_grad():
        _Evaluation(program.text, shapes).run(program)
    return _Evaluation(program.text, dict(inputs)).run(program)


def unused(program: Program, names: Iterable[str]) -> list[str]:
    """Those of `names` that no line of the program reads before it gives the name anew."""
    read: set[str] = set()
    given: set[str] = set()
    for name, expression in program.lines:
        inside = {node.id for node in ast.walk(expression) if isinstance(node, ast.Name)}
        read |= inside - given
        given.add(name)
    return [name for name in names if name not in read]


class _Evaluation:
    """One walk over a program: the values by name, and how much was made so far."""

    def __init__(self, text: str, values: dict[str, Tensor]) -> None:
        self.text, self.values, self.steps, self.total = text, values, 0, 0

    def run(self, program: Program) -> dict[str, Tensor]:
        made = {}
        for name, expression in program.lines:
            value = self.value(expression)
            if not isinstance(value, Tensor):
                _refuse(self.text, expression, f"{name} has no tensor in it, so no gradient.")
            made[name] = self.values[name] = value
        return made

    def value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=number):
                return number
            case ast.Name(id=name):
                return self.name(node, name)
            case ast.BinOp(left, operator, right):
                apply = self.power if isinstance(operator, ast.Pow) else BINARY[type(operator)]
                return self.apply(node, apply, self.value(left), self.value(right))
            case ast.UnaryOp(operator, operand):
                return self.apply(node, UNARY[type(operator)], self.value(operand))
            case ast.Tuple(elts=items) | ast.List(elts=items):
                return [self.value(item) for item in items]
            case ast.Subscript(value=inner, slice=index):
                return self.apply(node, _index, self.value(inner), self.index(index))
            case ast.Attribute(value=inner, attr="T"):
                return self.apply(node, FUNCTIONS["t"].function, self.value(inner))
            case ast.Call():
                return self.call(node)
        raise AssertionError(f"parse let {node!r} through")

    def name(self, node: ast.expr, name: str) -> Any:
        if name in self.values:
            return self.values[name]
        if name in CONSTANTS:
            return CONSTANTS[name]
        known = [*self.values, *CONSTANTS]
        _refuse(self.text, node, f"{name!r} is not among the names: {_list(known, name)}")

    def index(self, node: ast.expr) -> Any:
        match node:
            case ast.Slice(lower, upper, step):
                return slice(
                    *(None if end is None else self.value(end) for end in (lower, upper, step))
                )
            case ast.Tuple(elts=items):
                return tuple(self.index(item) for item in items)
        return self.value(node)

    def call(self, node: ast.Call) -> Any:
        name, receiver = called(node)
        function = FUNCTIONS[name]
        arguments = [*([] if receiver is None else [receiver]), *node.args]
        values = [self.value(argument) for argument in arguments]
        keywords = {str(word.arg): self.value(word.value) for word in node.keywords}
        return self.apply(node, partial(function.function, **keywords), *values)

    def power(self, base: Any, exponent: Any) -> Any:
        if isinstance(base, Tensor) or isinstance(exponent, Tensor):
            return base**exponent
        return math.pow(base, exponent)  # a float: an int power could fill memory

    def apply(self, node: ast.expr, function: Callable[..., Any], *values: Any) -> Any:
        self.steps += 1
        if self.steps > MAX_STEPS:
            _refuse(self.text, node, f"The program has more than {MAX_STEPS} operations.")
        try:
            result = function(*values)
        except OverflowError:
            _refuse(self.text, node, f"The number is too large: at most {MAX_NUMBER:.0e}.")
        # What torch and Python raise for a wrong shape, dtype, argument or number.
        except (RuntimeError, TypeError, ValueError, IndexError, ArithmeticError) as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
            _refuse(self.text, node, f"{type(error).__name__}: {reason}")
        if isinstance(result, Tensor):
            self.total += result.numel()
            if result.numel() > MAX_ELEMENTS or self.total > MAX_TOTAL:
                shape = list(result.shape)
                _refuse(
                    self.text,
                    node,
                    f"The result {shape} is too large: a tensor may have {MAX_ELEMENTS:,} "
                    f"elements, and all results together {MAX_TOTAL:,}.",
                )
        elif isinstance(result, (int, float)) and not abs(result) <= MAX_NUMBER:
            _refuse(self.text, node, f"A number may be at most {MAX_NUMBER:.0e}.")
        return result


def _index(value: Any, index: Any) -> Any:
    if not isinstance(value, Tensor):
        raise TypeError("only a tensor can be indexed")
    return value[index]


def _statements(text: str) -> list[ast.stmt]:
    if not text.strip():
        raise ExpressionError("There is nothing here yet. Try `mean((x + 2)**2 + 3)`.")
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"{len(text):,} characters are too many: at most {MAX_LENGTH:,}.")
    try:
        return ast.parse(text).body
    except SyntaxError as error:
        message = f"This is not an expression: {error.msg}."
        raise ExpressionError(message, text, error.lineno or 1, error.offset or 1) from None
    except (ValueError, RecursionError, MemoryError) as error:
        reason = str(error) or "nested too deeply"
        raise ExpressionError(f"This is not an expression: {reason}.", text) from None


def _target(text: str, statement: ast.Assign) -> str:
    target = statement.targets[0]
    if len(statement.targets) != 1 or not isinstance(target, ast.Name):
        _refuse(text, statement, "The left side of `=` is one name, such as `a = x + 2`.")
    if len(target.id) > 40:
        _refuse(text, target, "A name has at most 40 letters.")
    return target.id


def _check(text: str, node: ast.expr, depth: int) -> None:
    """Refuses what is not in the grammar, before anything is computed."""
    if depth > MAX_DEPTH:
        _refuse(text, node, f"Nested more than {MAX_DEPTH} deep.")
    inner: list[ast.expr | None] = []
    match node:
        case ast.Constant(value=number):
            if not isinstance(number, (int, float)):
                _refuse(text, node, f"{str(number)[:40]!r} is no number.")
            if not abs(number) <= MAX_NUMBER:
                _refuse(text, node, f"A number may be at most {MAX_NUMBER:.0e}.")
        case ast.Name():
            pass
        case ast.BinOp(left, operator, right) if type(operator) in BINARY:
            inner = [left, right]
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
            _refuse(text, node, f"This is not in the grammar. {GRAMMAR}")
    for child in inner:
        if child is not None:
            _check(text, child, depth + 1)


def _check_call(text: str, node: ast.Call) -> list[ast.expr | None]:
    name, receiver = called(node)
    if name not in FUNCTIONS:
        _refuse(text, node.func, f"{name!r} is not among the functions: {_list(FUNCTIONS, name)}")
    if receiver is not None and not hasattr(Tensor, name):
        _refuse(text, node.func, f"{name} is no method: write {name}(...).")
    for word in node.keywords:
        if word.arg not in FUNCTIONS[name].keywords:
            allowed = ", ".join(FUNCTIONS[name].keywords) or "none"
            _refuse(text, word.value, f"{name}() has no argument {word.arg!r}; it has: {allowed}.")
    return [receiver, *node.args, *(word.value for word in node.keywords)]


def called(node: ast.Call) -> tuple[str, ast.expr | None]:
    """The function's name, and the value before the dot of a method."""
    match node.func:
        case ast.Name(id=name):
            return name, None
        case ast.Attribute(value=ast.Name(id="torch" | "F"), attr=name):
            return name, None
        case ast.Attribute(value=receiver, attr=name):
            return name, receiver
    return ast.unparse(node.func)[:40], None


def _input(text: str, node: ast.expr, generator: torch.Generator) -> Tensor:
    if isinstance(node, ast.Call):
        name, receiver = called(node)
        if receiver is not None or name not in INPUTS or node.keywords:
            _refuse(text, node, f"{name!r} makes no input; these do: {', '.join(INPUTS)}.")
        numbers = [_number(text, argument) for argument in node.args]
        sizes = numbers[2:] if name == "randint" else numbers
        count = max(sizes, default=0) if name == "arange" else math.prod(map(int, sizes))
        if any(n != int(n) or n < 0 for n in sizes) or count > MAX_ELEMENTS:
            given = ast.unparse(node)[:80]
            limit = f"at most {MAX_ELEMENTS:,} elements"
            _refuse(text, node, f"Sizes are whole numbers, {limit}: not {given}.")
        try:
            return INPUTS[name]([int(n) for n in numbers], generator)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            _refuse(text, node, f"{name}: {str(error).splitlines()[0]}")
    values = _nested(text, node, 1)
    try:
        return torch.tensor(values, dtype=torch.float32)
    except ValueError as error:
        _refuse(text, node, f"The rows differ in length: {error}.")


def _nested(text: str, node: ast.expr, depth: int) -> Any:
    if isinstance(node, (ast.List, ast.Tuple)):
        if depth > 6:
            _refuse(text, node, "An input has at most 6 dimensions.")
        return [_nested(text, item, depth + 1) for item in node.elts]
    return _number(text, node)


def _number(text: str, node: ast.expr) -> float:
    sign = 1
    while isinstance(node, ast.UnaryOp) and type(node.op) in UNARY:
        sign *= -1 if isinstance(node.op, ast.USub) else 1
        node = node.operand
    number = node.value if isinstance(node, ast.Constant) else None
    if not isinstance(number, (int, float)):
        _refuse(text, node, "An input holds numbers only, such as `x = [[1, 2], [3, 4]]`.")
    if not abs(number) <= MAX_NUMBER:
        _refuse(text, node, f"A number may be at most {MAX_NUMBER:.0e}.")
    return sign * number


def _list(known: Any, near: str) -> str:
    """All the known names, those like `near` first."""
    close = difflib.get_close_matches(near, known, n=3, cutoff=0.5)
    rest = [name for name in known if name not in close]
    return ", ".join([*close, *rest]) + "."


def _refuse(text: str, node: ast.AST, message: str) -> NoReturn:
    line = getattr(node, "lineno", 1)
    column = getattr(node, "col_offset", 0)
    shown = text.splitlines()[line - 1] if text.splitlines() else ""
    # ast counts bytes, a reader counts characters.
    column = len(shown.encode()[:column].decode(errors="replace"))
    raise ExpressionError(message, text, line, column + 1)
