"""Read properties of an operator from its schema, such as which arguments the operator mutates.

Schemas are private API. The schemas of some batch norm kernels do not show that these kernels
update the running statistics (2.13).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ...graph.immutable import NamedTuple
from ..tensors.pytree import map_tensors, tensors
from .shadows import DOUBLE

# Operators whose results are uninitialized, so that differences between results have no meaning.
_UNSET = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_"}
_RUNNING = {"running_mean", "running_var"}


class OperatorProperties(NamedTuple):
    """Properties of an operator."""

    name: str  # such as "aten::_softmax"
    writes: tuple[tuple[int, str], ...]  # (index, name) of each argument that is mutated
    is_view: bool
    is_random: bool
    is_unset: bool  # True if the result is uninitialized
    has_workspace: bool  # True if a uint8 result is a kernel's buffer, whose content is undefined


@lru_cache(1024)
def operator_properties(func: Any) -> OperatorProperties:
    """Return the properties of an operator."""
    schema = getattr(func, "_schema", None)
    called = str(func).replace(".", "::", 1).rpartition(".")[0]
    if schema is None:  # a higher-order operator
        return OperatorProperties(called, (), False, False, False, False)
    writes = tuple(
        (i, argument.name)
        for i, argument in enumerate(schema.arguments)
        if (argument.alias_info is not None and argument.alias_info.is_write)
        or argument.name in _RUNNING
    )
    returns = [each.alias_info for each in schema.returns]
    is_view = bool(returns) and all(a is not None and not a.is_write for a in returns)
    tags = func.tags
    name = schema.name.partition("::")[2]
    generator = any(argument.name == "generator" for argument in schema.arguments)
    is_random = generator or torch.Tag.nondeterministic_seeded in tags
    return OperatorProperties(called, writes, is_view, is_random, name in _UNSET, "rnn" in name)


def written_by(
    kind: OperatorProperties, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[Tensor]:
    """Return the tensors that this call of an operator mutates.

    Args:
        kind: properties of the operator.
        func: the operator.
        args: arguments of the call.
        kwargs: keyword arguments of the call.
    """
    found: list[Tensor] = []
    for position, name in kind.writes:
        value = args[position] if position < len(args) else kwargs.get(name)
        found += tensors(value)
    return found


def wide_dtypes(args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Return the arguments with each dtype replaced by its double precision dtype."""

    def wide(value: Any) -> Any:
        return DOUBLE.get(value, value) if isinstance(value, torch.dtype) else value

    return tuple(wide(a) for a in args), {name: wide(value) for name, value in kwargs.items()}


def with_the_same_numbers(func: Any, args: Any, result: Any) -> Any:
    """Recompute a random operator in float64, with the random numbers that produced `result`.

    Args:
        func: the operator.
        args: arguments of the operator in float64.
        result: the operator's result in the first run, which shows the numbers that were drawn.
    """
    if str(func).startswith("aten.native_dropout") and args[2]:
        _, mask = result
        share = args[1]
        return args[0] * mask / (1 - share) if share < 1 else args[0] * 0, mask
    return map_tensors(lambda t: t.to(DOUBLE.get(t.dtype, t.dtype)), result)
