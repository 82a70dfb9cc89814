"""Format bytes, seconds, numbers and counts for drawings and messages.

The view's `units.ts` has the same functions; tests/golden/units.json has test cases for both.
Halves are rounded away from zero, as in JavaScript.
"""

from __future__ import annotations

import math
from decimal import ROUND_HALF_UP, Decimal

_UNITS = ("KiB", "MiB", "GiB", "TiB")
_OPERATIONS = ("", "k", "M", "G", "T", "P", "E")
_TIMES = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6))


def bytes_text(count: float) -> str:
    """Return a number of bytes as text, in a binary unit (powers of 1,024).

    >>> bytes_text(1536), bytes_text(1023), bytes_text(102400)
    ('1.5 KiB', '1023 B', '100 KiB')
    """
    if count < 1024:
        return f"{count:.0f} B"
    size, unit = count / 1024, 0
    while size >= 999.5 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{_round_to_places(size, 1 if size < 99.95 else 0)} {_UNITS[unit]}"


def seconds_text(value: float) -> str:
    """Return a duration as text, with three digits and the fitting unit.

    >>> seconds_text(1.25e-5), seconds_text(0.9996)
    ('12.5 µs', '1 s')
    """
    if value == 0:
        return "0 s"
    unit, size = next(((u, s) for u, s in _TIMES if value >= 0.9995 * s), ("ns", 1e-9))
    return f"{number_text(value / size, 3)} {unit}"


def number_text(value: float, digits: int = 4) -> str:
    """Return a number as text with `digits` significant digits.

    A very large or small number is written with an exponent.

    >>> number_text(8 / 3), number_text(1.2e-5), number_text(float("nan"))
    ('2.667', '1.20e-5', 'NaN')
    """
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0:
        return "0"
    with_exponent = abs(value) >= 1e5 or abs(value) < 1e-3
    rounded = _round_half_up(value, 3 if with_exponent else digits)
    mantissa, power = rounded.split("e")
    if with_exponent:
        return f"{mantissa}e{int(power)}"
    text = f"{float(rounded):.{max(digits - 1 - int(power), 0)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def operations_text(count: int) -> str:
    """Return a number of floating-point operations as text, with three digits: "404 GFLOP".

    >>> operations_text(403_726_925_824), operations_text(20_000), operations_text(999)
    ('404 GFLOP', '20 kFLOP', '999 FLOP')
    """
    power = min((len(f"{float(f'{count:.3g}'):.0f}") - 1) // 3, len(_OPERATIONS) - 1)
    return f"{number_text(count / 1000**power, 3)} {_OPERATIONS[power]}FLOP"


def count_text(number: int, noun: str) -> str:
    """Return a count with a noun, to which "s" is added unless the count is 1.

    >>> count_text(1, "node"), count_text(1234, "node")
    ('1 node', '1,234 nodes')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _round_to_places(value: float | Decimal, places: int) -> Decimal:
    return Decimal(value).quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP)


def _round_half_up(value: float, digits: int) -> str:
    """Return a number in scientific notation, "2.667e+00", with halves rounded away from zero."""
    # Python rounds a number halfway between two results to the even one, which is corrected here.
    if float(f"{value:.{digits}e}") != value:
        return f"{value:.{digits - 1}e}"
    exact = Decimal(value)
    rounded = exact.quantize(Decimal(1).scaleb(exact.adjusted() - digits + 1), ROUND_HALF_UP)
    return f"{rounded:.{digits - 1}e}"
