"""Represent the result of `.item()` in a rehearsal, a number that can be printed but not compared.

A rehearsal has no values. An `UnknownScalar` is printed as 0, and arithmetic with it returns an
`UnknownScalar`. A comparison or a conversion makes the rest of the program depend on the value.
Both therefore call a function, which returns the value to use or raises. `math` and C code read 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
