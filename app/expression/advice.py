"""Write error messages for the app's small language, with a suggestion of what to write instead."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterable

from .functions import FUNCTIONS

OWN = "A program of your own runs with `graphviz-torch app train.py` in a terminal."
_CHOOSE = "relu(x), clamp(x, min=0) and maximum(a, b) choose by value."
_LINES = "Write one line for each step, such as `a = x + 2`"

_STATEMENTS: dict[type[ast.stmt], str] = {
    ast.For: f"There are no loops here. {_LINES}.",
    ast.While: f"There are no loops here. {_LINES}.",
    ast.If: f"There is no `if` here. {_CHOOSE}",
    ast.Import: "There is nothing to import: write mean(x) for torch.mean(x).",
    ast.ImportFrom: "There is nothing to import: write mean(x) for torch.mean(x).",
    ast.FunctionDef: f"No function can be defined here. {_LINES}.",
    ast.ClassDef: "No class can be defined here. A layer is its function: linear(x, w, b).",
    ast.With: "There is no `with` here: each line is computed and recorded.",
    ast.AnnAssign: "A line has no type: write `name = expression`.",
    ast.Delete: "Nothing needs to be deleted: each line gives a new name.",
    ast.Return: "There is no `return` here: the last line is the output.",
}
_EXPRESSIONS: dict[type[ast.expr], str] = {
    ast.Lambda: f"A lambda is not allowed here. {_LINES}.",
    ast.IfExp: _STATEMENTS[ast.If],
    ast.Compare: f"There are no comparisons here. {_CHOOSE}",
    ast.BoolOp: f"There are no comparisons here. {_CHOOSE}",
    ast.ListComp: f"There are no loops here. {_LINES}.",
    ast.GeneratorExp: f"There are no loops here. {_LINES}.",
}
# Names that PyTorch users may write -> what to write in the small language.
_EQUIVALENTS = {
    "where": "clamp(x, min=0), maximum(a, b) or relu(x)",
    "add": "a + b",
    "sub": "a - b",
    "mul": "a * b",
    "multiply": "a * b",
    "div": "a / b",
    "einsum": "a @ b or bmm(a, b)",
    "view": "reshape(x, 2, 3)",
    "permute": "transpose(x, 0, 1)",
    "concat": "cat([a, b])",
    "concatenate": "cat([a, b])",
    "average": "mean(x)",
    "ln": "log(x)",
    "tensor": "x = 1, 2, 3 among the inputs",
    "Tensor": "x = 1, 2, 3 among the inputs",
    "Parameter": "w = randn(3, 4) among the inputs",
    "randn": "x = randn(3, 4) among the inputs",
    "rand": "x = rand(3, 4) among the inputs",
    "zeros": "x = zeros(3) among the inputs",
    "ones": "x = ones(3) among the inputs",
    "backward": "the output's name alone: the button runs its backward",
}
_SEE_LIST = "The (?) above lists all functions."
_MIN_SIMILARITY = 0.6  # cutoff of `difflib.get_close_matches`


def for_statement(statement: ast.stmt) -> str:
    """Return the message for a line that is not `name = expression`."""
    if isinstance(statement, ast.AugAssign):
        names = [ast.unparse(part)[:40] for part in (statement.target, statement.value)]
        sign = ast.unparse(statement)[len(ast.unparse(statement.target)) :].split("=")[0].strip()
        return f"There is no `{sign}=` here: write `{names[0]} = {names[0]} {sign} {names[1]}`."
    message = _STATEMENTS.get(type(statement), "Only the last line can omit `name =`.")
    return message if isinstance(statement, ast.Expr) else f"{message} {OWN}"


def for_expression(node: ast.expr) -> str:
    """Return the message for an expression that is not in the grammar."""
    return _EXPRESSIONS.get(type(node), f"This is not in the grammar. {_SEE_LIST}")


def for_syntax(error: SyntaxError, text: str) -> str:
    """Return the message for text that is not valid Python syntax. The message quotes the text."""
    lines = text.splitlines()
    line = lines[error.lineno - 1] if error.lineno and error.lineno <= len(lines) else ""
    product = re.search(r"(?<![\w.])(\d+(?:\.\d+)?)\s*([A-Za-z_]\w*)", line)
    if product and not re.fullmatch(r"e\d+|j|if|else|for|and|or|is|in", product[2]):
        return f"Multiplication needs a sign: write {product[1]} * {product[2]}."
    if "'(' was never closed" in str(error.msg):
        return "This is not an expression: a parenthesis is never closed."
    return f"This is not an expression: {error.msg}."


def for_function(name: str) -> str:
    """Return the message for an unknown function. It suggests a function with a similar name."""
    if re.fullmatch(r"[\d.]+", name):
        return f"Multiplication needs a sign: write {name} * (...)."
    message = f"{name!r} is not a function here."
    if name in _EQUIVALENTS:
        return f"{message} Write {_EQUIVALENTS[name]}."
    near = likely(FUNCTIONS, name)
    hint = f"Did you mean {near}?" if near else _SEE_LIST
    return f"{message} {hint}"


def for_layer(name: str, arguments: str) -> str:
    """Return the message for a layer, such as "write linear(x, w, b)" for `nn.Linear(3, 1)(x)`."""
    wanted = {name.lower(), name.lower().removesuffix("loss")}
    for known in FUNCTIONS:
        if known.replace("_", "") in wanted:
            given = "x, w, b" if known == "linear" else arguments or "x"
            inputs = ", with w and b among the inputs" * (known == "linear")
            return f"Layers are written as functions here: write {known}({given}){inputs}."
    return for_function(name)


def likely(known: Iterable[str], name: str) -> str:
    """Return up to three similar names as text: "mean, min or norm"; "" if no name is similar."""
    lower = {each.lower(): each for each in known}
    close = difflib.get_close_matches(name.lower(), lower, n=3, cutoff=_MIN_SIMILARITY)
    names = [lower[each] for each in close]
    return " or ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))
