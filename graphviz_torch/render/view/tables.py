"""Store the rows of a payload compactly: repeated rows in tables, numbers in columns of bytes."""

from __future__ import annotations

import math
import struct
from collections.abc import Hashable, Iterable, Sequence
from typing import Any


class Table:
    """A table of distinct rows, in the order of their first appearance."""

    def __init__(self) -> None:
        self._at: dict[Hashable, int] = {}

    def position(self, row: Hashable) -> int:
        """Return the position of a row, which is added if the table does not contain it."""
        return self._at.setdefault(row, len(self._at))

    def positions(self, rows: Sequence[Hashable]) -> list[int]:
        """Return the position of each row. New rows are added to the table."""
        for row in dict.fromkeys(rows):
            self.position(row)
        return list(map(self._at.__getitem__, rows))

    @property
    def rows(self) -> list[Any]:
        """The distinct rows, in the order of their positions."""
        return list(self._at)


class Columns:
    """Columns of numbers, stored as byte planes.

    A plane contains one byte of every row's number. A column of zeros is left out.
    """

    def __init__(self) -> None:
        # (name, kind, bytes per row, number of rows) of each column
        self.layout: list[tuple[str, str, int, int]] = []
        self.planes: list[bytes] = []

    def numbers(self, name: str, values: Sequence[int]) -> None:
        """Add a column of non-negative integers."""
        top = max(values, default=0)
        if top:
            self._add(name, "number", values, top)

    def steps(self, name: str, values: Sequence[int]) -> None:
        """Add a column of integers, stored as the differences between consecutive rows."""
        steps = [b - a for a, b in zip((0, *values), values, strict=False)]
        self._add_signed(name, "step", steps)

    def signed_numbers(self, name: str, values: Sequence[int]) -> None:
        """Add a column of signed integers."""
        self._add_signed(name, "signed", values)

    def floats(self, name: str, values: Iterable[float | None], fraction: int) -> None:
        """Add a column of floats, rounded to `fraction` mantissa bits; None becomes NaN."""
        numbers = [math.nan if value is None else value for value in values]
        if all(map(math.isnan, numbers)):
            return
        bits = struct.unpack(f"<{len(numbers)}Q", struct.pack(f"<{len(numbers)}d", *numbers))
        half, mask = 1 << (51 - fraction), (1 << 64) - (1 << (52 - fraction))
        rounded = [(bit + half) & mask for bit in bits]
        self._add(name, "measured", rounded, (1 << 64) - 1)

    def texts(self, name: str, values: Sequence[Hashable]) -> list[Any]:
        """Add a column for values that repeat, and return the list of distinct values.

        The column contains the position of each row's value in this list.
        """
        table = Table()
        table.position("")
        self.numbers(name, table.positions(values))
        return table.rows

    def _add_signed(self, name: str, kind: str, values: Sequence[int]) -> None:
        folded = [2 * value if value >= 0 else -2 * value - 1 for value in values]
        top = max(folded, default=0)
        if top:
            self._add(name, kind, folded, top)

    def _add(self, name: str, kind: str, values: Sequence[int], top: int) -> None:
        size = (top.bit_length() + 7) // 8
        self.layout.append((name, kind, size, len(values)))
        if size == 1:
            self.planes.append(bytes(values))
            return
        data = struct.pack(f"<{len(values)}Q", *values)
        self.planes += [data[plane::8] for plane in range(size)]
