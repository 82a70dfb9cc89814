"""Compute the checksums in event files: CRC-32C, masked as in TensorFlow's records.

The package `google-crc32c`, part of the extra `tensorboard`, computes them. Without this package,
TensorBoard's own implementation is used, which is written in Python: it takes four seconds for the
graph of a large model.
"""

from __future__ import annotations

from typing import Any

from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import (  # type: ignore[import-untyped]
    masked_crc32c,
)

library: Any
try:
    import google_crc32c as library
except ImportError:
    library = None

# Constant that TensorFlow adds to the rotated checksum (tsl/lib/hash/crc32c.h).
_MASK = 0xA282EAD8


def checksum(data: bytes) -> int:
    """Return the masked CRC-32C of `data`.

    >>> checksum(b"123456789") == masked_crc32c(b"123456789")
    True
    """
    if library is None:
        return int(masked_crc32c(data))
    crc: int = library.value(data)
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF
