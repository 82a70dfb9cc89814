"""A Graph as a JSON file, and back: what is loaded equals what was saved.

The layout is columns, not rows: a tuple of 100,000 nodes is one object with a list for each field,
and a field that is default everywhere is left out. It follows from the values in `graph.py` alone,
so a new field with a default needs nothing here, and older files load without it.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from .columns import codec
from .values import Failure, Graph

FORMAT = "graphviz_torch"
VERSION = 1
MAX_BYTES = 1 << 28  # of JSON text: about four million nodes

_CHUNK = 1 << 20


def save(graph: Graph, path: str | Path) -> Path:
    """Write `graph` to `path`, compressed if it ends in ".gz". Returns the path.

    Raises:
        ValueError: for a graph that could not be loaded again (see `load`); nothing is written.
        OSError: as `open` does.
    """
    path = Path(path)
    parts = _parts(graph)
    first = next(parts)  # a graph that cannot be saved fails here, before the file is opened
    raw: IO[bytes]
    with open(path, "wb") as raw:
        # No name and no time in the header: the same graph gives the same bytes.
        file: Any = raw
        if path.suffix == ".gz":
            file = gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=raw, mtime=0)
        file.write(first.encode())
        for part in parts:
            file.write(part.encode())
        if file is not raw:
            file.close()
    return path


def load(path: str | Path, *, max_bytes: int = MAX_BYTES) -> Graph:
    """The graph that `Graph.save` wrote to `path`, compressed or not.

    Args:
        path: the file.
        max_bytes: refuse a file with more text than this, once uncompressed.

    Raises:
        ValueError: for a file that is no graph: truncated, of a newer version, with a wrong type
            anywhere, an id that is out of range, or an edge that runs backwards.
        OSError: as `open` does.
    """
    with open(path, "rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        try:
            data = _read(gzip.GzipFile(fileobj=raw) if packed else raw, max_bytes)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(f"{path}: the compressed data is damaged or cut short.") from error
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
    try:
        return from_json(data.decode())
    except UnicodeDecodeError:
        raise ValueError(f"{path}: this is no JSON text.") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def to_json(graph: Graph) -> str:
    """The text that `Graph.save` writes.

    >>> from_json(to_json(Graph(nodes=()))) == Graph(nodes=())
    True
    """
    return "".join(_parts(graph))


def from_json(text: str) -> Graph:
    """The graph that `to_json` gave.

    Raises:
        ValueError: as `load`.
    """
    try:
        values = json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
    except RecursionError:
        raise ValueError("this is no saved graph: it is nested too deeply.") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"this is no JSON, or it was cut short: {error}.") from None
    if not isinstance(values, dict) or values.pop("format", None) != FORMAT:
        raise ValueError('this is JSON, but no saved graph: "format" is not "graphviz_torch".')
    version = values.pop("version", None)
    if type(version) is not int or version < 1:
        raise ValueError(f'"version" is {version!r}, which is no version.')
    if version > VERSION:
        raise ValueError(
            f"the file has version {version}, and this graphviz_torch reads up to {VERSION}. "
            "Update graphviz_torch."
        )
    graph: Graph = codec(Graph).decode(values, 1, "graph")[0]
    _check(graph)
    return graph


def _parts(graph: Graph) -> Iterator[str]:
    _check(graph)
    columns = codec(Graph).encode([graph], "graph")
    yield f'{{"format": "{FORMAT}", "version": {VERSION}'
    for name, column in columns.items():
        yield f', "{name}": {json.dumps(column, allow_nan=False, separators=(",", ":"))}'
    yield "}\n"


def _read(file: Any, limit: int) -> bytes:
    chunks = []
    size = 0
    while chunk := file.read(_CHUNK):
        size += len(chunk)
        if size > limit:
            raise ValueError(
                f"it holds more than {limit:,} bytes of text. "
                "If you trust it, raise the limit: load(path, max_bytes=...)."
            )
        chunks.append(chunk)
    return b"".join(chunks)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("it is no saved graph: an object has the same key twice.")
    return found


def _constant(name: str) -> Any:
    raise ValueError(f"it is no JSON: {name} is no number there.")


def _check(graph: Graph) -> None:
    """Raises ValueError unless every id is that of a node, and every edge runs forwards."""
    count = len(graph.nodes)
    for i, node in enumerate(graph.nodes):
        if node.id != i:
            raise ValueError(f"graph.nodes[{i}] has the id {node.id}.")
    for i, (source, target, output_nr, input_nr) in enumerate(graph.edges):
        if not 0 <= source < target < count:
            raise ValueError(
                f"graph.edges[{i}] runs from node {source} to {target} among {count} nodes; "
                "an edge runs from a node to a later one."
            )
        if output_nr < 0 or input_nr < 0:
            raise ValueError(f"graph.edges[{i}] has a negative output_nr or input_nr.")
    for where, node_id in _mentioned(graph):
        if not 0 <= node_id < count:
            raise ValueError(f"graph.{where} names node {node_id} among {count} nodes.")
    if any(output_nr < 0 for _, output_nr in graph.outputs):
        raise ValueError("graph.outputs has a negative output_nr.")


def _of_failure(failure: Failure) -> Iterator[int | None]:
    yield failure.node
    yield from (operand.node for operand in (*failure.operands, failure.kept) if operand)
    yield from (node for earlier in failure.earlier for node in earlier.nodes)


def _mentioned(graph: Graph) -> Iterator[tuple[str, int]]:
    """Every node id that stands outside `edges`, with where it stands."""
    for node in graph.nodes:
        for saved in node.saved:
            if saved.shared_with is not None:
                yield f"nodes[{node.id}].saved", saved.shared_with
    for name, ids in (
        ("outputs", [node_id for node_id, _ in graph.outputs]),
        ("transfers", [transfer.node for transfer in graph.transfers]),
        ("parameters", [parameter.node for parameter in graph.parameters]),
        ("cuts", [node_id for cut in graph.cuts for node_id in (cut.before, *cut.after)]),
        ("kept", [graph.kept.node] if graph.kept else []),
        ("failure", list(_of_failure(graph.failure)) if graph.failure else []),
    ):
        for node_id in ids:
            if node_id is not None:
                yield name, node_id
