"""Limits of a file's content, counted before it is parsed, so that no file fills the memory first.

`[],` is three bytes of text and less than a hundredth of a byte compressed, but an empty list takes
64 bytes. The limits count what takes memory and time: bytes of text, lists and objects, texts (keys
among them), values, and gzip members. A saved graph consists of columns, so it has some hundred
lists, however large it is. A recording of 12,505 nodes has 2.7 values and ten bytes of text for
each compressed byte; a training has fewer.
"""

from __future__ import annotations

MAX_BYTES = 1 << 28  # of JSON text; `max_bytes` below is this number, or what a user gives for it

_ONE = 2  # part of `max_bytes` that one graph, or one step of a training, may take
_LISTS = _TEXTS = 256  # bytes of `max_bytes` for each list or object, and for each text
_MOST_VALUES = 40  # bytes of `max_bytes` for each value: about 250,000 recorded nodes
_MEMBERS = 2048  # bytes of `max_bytes` for each gzip member: the writings of a run
_VALUES, _VALUES_PER_BYTE = 512, 8  # bytes of `max_bytes` for a value; values for each byte
_TEXT, _TEXT_PER_BYTE = 8, 64  # a small file may unpack to this part of `max_bytes`


class Limits:
    """The limits of one file.

    Args:
        size: bytes of the file as it is, compressed or not.
        max_bytes: of text. With it grow the other limits.

    Attributes:
        text: bytes of the text.
        one: bytes of the text of one graph, or of one step of a training.
        values: numbers and texts that lists and objects hold, all together.
        lists: lists and objects.
        texts: texts, with the keys of objects.
        members: gzip members.

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
        self.one = max_bytes // _ONE
        self.values = max(
            max_bytes // _VALUES, min(_VALUES_PER_BYTE * size, max_bytes // _MOST_VALUES)
        )
        self.lists = max_bytes // _LISTS
        self.texts = max_bytes // _TEXTS
        self.members = max_bytes // _MEMBERS

    def check(self, *pieces: bytes | bytearray | str) -> None:
        """Raise ValueError where the text of a graph, in pieces, holds more than it may."""
        size = sum(map(len, pieces))
        self.check_text(size)
        if size > self.one:
            raise self._error(self.one, "bytes of text in one graph")
        if sum([_count(piece, "[") + _count(piece, "{") for piece in pieces]) > self.lists:
            raise self._error(self.lists, "lists and objects")
        if sum([_count(piece, '"') for piece in pieces]) > 2 * self.texts:
            raise self._error(self.texts, "texts")
        self.check_values(sum([_count(piece, ",") for piece in pieces]))

    def check_text(self, size: int) -> None:
        """Raise ValueError for more bytes of text than a file may hold."""
        if size > self.text:
            raise self._error(self.text, "bytes of text")

    def check_values(self, count: int) -> None:
        """Raise ValueError for more values than a file may hold, written out."""
        if count > self.values:
            raise self._error(self.values, "values")

    def check_members(self, count: int) -> None:
        """Raise ValueError for more gzip members than a file may have."""
        if count > self.members:
            raise self._error(self.members, "gzip members")

    def _error(self, limit: int, what: str) -> ValueError:
        return ValueError(
            f"it holds more than {limit:,} {what}. "
            "If you trust it, raise the limit: load(path, max_bytes=...)."
        )


def _count(text: bytes | bytearray | str, sign: str) -> int:
    return text.count(sign) if isinstance(text, str) else text.count(sign.encode())
