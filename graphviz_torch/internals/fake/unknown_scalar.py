"""The result of `.item()` in a rehearsal: a number that can be printed but not compared.

A rehearsal has no values. An `UnknownScalar` is printed as 0, and arithmetic with it gives an
`UnknownScalar`. A comparison or a conversion calls a function that decides whether the program may
go on, because what follows would depend on the value. `math` and C code read 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# Arithmetic returns an UnknownScalar; comparisons and conversions use its value.
_COMPUTES = (
    "add sub mul truediv floordiv mod pow radd rsub rmul rtruediv rfloordiv rmod rpow neg pos"
)
_COMPUTES += " abs round trunc floor ceil"
_DECIDES = "eq ne lt le gt ge bool int float"


class UnknownScalar(float):
    """A float whose value is unknown.

    Args:
        on_decision: called when the program uses the value; returns the value to use.
    """

    on_decision: Callable[[], float]

    def __new__(cls, on_decision: Callable[[], float]) -> UnknownScalar:
        made = super().__new__(cls)
        made.on_decision = on_decision
        return made

    def __reduce__(self) -> Any:
        return float, (0.0,)  # for a copy or a checkpoint

    __hash__ = float.__hash__


def _compute(self: UnknownScalar, *others: Any) -> Any:
    return UnknownScalar(self.on_decision) if _are_numbers(others) else NotImplemented


def _deciding(name: str) -> Callable[..., Any]:
    def decide(self: UnknownScalar, *others: Any) -> Any:
        if not _are_numbers(others):
            return NotImplemented  # defer to a tensor or an array
        return getattr(float, name)(self.on_decision(), *others)

    return decide


def _are_numbers(values: tuple[Any, ...]) -> bool:
    return all(isinstance(each, (int, float)) or each is None for each in values)


for _name in _COMPUTES.split():
    setattr(UnknownScalar, f"__{_name}__", _compute)
for _name in _DECIDES.split():
    setattr(UnknownScalar, f"__{_name}__", _deciding(f"__{_name}__"))
