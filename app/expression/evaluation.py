"""Evaluate a checked program on tensors.

If a result may be large, the program runs on `meta` tensors first, which have shapes but no values.
A result that is too large therefore causes an error before it is allocated. Error messages are
those of the CPU's operations, whatever the device.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .advice import likely
from .functions import BINARY, CONSTANTS, FUNCTIONS, INPUTS, UNARY
from .grammar import MAX_NUMBER, ParsedProgram, callee, input_lines, refuse

MAX_STEPS = 300  # largest number of operations in a program
MAX_ELEMENTS = 1_000_000  # largest number of elements in one tensor, and in all inputs together
MAX_TOTAL = 10_000_000  # largest number of elements in all results together
_HOMES = {"torch": torch, "F": F, "torch.Tensor": Tensor}


def parse_inputs(text: str, seed: int = 0) -> dict[str, Tensor]:
    """Return CPU tensors by name for input lines such as `x = 1, 2, 3` or `w = randn(3, 4)`.

    Floating-point tensors require gradients; integers from `randint` do not.

    Raises:
        ExpressionError: if a line is invalid, or a tensor would be too large.
    """
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    for name, value in input_lines(text):
        tensor = _input(text, value, generator)
        if sum(t.numel() for t in tensors.values()) + tensor.numel() > MAX_ELEMENTS:
            refuse(text, value, f"All inputs together have over {MAX_ELEMENTS:,} elements.")
        if tensor.is_floating_point():
            tensor.requires_grad_()
        tensors[name] = tensor
    return tensors


def evaluate(
    program: ParsedProgram,
    inputs: Mapping[str, Tensor],
    device: torch.device | None = None,
    *,
    lines: Mapping[str, int] | None = None,
) -> dict[str, Tensor]:
    """Return the value of each line of the program, by name.

    Args:
        program: a program from `parse`.
        inputs: tensors by name.
        device: the value of `device` in `x.to(device)`. None means the CPU.
        lines: name -> line of `script.py` that assigns the name, for recordings to show.

    Raises:
        ExpressionError: if a name is not defined, torch refuses an operation, or a result would be
            too large.
    """
    if not has_small_results(program, inputs):
        check_shapes(program, inputs)
    cpu = torch.device("cpu")
    found = _Evaluation(program.text, dict(inputs), device or cpu, cpu, lines or {})
    return found.run(program)


def check_shapes(program: ParsedProgram, inputs: Mapping[str, Tensor]) -> None:
    """Run the program on `meta` tensors to check the shapes of its results.

    Raises:
        ExpressionError: in the same cases as `evaluate`.
    """
    meta = torch.device("meta")
    shapes = {
        name: torch.empty(value.shape, dtype=value.dtype, device=meta)
        for name, value in inputs.items()
    }
    with torch.no_grad():
        _Evaluation(program.text, shapes, meta, meta, {}).run(program)


class _Evaluation:
    """The state of an evaluation: the values so far, the number of operations and of elements."""

    def __init__(
        self,
        text: str,
        values: dict[str, Tensor],
        device: torch.device,
        cpu: torch.device,
        lines: Mapping[str, int],
    ) -> None:
        self.lines = lines
        self.text, self.values, self.device, self.cpu = text, values, device, cpu
        self.steps = self.total = 0
        self.call: Callable[[Callable[..., Any], list[Any]], Any] = _call

    def run(self, program: ParsedProgram) -> dict[str, Tensor]:
        made = {}
        for name, expression in program.lines:
            self.call = _call_at(self.lines[name]) if name in self.lines else _call
            value = self.value(expression)
            if not isinstance(value, Tensor):
                refuse(self.text, expression, f"{name} contains no tensor, so it has no gradient.")
            made[name] = self.values[name] = value
        return made

    def value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=number):
                return number
            case ast.Name(id=name):
                return self.name(node, name)
            case ast.BinOp(left, kind, right):
                return self.apply(node, partial(_binary, BINARY[type(kind)]), [left, right])
            case ast.UnaryOp(kind, operand):
                return self.apply(node, getattr(operator, UNARY[type(kind)]), [operand])
            case ast.Tuple(elts=items) | ast.List(elts=items):
                return [self.value(item) for item in items]
            case ast.Subscript(value=inner, slice=index):
                place = self.index(index)
                return self.apply(node, lambda value: _index(value, place), [inner])
            case ast.Attribute(value=inner, attr="T"):
                return self.apply(node, torch.t, [inner])
            case ast.Call():
                return self.function_call(node)
        raise AssertionError(f"`parse` accepted {node!r}, which cannot be evaluated")

    def name(self, node: ast.expr, name: str) -> Any:
        if name in self.values:
            return self.values[name]
        if name in CONSTANTS:
            return CONSTANTS[name]
        near = likely([*self.values, *CONSTANTS], name)
        hint = f"Did you mean {near}?" if near else f"Known names: {', '.join(self.values)}."
        refuse(self.text, node, f"{name!r} is not defined. {hint}")

    def index(self, node: ast.expr) -> Any:
        match node:
            case ast.Slice(lower, upper, step):
                return slice(
                    *(None if end is None else self.value(end) for end in (lower, upper, step))
                )
            case ast.Tuple(elts=items):
                return tuple(self.index(item) for item in items)
        return self.value(node)

    def function_call(self, node: ast.Call) -> Any:
        name, receiver = callee(node)
        arguments = [*([] if receiver is None else [receiver]), *node.args]
        if receiver is not None and name in ("to", "cpu"):
            device = self.device if name == "to" else self.cpu
            return self.apply(node, partial(_copy_to, device=device), [receiver])
        keywords = {str(word.arg): self.value(word.value) for word in node.keywords}
        function = getattr(_HOMES[FUNCTIONS[name].home], name)
        return self.apply(node, partial(function, **keywords), arguments)

    def apply(
        self, node: ast.expr, function: Callable[..., Any], arguments: Sequence[ast.expr]
    ) -> Any:
        values = [self.value(argument) for argument in arguments]
        self.steps += 1
        if self.steps > MAX_STEPS:
            refuse(self.text, node, f"The program has more than {MAX_STEPS} operations.")
        try:
            result = self.call(function, values)
        except OverflowError:
            refuse(self.text, node, f"The number is too large: at most {MAX_NUMBER:.0e}.")
        # These errors are raised for a wrong shape, dtype, argument or number.
        except _REFUSED as error:
            known = _cpu_error(function, values, error)
            refuse(self.text, node, _reason(self.text, known, arguments, values))
        if isinstance(result, Tensor):
            self.total += result.numel()
            if result.numel() > MAX_ELEMENTS or self.total > MAX_TOTAL:
                shape = list(result.shape)
                refuse(
                    self.text,
                    node,
                    f"The result {shape} is too large: a tensor may have {MAX_ELEMENTS:,} "
                    f"elements, and all results together {MAX_TOTAL:,}.",
                )
        elif isinstance(result, (int, float)) and not abs(result) <= MAX_NUMBER:
            refuse(self.text, node, f"A number may be at most {MAX_NUMBER:.0e}.")
        return result


_REFUSED = (RuntimeError, TypeError, ValueError, IndexError, ArithmeticError)


def _call(function: Callable[..., Any], values: list[Any]) -> Any:
    return function(*values)


def _call_at(line: int) -> Callable[[Callable[..., Any], list[Any]], Any]:
    """Return a copy of `_call` whose calls have this line of "script.py" in their frames."""
    # In `_call`, the call is one line below `def`.
    code = _call.__code__.replace(co_filename="script.py", co_firstlineno=line - 1)
    return FunctionType(code, {})


def _binary(name: str, left: Any, right: Any) -> Any:
    for side in (left, right):
        # Multiplying a list by a large number would fill the memory.
        if not isinstance(side, (Tensor, int, float)):
            raise TypeError("operands must be tensors or numbers")
    if name == "pow" and not isinstance(left, Tensor) and not isinstance(right, Tensor):
        return math.pow(left, right)  # a float, because an int power could fill the memory
    return getattr(operator, name)(left, right)


def _index(value: Any, index: Any) -> Any:
    if not isinstance(value, Tensor):
        raise TypeError("only a tensor can be indexed")
    return value[index]


def _copy_to(value: Any, device: torch.device) -> Any:
    if not isinstance(value, Tensor):
        raise TypeError("only a tensor can be copied to a device")
    return value.to(device)


def _cpu_error(function: Callable[..., Any], values: list[Any], error: Exception) -> Exception:
    """Return the error that the CPU raises for an operation, or `error` if the CPU raises none.

    Users know the CPU's messages.
    """

    def on_cpu(value: Any) -> Any:
        if isinstance(value, list):
            return [on_cpu(item) for item in value]
        return torch.ones(value.shape, dtype=value.dtype) if isinstance(value, Tensor) else value

    try:
        function(*map(on_cpu, values))
    except _REFUSED as known:
        return known
    return error


def _reason(
    text: str, error: Exception, arguments: Sequence[ast.expr], values: Sequence[Any]
) -> str:
    """Return torch's error message, followed by the shapes of the arguments by name."""
    message = (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
    shapes = _shapes(text, arguments, values)
    return f"{type(error).__name__}: {message}." + f" {', '.join(shapes)}." * bool(shapes)


def _shapes(text: str, arguments: Sequence[ast.expr], values: Sequence[Any]) -> list[str]:
    """Return a sentence for each tensor in the arguments, such as "x has shape [3]"."""
    shapes = []
    for argument, value in zip(arguments, values, strict=True):
        if isinstance(value, Tensor):
            name = ast.get_source_segment(text, argument) or ast.unparse(argument)
            shapes.append(f"{name[:40]} has shape {list(value.shape)}")
        elif isinstance(argument, ast.List | ast.Tuple) and isinstance(value, list):
            shapes += _shapes(text, argument.elts, value)
    return shapes


def _input(text: str, node: ast.expr, generator: torch.Generator) -> Tensor:
    if isinstance(node, ast.Call):
        name, receiver = callee(node)
        if receiver is not None or name not in INPUTS or node.keywords:
            refuse(text, node, f"An input is made by {', '.join(INPUTS)}: not by {name}.")
        numbers = [_number(text, argument) for argument in node.args]
        sizes = numbers[2:] if name == "randint" else numbers
        count = max(sizes, default=0) if name == "arange" else math.prod(map(int, sizes))
        if any(n != int(n) or n < 0 for n in sizes) or count > MAX_ELEMENTS:
            given = ast.unparse(node)[:80]
            limit = f"at most {MAX_ELEMENTS:,} elements"
            refuse(text, node, f"Sizes are whole numbers, {limit}: not {given}.")
        try:
            return _create(name, [int(n) for n in numbers], generator)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            refuse(text, node, f"{name}: {str(error).splitlines()[0]}")
    values = _nested_numbers(text, node, 1)
    try:
        return torch.tensor(values, dtype=torch.float32)
    except ValueError as error:
        refuse(text, node, f"The rows differ in length: {error}.")


def _create(name: str, numbers: list[int], generator: torch.Generator) -> Tensor:
    if name == "randint":
        low, high, *size = numbers
        return torch.randint(low, high, size, generator=generator)
    if name == "arange":
        return torch.arange(*numbers, dtype=torch.float32)
    if name in ("randn", "rand"):
        random: Tensor = getattr(torch, name)(numbers, generator=generator)
        return random
    constant: Tensor = getattr(torch, name)(numbers)
    return constant


def _nested_numbers(text: str, node: ast.expr, depth: int) -> Any:
    if isinstance(node, (ast.List, ast.Tuple)):
        if depth > 6:
            refuse(text, node, "An input has at most 6 dimensions.")
        return [_nested_numbers(text, item, depth + 1) for item in node.elts]
    return _number(text, node)


def _number(text: str, node: ast.expr) -> float:
    sign = 1
    while isinstance(node, ast.UnaryOp) and type(node.op) in UNARY:
        sign *= -1 if isinstance(node.op, ast.USub) else 1
        node = node.operand
    number = node.value if isinstance(node, ast.Constant) else None
    if not isinstance(number, (int, float)):
        refuse(text, node, "An input has numbers only, such as `x = [[1, 2], [3, 4]]`.")
    if not abs(number) <= MAX_NUMBER:
        refuse(text, node, f"A number may be at most {MAX_NUMBER:.0e}.")
    return sign * number


SMALL_RESULT = 10_000  # number of elements
_BOUND_LIMIT = 10**9  # the largest bound that is computed


def has_small_results(program: ParsedProgram, inputs: Mapping[str, Tensor]) -> bool:
    """Return True if no result can have more than `SMALL_RESULT` elements.

    The bound of a result is the product or the sum of the bounds of its operands. A program with
    small results does not need a run on `meta` tensors, which imports PyTorch's compiler and takes
    a second.
    """
    most = {name: max(1, value.numel()) for name, value in inputs.items()}
    largest = 0
    for name, expression in program.lines:
        most[name] = _bound(expression, most)  # no subexpression has a larger bound
        largest = max(largest, most[name])
    return largest <= SMALL_RESULT


def _bound(node: ast.AST, most: Mapping[str, int]) -> int:
    if isinstance(node, ast.Name):
        return most.get(node.id, 1)
    inner = [_bound(each, most) for each in ast.iter_child_nodes(node)]
    return min(max(math.prod(inner), sum(inner), 1), _BOUND_LIMIT)
