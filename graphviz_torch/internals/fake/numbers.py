"""What `.item()` gives in a rehearsal: a number that may be printed, and asks before it decides.

A rehearsal has no values. A `Number` counts and is printed as 0. What is computed from it is one,
too. Compared, or taken for the truth or for another kind of number, it asks: what follows would
depend on a value. `math` and C see the 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# What is computed of numbers gives numbers; what is asked of one decides something.
_COMPUTES = (
    "add sub mul truediv floordiv mod pow radd rsub rmul rtruediv rfloordiv rmod rpow neg pos"
)
_COMPUTES += " abs round trunc floor ceil"
_DECIDES = "eq ne lt le gt ge bool int float"


class Number(float):
    """The value of a tensor, which is not known.

    Args:
        asks: is called where the number decides something.
    """

    asks: Callable[[], float]

    def __new__(cls, asks: Callable[[], float]) -> Number:
        made = super().__new__(cls)
        made.asks = asks
        return made

    def __reduce__(self) -> Any:
        return float, (0.0,)  # of a copy, or of a checkpoint

    __hash__ = float.__hash__


def _compute(self: Number, *others: Any) -> Any:
    return Number(self.asks) if _are_numbers(others) else NotImplemented


def _deciding(name: str) -> Callable[..., Any]:
    def decide(self: Number, *others: Any) -> Any:
        if not _are_numbers(others):
            return NotImplemented  # a tensor's or an array's to answer
        return getattr(float, name)(self.asks(), *others)

    return decide


def _are_numbers(values: tuple[Any, ...]) -> bool:
    return all(isinstance(each, (int, float)) or each is None for each in values)


for _name in _COMPUTES.split():
    setattr(Number, f"__{_name}__", _compute)
for _name in _DECIDES.split():
    setattr(Number, f"__{_name}__", _deciding(f"__{_name}__"))
