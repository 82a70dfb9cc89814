"""How large the results of a program can be, told without running it."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping

from torch import Tensor

from .grammar import Program

SMALL = 10_000  # elements
_MOST = 10**9  # a bound that is as good as any larger one


def small(program: Program, inputs: Mapping[str, Tensor]) -> bool:
    """Whether no result can have more than `SMALL` elements.

    A result has at most as many elements as its operands have, multiplied or added. Such a program
    need not run on shapes first, which loads PyTorch's compiler and so takes a second.
    """
    most = {name: max(1, value.numel()) for name, value in inputs.items()}
    largest = 0
    for name, expression in program.lines:
        most[name] = _bound(expression, most)  # not less than that of any part
        largest = max(largest, most[name])
    return largest <= SMALL


def _bound(node: ast.AST, most: Mapping[str, int]) -> int:
    if isinstance(node, ast.Name):
        return most.get(node.id, 1)
    inner = [_bound(each, most) for each in ast.iter_child_nodes(node)]
    return min(max(math.prod(inner), sum(inner), 1), _MOST)
