"""The names of functions, operators and constants in the app's small language.

`evaluation.py` looks up these names in torch. This module does not import torch, so that the page
about the language opens fast.
"""

from __future__ import annotations

import ast
import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Function:
    """A torch function, with its namespace and the keyword arguments that a program may pass."""

    keywords: tuple[str, ...] = ()
    home: str = "torch"  # namespace of the function in a script, such as "F"


_DIM = ("dim",)
_REDUCE = ("dim", "keepdim")

BINARY: dict[type[ast.operator], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "truediv",
    ast.Pow: "pow",
    ast.MatMult: "matmul",
}
UNARY: dict[type[ast.unaryop], str] = {ast.USub: "neg", ast.UAdd: "pos"}
CONSTANTS = {"pi": math.pi, "e": math.e}
DEVICES = ("device", "cpu")  # allowed arguments of `.to()`

FUNCTIONS: dict[str, Function] = {
    **dict.fromkeys(
        (
            "abs", "bmm", "cos", "detach", "dot", "erf", "exp", "flatten", "log", "log1p", "matmul",
            "max", "maximum", "min", "minimum", "mm", "mv", "neg", "outer", "pow", "reciprocal",
            "relu", "rsqrt", "sigmoid", "sign", "sin", "sqrt", "square", "t", "tan", "tanh",
            "transpose",
        ),
        Function(),
    ),
    **dict.fromkeys(
        ("amax", "amin", "logsumexp", "mean", "norm", "prod", "std", "sum", "var"),
        Function(_REDUCE),
    ),
    **dict.fromkeys(
        ("cat", "cumsum", "log_softmax", "softmax", "squeeze", "stack", "unsqueeze"),
        Function(_DIM),
    ),
    **dict.fromkeys(
        ("cross_entropy", "elu", "gelu", "leaky_relu", "linear", "mse_loss", "silu", "softplus"),
        Function(home="F"),
    ),
    "clamp": Function(("min", "max")),
    "reshape": Function(home="torch.Tensor"),
}  # fmt: skip
METHODS_ONLY_AS_FUNCTIONS = frozenset(
    {
        "cat", "cross_entropy", "elu", "gelu", "leaky_relu", "linear", "mse_loss", "silu",
        "softplus", "stack",
    }
)  # fmt: skip

INPUTS = ("randn", "rand", "ones", "zeros", "arange", "randint")
