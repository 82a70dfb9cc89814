"""An upper bound on the size of a program's results, computed without running it."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping

from torch import Tensor

from .grammar import Program

SMALL_RESULT = 10_000  # elements
_BOUND_LIMIT = 10**9  # bounds above this are not distinguished


def has_small_results(program: Program, inputs: Mapping[str, Tensor]) -> bool:
    """Return True if no result can have more than `SMALL_RESULT` elements.

    The bound of a result is the product or sum of its operands' bounds. A program with small
    results need not run on `meta` tensors first, which imports PyTorch's compiler (a second).
    """
    most = {name: max(1, value.numel()) for name, value in inputs.items()}
    largest = 0
    for name, expression in program.lines:
        most[name] = _bound(expression, most)  # at least the bound of any subexpression
        largest = max(largest, most[name])
    return largest <= SMALL_RESULT


def _bound(node: ast.AST, most: Mapping[str, int]) -> int:
    if isinstance(node, ast.Name):
        return most.get(node.id, 1)
    inner = [_bound(each, most) for each in ast.iter_child_nodes(node)]
    return min(max(math.prod(inner), sum(inner), 1), _BOUND_LIMIT)
