"""Test that a small file with a huge content is refused before the content is built."""

from __future__ import annotations

import gzip
import resource
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from graphviz_torch import Graph, load
from graphviz_torch.graph.files.file import packed_value
from graphviz_torch.graph.json import from_json, to_json
from graphviz_torch.integrations.command.judge import read_baseline

_HEAD = b'{"format":"graphviz_torch","version":1,'
_TRAINING = b'{"format": "graphviz_torch training", "version": 1}\n{"step":0,"graphs":['


def events(count: int) -> bytes:
    """Return the file of a valid graph with this number of events, which have no values."""
    nodes = b'"id":[],"name":{"distinct":[],"at":[]},"outputs":{"lengths":[],"items":[]}'
    nodes = nodes.replace(b'"items":[]', b'"items":{"distinct":[],"at":[]}')
    at = b",".join([b"0"] * count)
    kinds = b'{"kinds":["NonfiniteValue"],"at":[%s],"values":[{}]}' % at
    lists = b'"nodes":{"lengths":[0],"items":{%s}},"events":{"lengths":[%d],"items":%s}}'
    return _HEAD + lists % (nodes, count, kinds)


# Each takes gigabytes where it is read: the text, and what of it is too much.
LARGE: dict[str, Callable[[], tuple[bytes, str]]] = {
    "lists": lambda: (_HEAD + b'"nodes":[' + b"[]," * 10_000_000 + b"0]}", "524,288 values"),
    "deep lists": lambda: (_HEAD + b'"nodes":' + b"[" * 80_000_000 + b"0}", "1,048,576 lists"),
    "objects": lambda: (_HEAD + b'"nodes":[' + b"{}," * 10_000_000 + b"0]}", "524,288 values"),
    "numbers": lambda: (_HEAD + b'"nodes":[' + b"999," * 8_000_000 + b"0]}", "524,288 values"),
    "keys": lambda: (_HEAD + b'"nodes":{' + b'"a":1,' * 5_000_000 + b'"b":0}}', "1,048,576 texts"),
    "text": lambda: (
        _HEAD + b'"nodes":["' + b"a" * 99_000_000 + "☃".encode() + b'"]}',
        "33,554,432 bytes",
    ),
    "events": lambda: (events(3_000_000), "524,288 values"),
    "lists of a step": lambda: (_TRAINING + b"[]," * 10_000_000 + b"0]}\n", "1,048,576 lists"),
    "long line": lambda: (_TRAINING + b"1," * 99_000_000 + b"0]}\n", "33,554,432 bytes"),
}


def refused(path: Path) -> str:
    """Return why a process with 500 MB of memory refuses a file."""
    program = f"""
import resource
from graphviz_torch import load
resource.setrlimit(resource.RLIMIT_AS, ({500 << 20}, {500 << 20}))
try:
    load({str(path)!r})
except ValueError as error:
    print(error)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    return ran.stdout or ran.stderr


@pytest.mark.parametrize("name", LARGE)
def test_a_small_file_that_holds_much_is_refused_in_little_memory(
    name: str, tmp_path: Path
) -> None:
    text, reason = LARGE[name]()
    path = tmp_path / "small.json.gz"
    path.write_bytes(gzip.compress(text, 6))
    assert path.stat().st_size < 400_000
    assert f"{path}: the file has more than {reason}" in refused(path)


# The same of files that are large themselves: these are allowed more values.
LARGER: dict[str, Callable[[], tuple[bytes, str]]] = {
    "keys": lambda: (
        _HEAD + b'"nodes":{' + b",".join([b'"%d":0' % i for i in range(2_500_000)]) + b"}}",
        "1,048,576 texts",
    ),
    "texts": lambda: (
        _HEAD + b'"nodes":[' + b",".join([b'"%d"' % i for i in range(2_500_000)]) + b"]}",
        "1,048,576 texts",
    ),
    "numbers": lambda: (
        _HEAD + b'"nodes":[' + b",".join([b"%d" % i for i in range(12_000_000)]) + b"]}",
        "6,710,886 values",
    ),
}


@pytest.mark.parametrize("name", LARGER)
def test_a_large_file_is_refused_in_little_memory(name: str, tmp_path: Path) -> None:
    text, reason = LARGER[name]()
    path = tmp_path / "large.json.gz"
    path.write_bytes(gzip.compress(text, 1))
    assert path.stat().st_size > 4_000_000
    assert f"{path}: the file has more than {reason}" in refused(path)


@pytest.mark.parametrize("head", [_HEAD, _TRAINING], ids=["graph", "training"])
def test_a_file_of_many_members_is_refused(head: bytes, tmp_path: Path) -> None:
    path = tmp_path / "members.json.gz"
    for packed in (gzip.compress(b"", 1, mtime=0), gzip.compress(b" ", 1, mtime=0)):
        path.write_bytes(packed * 140_000 + gzip.compress(head))
        assert f"{path}: the file has more than 131,072 gzip members" in refused(path)


def test_a_file_of_several_members_is_one_text(tmp_path: Path) -> None:
    path, text = tmp_path / "graph.json.gz", to_json(Graph(())).encode()
    path.write_bytes(b"".join(gzip.compress(text[i : i + 7]) for i in range(0, len(text), 7)))
    assert load(path) == Graph(())
    path.write_bytes(path.read_bytes() + b"\0" * 512)  # as a tape pads it
    assert load(path) == Graph(())
    path.write_bytes(path.read_bytes() + b"more")
    with pytest.raises(ValueError, match="the compressed data is damaged"):
        load(path)


def test_a_text_and_a_packed_text_of_many_lists_are_refused() -> None:
    text = LARGE["lists"]()[0]
    with pytest.raises(ValueError, match="more than 1,048,576 lists"):
        from_json(text.decode())
    for packed in (gzip.compress(text), zlib.compress(text)):
        with pytest.raises(ValueError, match="more than 1,048,576 lists"):
            packed_value(packed, Graph)


def test_a_baseline_of_many_lists_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    path.write_bytes(LARGE["lists"]()[0])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match="this is not a baseline"):
        read_baseline(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 << 10


def test_what_is_allowed_grows_with_the_file_and_with_what_is_asked(tmp_path: Path) -> None:
    path = tmp_path / "events.json.gz"
    path.write_bytes(gzip.compress(events(600_000)))
    with pytest.raises(ValueError, match="more than 524,288 values"):
        load(path)
    read = load(path, max_bytes=1 << 29)
    assert isinstance(read, Graph)
    assert len(read.events) == 600_000
    path.write_bytes(events(600_000))  # a large file may hold much
    assert load(path) == read


def test_a_packed_graph_that_is_cut_short_or_no_text_is_refused() -> None:
    graph = Graph(())
    packed = gzip.compress(to_json(graph).encode())
    assert packed_value(packed, Graph) == graph
    for wrong in (packed[:-9], packed[:20], b"", b"{}", gzip.compress(b"\xff\xfe"), packed[9:]):
        with pytest.raises(ValueError, match=r"damaged|cut short|not JSON"):
            packed_value(wrong, Graph)
