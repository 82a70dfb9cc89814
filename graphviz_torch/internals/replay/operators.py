"""What is known of an operator from its schema: what it changes, whether it draws random numbers.

Private: the schema of an operator. Some kernels of batch norm change their running statistics, and
their schema does not say so (2.13).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..tensors.pytree import map_tensors, tensors
from .shadows import DOUBLE

# Their memory is not set: what differs in it says nothing.
_UNSET = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_"}
_RUNNING = {"running_mean", "running_var"}


class Kind(NamedTuple):
    """What is known of an operator from its schema."""

    name: str  # "aten::_softmax"
    writes: tuple[tuple[int, str], ...]  # positions and names of arguments that it changes
    is_view: bool
    is_random: bool
    is_unset: bool
    has_workspace: bool  # a result in bytes is its kernel's own, in an order that tells nothing


@lru_cache(1024)
def kind_of(func: Any) -> Kind:
    """What is known of an operator."""
    schema = getattr(func, "_schema", None)
    called = str(func).replace(".", "::", 1).rpartition(".")[0]
    if schema is None:  # a higher-order operator
        return Kind(called, (), False, False, False, False)
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
    return Kind(called, writes, is_view, is_random, name in _UNSET, "rnn" in name)


def written_by(
    kind: Kind, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[Tensor]:
    found: list[Tensor] = []
    for position, name in kind.writes:
        value = args[position] if position < len(args) else kwargs.get(name)
        found += tensors(value)
    return found


def wide_dtypes(args: Any, kwargs: Any) -> tuple[Any, Any]:
    def wide(value: Any) -> Any:
        return DOUBLE.get(value, value) if isinstance(value, torch.dtype) else value

    return tuple(wide(a) for a in args), {name: wide(value) for name, value in kwargs.items()}


def with_the_same_numbers(func: Any, args: Any, result: Any) -> Any:
    """What a random operator gives in float64, of the numbers that it drew."""
    if str(func).startswith("aten.native_dropout") and args[2]:
        _, mask = result
        share = args[1]
        return args[0] * mask / (1 - share) if share < 1 else args[0] * 0, mask
    return map_tensors(lambda t: t.to(DOUBLE.get(t.dtype, t.dtype)), result)
