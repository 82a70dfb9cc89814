"""Compute an upper bound on the sizes of a program's results without running the program."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping

from torch import Tensor

from .grammar import ParsedProgram

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
