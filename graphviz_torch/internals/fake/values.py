"""Run a program on fake tensors, and answer its reads of tensor values.

Every tensor that the program creates is a fake tensor, whose device is the CPU for C++ code.
Reads by PyTorch's optimizers and gradient scalers do not influence shapes, and return 1 or 0. A
read by the program returns the value given for its line, or 0 if the line only prints or logs the
value. A read that decides a branch also returns 0, until the first step has ended. Then an error
lists all such lines, and asks for their values.

The result of `.item()` is an `UnknownScalar`, a number that can be printed but not compared. It is
printed as 0, and arithmetic with it returns an `UnknownScalar`. A comparison or a conversion makes
the rest of the program depend on the value. Both therefore call a function, which returns the value
to use or raises. `math` and C code read 0. Source code decides whether a line only prints or logs
the value.

Uses private API (2.13): fake tensors, their table of operators, their memo of converted tensors
(which makes `swap_tensors` fail), their exceptions, and the classes of tensors that optimizers
update together.
"""

from __future__ import annotations

import ast
import linecache
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses import fake_impls, fake_tensor

from ...graph.text import listing
from ..frames import user_frame

_ASKS = torch.ops.aten._local_scalar_dense.default
_TORCH = os.path.join(os.path.dirname(torch.__file__), "")
_OURS = (_TORCH, os.path.join(str(Path(__file__).parents[2]), ""))
# Path of PyTorch's code -> the value that a read there returns. `optim` reads the number of a step;
# `amp` reads 0 if all gradients are finite; `utils.data` reads a seed; `nn.init` reads 0 if no
# random number is out of bounds; `pipelining` reads 1 if all stages know their shapes.
_TORCH_ANSWERS = {
    os.path.join(_TORCH, *path): value
    for path, value in {
        ("optim", ""): 1,
        ("amp", ""): 0,
        ("cuda", "amp", ""): 0,
        ("utils", "data", ""): 0,
        ("nn", "init.py"): 0,
        ("distributed", "pipelining", ""): 1,
    }.items()
}
# End of the path of a library's file -> the value that a read there returns. accelerate reads a
# seed, transformers 0 if the loss is finite, torchtitan a number of tokens, which divides a sum.
_LIBRARY_ANSWERS = {
    os.path.join(*path): value
    for path, value in {
        ("accelerate", "data_loader.py"): 0,
        ("transformers", "trainer.py"): 0,
        ("torchtitan", "distributed", "utils.py"): 1,
        ("torchtitan", "trainer.py"): 1,
    }.items()
}
_RANDOM = torch.ops.aten.randint.default, torch.ops.aten.randint.low
_MAX_RANDOM_INTEGERS = 1024  # vectors of at most this many random integers have values
# Reads per line that may return 0; without a limit, a loop could wait forever for another value.
_MAX_ZERO_READS = 100
_real: Any = fake_tensor.unset_fake_temporarily
_impls: Any = fake_impls
_Mode: Any = fake_tensor.FakeTensorMode
_UNKNOWN = (
    fake_tensor.DataDependentOutputException,
    fake_tensor.DynamicOutputShapeException,
    fake_tensor.UnsupportedOperatorException,
    fake_tensor.UnsupportedFakeTensorException,
)


class UnknownValue(RuntimeError):
    """Exception for a program that depends on a tensor's value, since fake tensors have none."""


class FakeTensors:
    """Context manager in which every new tensor is fake.

    Args:
        values: results of `.item()` by line, such as "train.py:30" or "30"; the value of "" is used
            for all other lines.
    """

    def __init__(self, values: Mapping[str, float]) -> None:
        self.values = dict(values)
        self.printed: set[str] = set()  # lines that read 0 and only print it
        # Line -> number of times that the line read 0 and used it in a decision.
        self._asked: Counter[str] = Counter()
        self._is_formatting = False  # True while `Tensor.__format__` runs
        # For each running `.item()`, the line to which its `UnknownScalar` belongs.
        self._items: list[str] = []
        self.mode: Any = _Mode(allow_non_fake_inputs=True)
        self._open = ExitStack()

    def __enter__(self) -> FakeTensors:
        swap: Any = torch.utils.swap_tensors

        def swap_tensors(one: Any, other: Any) -> None:
            self.mode.fake_tensor_converter.meta_converter.tensor_memo.clear()
            swap(one, other)

        with ExitStack() as opened:
            opened.enter_context(patch.object(torch.utils, "swap_tensors", swap_tensors))
            opened.enter_context(patch.object(torch.Tensor, "item", self._item(torch.Tensor.item)))
            written = self._format(torch.Tensor.__format__)
            opened.enter_context(patch.object(torch.Tensor, "__format__", written))
            table = _impls.op_implementations_dict
            opened.enter_context(patch.dict(table, {_ASKS: self._value}))
            opened.enter_context(patch.dict(table, dict.fromkeys(_RANDOM, self._random_integers)))
            for owner in (import_module("torch.optim.optimizer"), torch.utils._foreach_utils):
                plain = [*owner._foreach_supported_types, fake_tensor.FakeTensor]
                opened.enter_context(patch.object(owner, "_foreach_supported_types", plain))
            # Compiled functions run eagerly, because code that inductor generates needs values.
            opened.enter_context(torch.compiler.set_stance("force_eager"))
            opened.enter_context(self.mode)
            self._open = opened.pop_all()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._open.__exit__(*raised)

    def _value(self, mode: Any, operator: Any, tensor: Any) -> Any:
        kind: Callable[[float], Any] = float
        if tensor.dtype == torch.bool:
            kind = bool
        elif not tensor.dtype.is_floating_point and not tensor.dtype.is_complex:
            kind = int
        answer = _known_answer()
        if answer is not None:
            return kind(answer)
        frame = user_frame(sys._getframe(1))
        for name in (*_line_names(frame), ""):
            if name in self.values:
                return kind(self.values[name])
        if frame is not None and only_printed(frame):
            self.printed.add(line_of(frame))
        elif self._items and (kind is float or self._is_formatting):
            self._items[-1] = line_of(frame)
        else:
            self._ask(line_of(frame))
        return kind(0)

    def _random_integers(self, mode: Any, operator: Any, *args: Any, **kwargs: Any) -> Any:
        """Return random integers; few integers have values, because they may be indices.

        Args:
            mode: the mode of fake tensors.
            operator: the operator that draws the integers.
            args: arguments of the operator.
            kwargs: keyword arguments of the operator.
        """
        with real_tensors():
            made = operator(*args, **kwargs)
        convert = mode.fake_tensor_converter.from_real_tensor
        return convert(
            mode, made, make_constant=made.dim() == 1 and made.numel() <= _MAX_RANDOM_INTEGERS
        )

    def _item(self, item: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Wrap `.item()` to return an `UnknownScalar` for a line without a given value."""

        def number(tensor: Any) -> Any:
            self._items.append("")
            try:
                value = item(tensor)
            finally:
                line = self._items.pop()
            if not line:
                return value
            self.printed.add(line)
            if type(value) is not float:
                return value
            return UnknownScalar(lambda: self._decides(line))

        return number

    def _format(self, written: Callable[[Any, str], str]) -> Callable[[Any, str], str]:
        """Wrap `__format__` of a one-element tensor to format its number."""

        def __format__(tensor: Any, spec: str) -> str:
            if tensor.dim() or not isinstance(tensor, fake_tensor.FakeTensor):
                return written(tensor, spec)
            self._is_formatting = True
            try:
                return format(tensor.detach().item(), spec)  # as for a real tensor
            finally:
                self._is_formatting = False

        return __format__

    def _decides(self, line: str) -> float:
        """Return the value to use when the program compares or converts an `UnknownScalar`.

        Args:
            line: the source line that read the number, such as "train.py:30".
        """
        answer, frame = _known_answer(), user_frame(sys._getframe(1))
        if answer is None and not (frame is not None and only_printed(frame)):
            self.printed.discard(line)
            self._ask(line)
        return answer or 0.0

    def _ask(self, line: str) -> None:
        self._asked[line] += 1
        if self._asked[line] > _MAX_ZERO_READS:
            raise self.unknown_values_error()

    @property
    def needs_values(self) -> bool:
        """True if the program has used a value that it read for more than printing."""
        return bool(self._asked)

    def unknown_values_error(self) -> UnknownValue:
        """Return an exception that lists all lines that need a value."""
        lines = list(self._asked)
        values = " ".join(f"--value {line.rpartition(':')[2]}=0.5" for line in lines)
        if len(lines) == 1:
            says, give = f"{lines[0]} needs a value of a tensor", "Give one"
        else:
            says, give = f"{listing(lines, most=20)} need values of tensors", "Give each"
        return UnknownValue(
            f"{says}, which a rehearsal does not compute. {give}: {values}, or values={{...}}."
        )


def real_tensors() -> Any:
    """Return a context manager in which new tensors are real."""
    return _real()


def as_unknown_value(error: BaseException) -> UnknownValue | None:
    """Return an `UnknownValue` that explains an exception of fake tensors; None for others."""
    if isinstance(error, UnknownValue):
        return error
    if not isinstance(error, _UNKNOWN):
        return None
    frame, trace = None, error.__traceback__
    line = ""
    while trace is not None:
        if user_frame(trace.tb_frame) is trace.tb_frame:
            frame = trace.tb_frame
            line = f"{os.path.basename(frame.f_code.co_filename)}:{trace.tb_lineno}"
        trace = trace.tb_next
    operator = getattr(error, "func", None) or (error.args[0] if error.args else "")
    if isinstance(error, fake_tensor.UnsupportedOperatorException):
        return UnknownValue(
            f"{line or 'the program'} calls {operator}, which cannot run without values. Register "
            "a fake of it: torch.library.register_fake."
        )
    return UnknownValue(
        f"{line or 'the program'} calls {operator}, whose result depends on values, which a "
        "rehearsal does not compute. Rehearse the program without it, or with a fixed shape."
    )


def line_of(frame: FrameType | None) -> str:
    """Return the file name and line of a frame, as "train.py:30"."""
    if frame is None:
        return "the program"
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def _line_names(frame: FrameType | None) -> tuple[str, ...]:
    return () if frame is None else (line_of(frame), str(frame.f_lineno))


def _known_answer() -> float | None:
    """Return the value to give to PyTorch or a library; None if the program itself reads it."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith(_OURS):
        for path, value in _TORCH_ANSWERS.items():
            if frame.f_code.co_filename.startswith(path):
                return value
        frame = frame.f_back
    file = "" if frame is None else frame.f_code.co_filename
    return next((value for path, value in _LIBRARY_ANSWERS.items() if file.endswith(path)), None)


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
