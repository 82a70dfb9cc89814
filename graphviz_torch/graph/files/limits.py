"""Limit and check the content of an untrusted file, so that no file can exhaust the memory.

The content is counted before it is parsed.

A small file can need much memory: `[],` takes less than a hundredth of a byte when compressed, but
an empty list takes 64 bytes of memory. The limits are on everything that takes memory or time:
bytes of text, lists and objects, strings (including keys), values, and gzip members. A saved graph
consists of columns, so it has a few hundred lists however many nodes it has. A recording of 12,505
nodes has 2.7 values and ten bytes of text per compressed byte; a training has fewer.
"""

from __future__ import annotations

from typing import Any

MAX_BYTES = 1 << 28  # default of `max_bytes`, the limit on the bytes of JSON text

_PER_GRAPH = 2  # one graph, or one step of a training, has at most max_bytes / 2 bytes of text
_LISTS = _TEXTS = 256  # at most max_bytes / 256 lists and objects, and as many strings
_MAX_VALUES = 40  # at most max_bytes / 40 values, enough for 250,000 recorded nodes
# At most max_bytes / 2048 gzip members. A training run adds a member with each write.
_MEMBERS = 2048
# At most 8 values per byte of the file, but a small file may have max_bytes / 512 anyway.
_VALUES, _VALUES_PER_BYTE = 512, 8
# At most 64 bytes of text per byte of the file, but a small file may have max_bytes / 8 anyway.
_TEXT, _TEXT_PER_BYTE = 8, 64


class Limits:
    """The limits on the content of one file.

    Args:
        size: size of the file in bytes, compressed or not.
        max_bytes: limit on the bytes of uncompressed text; other limits are proportional to it.

    Attributes:
        text: bytes of the text.
        one: bytes of the text of one graph, or of one step.
        values: number of numbers and strings in all lists and objects.
        lists: number of lists and objects.
        texts: number of strings, including keys of objects.
        members: number of gzip members.

    >>> limits = Limits(233_000)
    >>> limits.text, limits.values, limits.lists
    (33554432, 1864000, 1048576)
    >>> limits.check(b"[" * 2_000_000)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
      ...
    ValueError: the file has more than 1,048,576 lists and objects. If you trust ...
    """

    def __init__(self, size: int, max_bytes: int = MAX_BYTES) -> None:
        self.text = min(max_bytes, max(max_bytes // _TEXT, _TEXT_PER_BYTE * size))
        self.one = max_bytes // _PER_GRAPH
        self.values = max(
            max_bytes // _VALUES, min(_VALUES_PER_BYTE * size, max_bytes // _MAX_VALUES)
        )
        self.lists = max_bytes // _LISTS
        self.texts = max_bytes // _TEXTS
        self.members = max_bytes // _MEMBERS

    def check(self, *pieces: bytes | bytearray | str) -> None:
        """Raise ValueError if the text of one graph, given in pieces, exceeds a limit."""
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
        """Raise ValueError if the file has more bytes of text than allowed."""
        if size > self.text:
            raise self._error(self.text, "bytes of text")

    def check_values(self, count: int) -> None:
        """Raise ValueError if the file has more values than allowed."""
        if count > self.values:
            raise self._error(self.values, "values")

    def check_members(self, count: int) -> None:
        """Raise ValueError if the file has more gzip members than allowed."""
        if count > self.members:
            raise self._error(self.members, "gzip members")

    def _error(self, limit: int, what: str) -> ValueError:
        return ValueError(
            f"the file has more than {limit:,} {what}. "
            "If you trust the file, raise the limit: load(path, max_bytes=...)."
        )


def _count(text: bytes | bytearray | str, sign: str) -> int:
    return text.count(sign) if isinstance(text, str) else text.count(sign.encode())


LIMIT = 1 << 63  # all sizes and element counts in PyTorch are smaller


def members(data: Any, names: tuple[str, ...], where: str) -> tuple[Any, ...]:
    """Return the values of a JSON object that must have exactly the keys `names`.

    Raises:
        ValueError: if `data` is not such an object; the message begins with `where`.
    """
    if not isinstance(data, dict) or data.keys() != set(names):
        listed = ", ".join(map(repr, names[:-1]))
        raise ValueError(f"{where} is not an object with the keys {listed} and {names[-1]!r}.")
    return tuple([data[name] for name in names])


def rows(data: Any, count: int | None, where: str) -> list[Any]:
    """Return `data` after checking that it is a list of `count` values.

    Raises:
        ValueError: if `data` is not a list, or has another number of values than `count` (unless
            `count` is None). The message begins with `where`.
    """
    if not isinstance(data, list):
        raise ValueError(f"{where} is not a list.")
    if count is not None and len(data) != count:
        raise ValueError(f"{where} has {len(data)} values instead of {count}.")
    return data


def integers(data: Any, count: int, where: str, nullable: bool = False) -> list[int]:
    """Return `data` after checking that it is a list of `count` non-negative integers.

    If `nullable`, values may also be None.

    Raises:
        ValueError: if `data` is not such a list; the message begins with `where`.
    """
    values = rows(data, count, where)
    known = [value for value in values if value is not None] if nullable else values
    if (
        set(map(type, known)) - {int}
        or not 0 <= min(known, default=0) <= max(known, default=0) < LIMIT
    ):
        raise ValueError(f"{where} contains a value that is not an integer from 0 to 2**63 - 1.")
    return values
