"""Write TensorBoard event files: summaries, tags, plugin data, and writers."""

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
from .checksum import checksum

GRAPHS = "graphviz_torch"  # name of the plugin that gets the whole graph
# A tag belongs to one plugin: the Graphs tab gets the tag itself, our plugin the tag with this
# prefix.
PREFIX = "autograd/"

# Any: torch's SummaryWriter or an object with `add_event`, whose types cannot be imported here.
Writer = str | Path | Any
Write = Callable[[summary_pb2.Summary, int], None]

_files = count()  # numbers the files of this process, as two in one second need different names


@contextmanager
def writing(logdir_or_writer: Writer) -> Iterator[Write]:
    """Context manager that returns a function which writes a summary at a step.

    For a directory, a new event file is written, which appears when it is complete. A given writer
    appends to its own file, is flushed at the end, and stays open; TensorBoard ignores an
    incomplete event there.

    Raises:
        TypeError: if it is neither a path nor a writer.
        OSError: if the directory cannot be written.
    """
    if isinstance(logdir_or_writer, (str, os.PathLike)):
        name = _new_file(os.fspath(logdir_or_writer))
        remote = "://" in name  # a bucket shows no file before it is closed
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
            f"logdir_or_writer is {type_text(writer)}; pass a directory or a SummaryWriter "
            "(with Lightning: logger.experiment)."
        )
    writer.flush()


def directory(logdir_or_writer: Writer) -> str:
    """Return the directory of a writer, or its repr if it has none."""
    if isinstance(logdir_or_writer, (str, os.PathLike)):
        return os.path.abspath(os.fspath(logdir_or_writer))
    path = getattr(logdir_or_writer, "log_dir", None)
    return os.path.abspath(path) if isinstance(path, str) else repr(logdir_or_writer)


def _new_file(directory: str) -> str:
    """Return the name of a new event file, which no other writer uses.

    TensorBoard reads files in order of their names; the number makes the order right within a
    second.
    """
    tf.io.gfile.makedirs(directory)
    place = f"{socket.gethostname()}.{os.getpid()}.{next(_files):06}"
    name = f"events.out.tfevents.{int(time.time()):010}.{place}.graphviz_torch"
    return os.path.join(directory, name)


def _record(file: Any, event: event_pb2.Event) -> None:
    """Append one event: its length and its bytes, each followed by a checksum."""
    content = event.SerializeToString()
    length = struct.pack("<Q", len(content))
    sums = [struct.pack("<I", checksum(data)) for data in (length, content)]
    file.write(b"".join([length, sums[0], content, sums[1]]))


def _event(summary: summary_pb2.Summary, step: int) -> event_pb2.Event:
    return event_pb2.Event(wall_time=time.time(), step=step, summary=summary)


def blob(tag: str, plugin: str, content: bytes, *, version: bytes = b"1") -> summary_pb2.Summary:
    """Return a summary with bytes for a plugin."""
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
    """Return a summary with one number per tag."""
    summary = summary_pb2.Summary()
    for tag, value in values.items():
        summary.value.add(tag=tag, simple_value=value)
    return summary


def buckets(
    tag: str, rows: list[tuple[float, float, float]], *, description: str = ""
) -> summary_pb2.Summary:
    """Return a histogram with given buckets: rows of left edge, right edge and count."""
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
    """Return a summary for the Images tab."""
    summary = summary_pb2.Summary()
    shown = summary.value.add(tag=tag).image
    shown.width, shown.height = struct.unpack(">II", png[16:24])  # every PNG has them in its header
    shown.colorspace = 4
    shown.encoded_image_string = png
    return summary


def charts(category: str, lines: dict[str, list[str]]) -> summary_pb2.Summary:
    """Return a layout for the Custom Scalars tab: one chart per title, with its tags."""
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
    """Return a summary for the Text tab, which shows Markdown."""
    summary = summary_pb2.Summary()
    value = summary.value.add(tag=tag)
    value.metadata.plugin_data.plugin_name = "text"
    value.metadata.data_class = summary_pb2.DATA_CLASS_TENSOR
    value.tensor.dtype = types_pb2.DT_STRING
    value.tensor.tensor_shape.dim.add(size=1)
    value.tensor.string_val.append(text.encode())
    return summary


def pack(graph: Graph) -> bytes:
    """Return the graph as compressed JSON, with equal bytes for equal graphs."""
    return gzip.compress(to_json(graph).encode(), compresslevel=4, mtime=0)


def unpack(content: bytes) -> Graph:
    """Return the graph given to `pack`; raise ValueError for other content."""
    try:
        return packed_value(content, Graph)
    except ValueError as error:
        raise ValueError(f"the graph in the event file is unreadable: {error}") from None
