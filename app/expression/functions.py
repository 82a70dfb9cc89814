"""What the app's small language may call: operators, functions with their keywords, inputs."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Function:
    """A torch function, the keyword arguments that a program may give it, and where it lives."""

    function: Callable[..., Any]
    keywords: tuple[str, ...] = ()
    home: str = "torch"  # what a script writes before the dot


_DIM = ("dim",)
_REDUCE = ("dim", "keepdim")

BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.MatMult: operator.matmul,
}
UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
CONSTANTS = {"pi": math.pi, "e": math.e}

FUNCTIONS: dict[str, Function] = {
    **{
        name: Function(getattr(torch, name))
        for name in (
            "abs", "bmm", "cos", "dot", "erf", "exp", "log", "log1p", "matmul", "maximum",
            "minimum", "mm", "mv", "neg", "outer", "pow", "reciprocal", "relu", "rsqrt", "sigmoid",
            "sign", "sin", "sqrt", "square", "t", "tan", "tanh", "transpose",
        )
    },
    **{
        name: Function(getattr(torch, name), _REDUCE)
        for name in ("amax", "amin", "logsumexp", "mean", "norm", "prod", "std", "sum", "var")
    },
    **{
        name: Function(getattr(torch, name), _DIM)
        for name in ("cat", "cumsum", "log_softmax", "softmax", "squeeze", "stack", "unsqueeze")
    },
    **{
        name: Function(getattr(F, name), home="F")
        for name in (
            "cross_entropy", "elu", "gelu", "leaky_relu", "linear", "mse_loss", "silu", "softplus",
        )
    },
    **{name: Function(getattr(torch, name)) for name in ("detach", "flatten", "max", "min")},
    "clamp": Function(torch.clamp, ("min", "max")),
    "reshape": Function(Tensor.reshape, home="torch.Tensor"),
}  # fmt: skip


def _randint(numbers: list[int], generator: torch.Generator) -> Tensor:
    low, high, *size = numbers
    return torch.randint(low, high, size, generator=generator)


INPUTS: dict[str, Callable[[list[int], torch.Generator], Tensor]] = {
    "randn": lambda size, generator: torch.randn(size, generator=generator),
    "rand": lambda size, generator: torch.rand(size, generator=generator),
    "ones": lambda size, _: torch.ones(size),
    "zeros": lambda size, _: torch.zeros(size),
    "arange": lambda ends, _: torch.arange(*ends, dtype=torch.float32),
    "randint": _randint,
}
