"""The checksum of a record in an event file, at the speed of numpy.

TensorBoard's own takes a byte at a time in Python: four seconds for the graph of a large model.
A checksum is the remainder of a division. Four bytes at a place and what they become when they are
moved to a later place leave the same remainder, so a long record is first folded to a short one
that has its checksum.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import (  # type: ignore[import-untyped]
    masked_crc32c,
)

_ROW = 4096  # bytes of what a record is folded to
_POLYNOMIAL = 0x82F63B78  # of CRC-32C, the highest power in the lowest bit
_START = b"\xff" * 4  # the checksum starts with it: as if the first bytes were flipped

Words = NDArray[np.uint32]


def checksum(data: bytes) -> int:
    """CRC-32C of `data`, masked as a record wants it.

    >>> checksum(b"123456789") == masked_crc32c(b"123456789")
    True
    """
    return int(masked_crc32c(_folded(data)))


def _folded(data: bytes) -> bytes:
    """At most a few thousand bytes with the checksum of `data`."""
    if len(data) <= 2 * _ROW:
        return data
    # Zeros in front change no remainder. There are as many as complete the first row.
    rows = np.zeros((-(-len(data) // _ROW), _ROW // 4), "<u4")
    flat = rows.view(np.uint8).reshape(-1)
    first = flat.size - len(data)
    flat[first:] = np.frombuffer(data, np.uint8)
    flat[first : first + 4] ^= np.frombuffer(_START, np.uint8)
    low, high = _moved_by_a_row()
    row = rows[0]
    for following in rows[1:]:
        row = low[row & 0xFFFF] ^ high[row >> 16] ^ following
    row[0] ^= 0xFFFFFFFF
    return bytes(row.data)


@cache
def _moved_by_a_row() -> tuple[Words, Words]:
    """What two bytes become when they are moved to the next row: the lower ones, the upper ones."""
    # Of each single bit: moved by one bit, then by twice as many, up to the bits of a row.
    bits: Words = np.uint32(1) << np.arange(32, dtype=np.uint32)
    moved: Words = (bits >> 1) ^ np.where(bits & 1, np.uint32(_POLYNOMIAL), np.uint32(0))
    for _ in range((_ROW * 8).bit_length() - 1):
        moved = _sums(moved, moved)
    halves = np.arange(1 << 16, dtype=np.uint32)
    return _sums(moved, halves), _sums(moved, halves << np.uint32(16))


def _sums(moved: Words, words: Words) -> Words:
    """The words with each of their bits moved."""
    total = np.zeros_like(words)
    for bit, become in enumerate(moved):
        total ^= np.where((words >> np.uint32(bit)) & 1, become, np.uint32(0))
    return total
