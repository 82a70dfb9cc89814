"""A small file that holds much is refused before what it holds is built."""

from __future__ import annotations

import gzip
import resource
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from graphviz_torch import Graph, load
from graphviz_torch.graph.files.file import packed_value
from graphviz_torch.graph.json import from_json, to_json
from graphviz_torch.integrations.command.findings.baseline import read_baseline

_HEAD = b'{"format":"graphviz_torch","version":1,'
_TRAINING = b'{"format": "graphviz_torch training", "version": 1}\n{"step":0,"graphs":['


def events(count: int) -> bytes:
    """A graph that is right, of so many events without a value of their own."""
    nodes = b'"id":[],"name":{"distinct":[],"at":[]},"outputs":{"lengths":[],"items":[]}'
    nodes = nodes.replace(b'"items":[]', b'"items":{"distinct":[],"at":[]}')
    at = b",".join([b"0"] * count)
    kinds = b'{"kinds":["NonfiniteValue"],"at":[%s],"values":[{}]}' % at
    lists = b'"nodes":{"lengths":[0],"items":{%s}},"events":{"lengths":[%d],"items":%s}}'
    return _HEAD + lists % (nodes, count, kinds)


# Each takes gigabytes where it is read: the text, and what of it is too much.
LARGE = {
    "lists": (_HEAD + b'"nodes":[' + b"[]," * 10_000_000 + b"0]}", "1,048,576 lists"),
    "more lists": (_HEAD + b'"nodes":[' + b"[]," * 80_000_000 + b"0]}", "33,554,432 bytes"),
    "objects": (_HEAD + b'"nodes":[' + b"{}," * 10_000_000 + b"0]}", "1,048,576 lists"),
    "numbers": (_HEAD + b'"nodes":[' + b"999," * 8_000_000 + b"0]}", "524,288 values"),
    "keys": (_HEAD + b'"nodes":{' + b'"a":1,' * 5_000_000 + b'"b":0}}', "524,288 values"),
    "text": (_HEAD + b'"nodes":["' + b"a" * 99_000_000 + "☃".encode() + b'"]}', "33,554,432 bytes"),
    "events": (events(3_000_000), "524,288 values"),
    "lists of a step": (_TRAINING + b"[]," * 10_000_000 + b"0]}\n", "1,048,576 lists"),
    "long line": (_TRAINING + b"1," * 99_000_000 + b"0]}\n", "33,554,432 bytes"),
}


@pytest.mark.parametrize("name", LARGE)
def test_a_small_file_that_holds_much_is_refused_in_little_memory(
    name: str, tmp_path: Path
) -> None:
    text, reason = LARGE[name]
    path = tmp_path / "small.json.gz"
    path.write_bytes(gzip.compress(text, 6))
    assert path.stat().st_size < 400_000
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
    assert f"{path}: it holds more than {reason}" in ran.stdout, ran.stderr


def test_a_text_and_a_packed_text_of_many_lists_are_refused() -> None:
    text = LARGE["lists"][0]
    with pytest.raises(ValueError, match="more than 1,048,576 lists"):
        from_json(text.decode())
    for packed in (gzip.compress(text), zlib.compress(text)):
        with pytest.raises(ValueError, match="more than 1,048,576 lists"):
            packed_value(packed, Graph)


def test_a_baseline_of_many_lists_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    path.write_bytes(LARGE["lists"][0])
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
