"""Rows that repeat as tables, and numbers as columns of bytes, for `payload`."""

from __future__ import annotations

import struct
from collections.abc import Hashable, Iterable, Sequence
from typing import Any


class Table:
    """Rows that repeat: each once, in the order they came."""

    def __init__(self) -> None:
        self._at: dict[Hashable, int] = {}

    def at(self, row: Hashable) -> int:
        """The position of a row."""
        return self._at.setdefault(row, len(self._at))

    def places(self, rows: Sequence[Hashable]) -> list[int]:
        """The positions of rows."""
        for row in dict.fromkeys(rows):
            self.at(row)
        return list(map(self._at.__getitem__, rows))

    @property
    def rows(self) -> list[Any]:
        """Each row once."""
        return list(self._at)


class Columns:
    """Columns of numbers, as planes of bytes. A column of zeros alone is left out."""

    def __init__(self) -> None:
        self.layout: list[tuple[str, str, int, int]] = []  # name, kind, bytes a row, rows
        self.planes: list[bytes] = []

    def numbers(self, name: str, values: Sequence[int]) -> None:
        """Whole numbers from 0."""
        top = max(values, default=0)
        if top:
            self._add(name, "number", struct.pack(f"<{len(values)}Q", *values), top, len(values))

    def steps(self, name: str, values: Sequence[int]) -> None:
        """Whole numbers that differ little from one row to the next."""
        steps = [b - a for a, b in zip((0, *values), values, strict=False)]
        self._signed(name, "step", steps)

    def signed(self, name: str, values: Sequence[int]) -> None:
        """Whole numbers on both sides of 0."""
        self._signed(name, "signed", values)

    def measured(self, name: str, values: Iterable[float | None], fraction: int) -> None:
        """Numbers with so many bits of their fraction; NaN for None."""
        numbers = [float("nan") if value is None else value for value in values]
        if all(number != number for number in numbers):
            return
        bits = struct.unpack(f"<{len(numbers)}Q", struct.pack(f"<{len(numbers)}d", *numbers))
        half, mask = 1 << (51 - fraction), -1 << (52 - fraction)
        rounded = [(bit + half) & mask & 0xFFFFFFFFFFFFFFFF for bit in bits]
        data = struct.pack(f"<{len(rounded)}Q", *rounded)
        self._add(name, "measured", data, (1 << 64) - 1, len(rounded))

    def texts(self, name: str, values: Sequence[Hashable]) -> list[Any]:
        """Positions in a table of texts, which is returned."""
        table = Table()
        table.at("")
        self.numbers(name, table.places(values))
        return table.rows

    def _signed(self, name: str, kind: str, values: Sequence[int]) -> None:
        folded = [2 * value if value >= 0 else -2 * value - 1 for value in values]
        top = max(folded, default=0)
        if top:
            self._add(name, kind, struct.pack(f"<{len(folded)}Q", *folded), top, len(folded))

    def _add(self, name: str, kind: str, data: bytes, top: int, rows: int) -> None:
        size = (top.bit_length() + 7) // 8
        self.layout.append((name, kind, size, rows))
        self.planes += [data[plane::8] for plane in range(size)]
