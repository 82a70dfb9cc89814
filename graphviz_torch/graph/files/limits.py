"""Limits of a file's content, counted before it is parsed, so that no small file fills the memory.

`[],` is three bytes of text and less than a hundredth of a byte compressed, but an empty list takes
64 bytes. The limits count what takes memory: bytes of text, lists and objects, and values. A saved
graph consists of columns, so it has some hundred lists, however large it is. A recording of 12,505
nodes has 2.7 values and ten bytes of text for each compressed byte; a training has fewer.
"""

from __future__ import annotations

MAX_BYTES = 1 << 28  # of JSON text: about 1.5 million recorded nodes

_LISTS = 256  # bytes of `max_bytes` for each list or object
_VALUES, _VALUES_PER_BYTE = 512, 8  # bytes of `max_bytes` for a value; values for each byte
_TEXT, _TEXT_PER_BYTE = 8, 64  # a small file may unpack to this part of `max_bytes`


class Limits:
    """The limits of one file.

    Args:
        size: bytes of the file as it is, compressed or not.
        max_bytes: of text. With it grow the other limits.

    Attributes:
        text: bytes of the text.
        values: numbers and texts that lists and objects hold, all together.
        lists: lists and objects.

    >>> limits = Limits(233_000)
    >>> limits.text, limits.values, limits.lists
    (33554432, 1864000, 1048576)
    >>> limits.check(b"[" * 2_000_000)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
      ...
    ValueError: it holds more than 1,048,576 lists and objects. If you trust it, raise ...
    """

    def __init__(self, size: int, max_bytes: int = MAX_BYTES) -> None:
        self.text = min(max_bytes, max(max_bytes // _TEXT, _TEXT_PER_BYTE * size))
        self.values = max(max_bytes // _VALUES, _VALUES_PER_BYTE * size)
        self.lists = max_bytes // _LISTS

    def check(self, *pieces: bytes | str) -> None:
        """Raises ValueError where a text, given in pieces, holds more than a file may."""
        self.check_text(sum(map(len, pieces)))
        if sum([_count(piece, "[") + _count(piece, "{") for piece in pieces]) > self.lists:
            raise self._error(self.lists, "lists and objects")
        self.check_values(sum([_count(piece, ",") for piece in pieces]))

    def check_text(self, size: int) -> None:
        """Raises ValueError for more bytes of text than a file may hold."""
        if size > self.text:
            raise self._error(self.text, "bytes of text")

    def check_values(self, count: int) -> None:
        """Raises ValueError for more values than a file may hold, written out."""
        if count > self.values:
            raise self._error(self.values, "values")

    def _error(self, limit: int, what: str) -> ValueError:
        return ValueError(
            f"it holds more than {limit:,} {what}. "
            "If you trust it, raise the limit: load(path, max_bytes=...)."
        )


def _count(text: bytes | str, sign: str) -> int:
    return text.count(sign) if isinstance(text, str) else text.count(sign.encode())
