"""Write and read frozen values as JSON files that decode to equal values.

The layout has columns instead of rows: a tuple of 100,000 nodes is one object with a list per
field, and a field with its default everywhere is left out. The layout follows from the value's
class, so a new field with a default needs no code here, and older files load without it.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeVar

from ..gc import with_gc_disabled
from ..text import printable
from .columns import Known, codec
from .limits import MAX_BYTES, Limits
from .replacement import replacement

FORMAT = "graphviz_torch"
VERSION = 1

_TEXT_CHUNK = 1 << 20
# Compressed bytes to read at once. At the end of each gzip member, zlib copies all bytes that
# follow, which would be slow for many bytes.
_PACKED_CHUNK = 1 << 14
_GZIP = 16 + zlib.MAX_WBITS


class Checkable(Protocol):
    """Interface of a frozen value that can check itself beyond the types of its fields."""

    def check(self) -> None:
        """Raise ValueError if a file with the value could not be read again."""


Kind = TypeVar("Kind", bound=Checkable)


def write(value: Checkable, path: str | Path) -> Path:
    """Write a value to a file, compressed if `path` ends in ".gz", and return the path.

    Raises:
        ValueError: for a value that could not be read again; nothing is written.
        OSError: as `open` does.
    """
    path = Path(path)
    with replacement(path) as raw:
        file: Any
        with _gzip_writer(raw) if path.suffix == ".gz" else nullcontext(raw) as file:
            for part in _parts(value):
                file.write(part.encode())
    return path


def read(path: str | Path, kind: type[Kind], max_bytes: int) -> Kind:
    """Return the value of class `kind` that a file contains, compressed or not.

    Raises:
        ValueError: if the file contains no such value, or exceeds its `Limits`.
        OSError: as `open` does.
    """
    limits = Limits(os.stat(path).st_size, max_bytes)
    try:
        return _value(_read(read_unpacked(path, _TEXT_CHUNK, limits, whole=True), limits), kind)
    except zlib.error as error:
        raise ValueError(f"{printable(str(path))}: the compressed data is damaged.") from error
    except ValueError as error:
        raise ValueError(f"{printable(str(path))}: {error}") from None


def read_unpacked(path: str | Path, most: int, limits: Limits, *, whole: bool) -> Iterator[bytes]:
    """Yield the text of a file, compressed or not, in pieces of at most `most` bytes.

    Args:
        path: the file.
        most: largest size of a piece, in bytes.
        limits: limits that the file must not exceed.
        whole: True to raise for a truncated file; False to yield the text that it contains.

    Raises:
        zlib.error: for damaged compressed data.
        ValueError: for more gzip members than `limits` allows; if `whole`, also for a truncated
            file.
        OSError: as `open` does.
    """
    with open(path, "rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        if not packed:
            yield from iter(lambda: file.read(most), b"")
            return
        unpack = zlib.decompressobj(_GZIP)
        data, members = b"", 1
        while data := data or file.read(_PACKED_CHUNK):
            text = unpack.decompress(data, most)
            data = unpack.unconsumed_tail
            if unpack.eof:
                data = unpack.unused_data or file.read(_PACKED_CHUNK)
                while data and not (data := data.lstrip(b"\0")):  # skip zeros that pad a member
                    data = file.read(_PACKED_CHUNK)
                if data:
                    members += 1
                    limits.check_members(members)
                    unpack = zlib.decompressobj(_GZIP)
            if text:
                yield text
        if whole and not unpack.eof:
            raise ValueError(f"the file was cut short at byte {os.fstat(file.fileno()).st_size:,}.")


def text_of(value: Checkable) -> str:
    """Return the text that `write` writes to a file."""
    return "".join(_parts(value))


def value_of(text: str, kind: type[Kind]) -> Kind:
    """Return the value of class `kind` that `text_of` converted to `text`.

    Raises:
        ValueError: if `text` contains no such value.
    """
    Limits(len(text), max(MAX_BYTES, len(text))).check(text)
    return _value(text, kind)


def packed_value(content: bytes, kind: type[Kind]) -> Kind:
    """Return the value of class `kind` in the bytes of a file compressed by gzip or zlib.

    Raises:
        ValueError: if `content` is damaged or truncated, or contains no such value.
    """
    limits = Limits(len(content))
    stream = zlib.decompressobj(wbits=32 + zlib.MAX_WBITS)
    try:
        text = stream.decompress(content, limits.text + 1)
    except zlib.error:
        raise ValueError("the compressed data is damaged.") from None
    limits.check(text)
    if not stream.eof:
        raise ValueError("the compressed data is cut short.")
    return _value(_decode(text), kind)


@with_gc_disabled
def _value(text: str, kind: type[Kind]) -> Kind:
    values = json_of(text)
    check_head(values, FORMAT)
    value: Kind = Known().decode(codec(kind), values)
    value.check()
    return value


def json_of(text: str | bytes) -> Any:
    """Parse a JSON text, and return the value.

    Raises:
        ValueError: if `text` is not JSON.
    """
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
    except RecursionError:
        raise ValueError("this is not a saved graph, because it is nested too deeply.") from None
    except json.JSONDecodeError as error:
        if not text.strip():
            raise ValueError("the file is empty; pass one that `save` or `run -o` wrote.") from None
        ends = error.pos >= len(text.rstrip()) or "Unterminated" in error.msg
        said = f"this is not JSON: {error}."
        if ends and text[:1] in ("{", b"{"):
            size = len(text) if isinstance(text, bytes) else len(text.encode())
            said = f"the file was cut short at byte {size:,}."
        raise ValueError(f"{said} Pass a file that `save` or `run -o` wrote.") from None
    except ValueError as error:
        if "digits" not in str(error):
            raise
        raise ValueError("this is not a saved graph: a number has thousands of digits.") from None


def check_head(values: Any, format: str) -> None:
    """Check "format" and "version" of a file's content, and remove both keys from it.

    Raises:
        ValueError: if the format is not `format`, or the version is unknown.
    """
    if not isinstance(values, dict) or values.pop("format", None) != format:
        raise ValueError(f'this is JSON, but not a saved graph: "format" is not "{format}".')
    version = values.pop("version", None)
    if type(version) is not int or version < 1:
        raise ValueError(f'"version" is {version!r}, which is not a positive integer.')
    if version > VERSION:
        raise ValueError(
            f"the file has version {version}; this graphviz_torch reads versions up to {VERSION}. "
            "Update graphviz_torch."
        )


def _gzip_writer(raw: BinaryIO) -> gzip.GzipFile:
    # The gzip header gets no name and no time, so that equal values give equal bytes.
    return gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=raw, mtime=0)


def _parts(value: Checkable) -> Iterator[str]:
    columns = codec(type(value)).encode([value], "graph")
    value.check()
    yield f'{{"format": "{FORMAT}", "version": {VERSION}'
    for name, column in columns.items():
        yield f', "{name}": {json.dumps(column, allow_nan=False, separators=(",", ":"))}'
    yield "}\n"


def _read(pieces: Iterator[bytes], limits: Limits) -> str:
    """Return the text that `pieces` form; raise ValueError as soon as it exceeds `limits`."""
    text, checked = bytearray(), 0
    for piece in pieces:
        text += piece
        # The limits are checked each time the size has doubled, which counts a byte twice at most.
        if len(text) > 2 * checked:
            limits.check(text)
            checked = len(text)
    limits.check(text)
    return _decode(text)


def _decode(text: bytes | bytearray) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError:
        raise ValueError("this is not JSON text.") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("this is not a saved graph: an object has the same key twice.")
    return found


def _constant(name: str) -> Any:
    raise ValueError(f"this is not JSON: {name} is not a number in JSON.")
