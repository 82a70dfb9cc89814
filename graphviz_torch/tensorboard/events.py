"""Write TensorBoard's event files, and build the summaries that they contain."""

from __future__ import annotations

import gzip
import os
import re
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from tensorboard.compat import tf  # type: ignore[import-untyped]
from tensorboard.compat.proto import event_pb2, summary_pb2, types_pb2  # type: ignore[import-untyped]
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import (  # type: ignore[import-untyped]
    masked_crc32c,
)
from tensorboard.plugins.custom_scalar import layout_pb2  # type: ignore[import-untyped]
from tensorboard.plugins.custom_scalar.metadata import (  # type: ignore[import-untyped]
    CONFIG_SUMMARY_TAG,
    create_summary_metadata,
)

from ..graph import Graph
from ..graph.files.file import packed_value
from ..graph.files.replacement import replacement
from ..graph.json import to_json
from ..graph.text import type_text

# Without this package, which is part of the extra `tensorboard`, TensorBoard's own checksums are
# used. They are written in Python, and take four seconds for the graph of a large model.
crc32c: Any
try:
    import google_crc32c as crc32c
except ImportError:
    crc32c = None

# Constant that TensorFlow adds to the rotated checksum (tsl/lib/hash/crc32c.h).
_MASK = 0xA282EAD8
GRAPHS = "graphviz_torch"  # name of the plugin of the Autograd tab, whose data is a whole Graph
# Prefix of tags in the Autograd tab. A tag can belong to one plugin only, and the tag without the
# prefix belongs to the plugin of the Graphs tab.
PREFIX = "autograd/"

# Any is a SummaryWriter or another object with `add_event`, whose types cannot be imported here.
Writer = str | Path | Any
Write = Callable[[summary_pb2.Summary, int], None]

_files = count()  # numbers for file names, because two files may be written in one second


@contextmanager
def writing(logdir_or_writer: Writer) -> Iterator[Write]:
    """Return a context manager that yields a function `write(summary, step)`.

    For a directory, the summaries are written to a new event file, which appears when it is
    complete. A writer appends the summaries to its own file, is flushed at the end of the block,
    and stays open.

    Args:
        logdir_or_writer: a directory, a `SummaryWriter`, or another object with `add_event`.

    Raises:
        TypeError: if `logdir_or_writer` is neither a path nor a writer.
        OSError: if the directory cannot be written.
    """
    if isinstance(logdir_or_writer, (str, os.PathLike)):
        name = _new_file(os.fspath(logdir_or_writer))
        remote = "://" in name  # a remote file appears when it is closed, so it is written directly
        with tf.io.gfile.GFile(name, "wb") if remote else replacement(name) as file:
            _record(file, event_pb2.Event(wall_time=time.time(), file_version="brain.Event:2"))
            yield lambda summary, step: _record(file, _event(summary, step))
        return
    writer = logdir_or_writer
    if hasattr(writer, "_get_file_writer"):  # torch.utils.tensorboard.SummaryWriter
        files = writer._get_file_writer()
        yield lambda summary, step: files.add_event(_event(summary, step), step)
    elif hasattr(writer, "add_event"):
        yield lambda summary, step: writer.add_event(_event(summary, step))
    else:
        raise TypeError(
            f"logdir_or_writer is {type_text(writer)}: pass a directory or a SummaryWriter "
            "(with Lightning: logger.experiment)."
        )
    writer.flush()


def directory(logdir_or_writer: Writer) -> str:
    """Return the directory of a writer; if it has none, the repr of the writer."""
    if isinstance(logdir_or_writer, (str, os.PathLike)):
        return os.path.abspath(os.fspath(logdir_or_writer))
    path = getattr(logdir_or_writer, "log_dir", None)
    return os.path.abspath(path) if isinstance(path, str) else repr(logdir_or_writer)


def _new_file(directory: str) -> str:
    """Return a name for a new event file that no other writer uses.

    TensorBoard reads the files of a directory in the order of their names. A number in the name
    keeps files of the same second in order.
    """
    tf.io.gfile.makedirs(directory)
    place = f"{socket.gethostname()}.{os.getpid()}.{next(_files):06}"
    name = f"events.out.tfevents.{int(time.time()):010}.{place}.graphviz_torch"
    return os.path.join(directory, name)


def checksum(data: bytes) -> int:
    """Return the masked CRC-32C of `data`.

    >>> checksum(b"123456789") == masked_crc32c(b"123456789")
    True
    """
    if crc32c is None:
        return int(masked_crc32c(data))
    crc: int = crc32c.value(data)
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


def _record(file: Any, event: event_pb2.Event) -> None:
    """Append one event to a file: its length and its bytes, each followed by a checksum."""
    content = event.SerializeToString()
    length = struct.pack("<Q", len(content))
    sums = [struct.pack("<I", checksum(data)) for data in (length, content)]
    file.write(b"".join([length, sums[0], content, sums[1]]))


def _event(summary: summary_pb2.Summary, step: int) -> event_pb2.Event:
    return event_pb2.Event(wall_time=time.time(), step=step, summary=summary)


def blob(tag: str, plugin: str, content: bytes, *, version: bytes = b"1") -> summary_pb2.Summary:
    """Return a summary with bytes for a plugin of TensorBoard.

    Args:
        tag: name of the data in its tab.
        plugin: name of the plugin.
        content: the bytes.
        version: version of the plugin's data.
    """
    summary = summary_pb2.Summary()
    value = summary.value.add(tag=tag)
    value.metadata.plugin_data.plugin_name = plugin
    value.metadata.plugin_data.content = version
    value.metadata.data_class = summary_pb2.DATA_CLASS_BLOB_SEQUENCE
    value.tensor.dtype = types_pb2.DT_STRING
    value.tensor.tensor_shape.dim.add(size=1)
    value.tensor.string_val.append(content)
    return summary


def scalars(values: dict[str, float]) -> summary_pb2.Summary:
    """Return a summary with a number for each tag."""
    summary = summary_pb2.Summary()
    for tag, value in values.items():
        summary.value.add(tag=tag, simple_value=value)
    return summary


def buckets(
    tag: str, rows: list[tuple[float, float, float]], *, description: str = ""
) -> summary_pb2.Summary:
    """Return a summary with a histogram.

    Args:
        tag: name of the histogram.
        rows: left edge, right edge and count of each bucket.
        description: text that the tab shows with the histogram.
    """
    summary = summary_pb2.Summary()
    value = summary.value.add(tag=tag)
    value.metadata.summary_description = description
    value.metadata.plugin_data.plugin_name = "histograms"
    value.metadata.data_class = summary_pb2.DATA_CLASS_TENSOR
    value.tensor.dtype = types_pb2.DT_DOUBLE
    value.tensor.tensor_shape.dim.add(size=len(rows))
    value.tensor.tensor_shape.dim.add(size=3)
    value.tensor.double_val.extend(number for row in rows for number in row)
    return summary


def image(tag: str, png: bytes) -> summary_pb2.Summary:
    """Return a summary with a PNG picture for the Images tab."""
    summary = summary_pb2.Summary()
    shown = summary.value.add(tag=tag).image
    shown.width, shown.height = struct.unpack(">II", png[16:24])  # in the header of a PNG file
    shown.colorspace = 4
    shown.encoded_image_string = png
    return summary


def charts(category: str, lines: dict[str, list[str]]) -> summary_pb2.Summary:
    """Return a summary with the layout of the Custom Scalars tab.

    Args:
        category: title above the charts.
        lines: title of a chart -> tags of the scalars that it shows.
    """
    content = layout_pb2.Layout()
    group = content.category.add(title=category)
    for title, tags in lines.items():
        patterns = [f"^{re.escape(tag)}$" for tag in tags]
        group.chart.add(title=title).multiline.tag.extend(patterns)
    summary = summary_pb2.Summary()
    value = summary.value.add(tag=CONFIG_SUMMARY_TAG, metadata=create_summary_metadata())
    value.tensor.dtype = types_pb2.DT_STRING
    value.tensor.string_val.append(content.SerializeToString())
    return summary


def markdown_summary(tag: str, text: str) -> summary_pb2.Summary:
    """Return a summary with Markdown for the Text tab."""
    summary = summary_pb2.Summary()
    value = summary.value.add(tag=tag)
    value.metadata.plugin_data.plugin_name = "text"
    value.metadata.data_class = summary_pb2.DATA_CLASS_TENSOR
    value.tensor.dtype = types_pb2.DT_STRING
    value.tensor.tensor_shape.dim.add(size=1)
    value.tensor.string_val.append(text.encode())
    return summary


def pack(graph: Graph) -> bytes:
    """Return the graph as compressed JSON. Equal graphs give equal bytes."""
    return gzip.compress(to_json(graph).encode(), compresslevel=4, mtime=0)


def unpack(content: bytes) -> Graph:
    """Return the graph from the bytes that `pack` returned; raise ValueError for other bytes."""
    try:
        return packed_value(content, Graph)
    except ValueError as error:
        raise ValueError(f"the graph in the event file is unreadable: {error}") from None
