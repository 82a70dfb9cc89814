"""Summaries on their way into TensorBoard's event files: tags, plugins, writers."""

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

GRAPHS = "graphviz_torch"  # the plugin that the whole graph is written for
# A tag belongs to one plugin; the Graphs tab has the tag itself, our plugin the tag with this.
PREFIX = "autograd/"

# Any: torch's SummaryWriter, or anything with `add_event`; neither has a type that we may import.
Writer = str | Path | Any
Write = Callable[[summary_pb2.Summary, int], None]

_files = count()  # of this process: two in one second have different names


@contextmanager
def writing(logdir_or_writer: Writer) -> Iterator[Write]:
    """A function that writes a summary at a step.

    For a directory the event file is our own, which appears when it is complete. A writer that was
    given appends to its file, in which an event that was cut short is not read; it is flushed, and
    stays open.

    Raises:
        TypeError: if it is neither a path nor a writer.
        OSError: if the directory can't be written.
    """
    if isinstance(logdir_or_writer, (str, os.PathLike)):
        name = _new_file(os.fspath(logdir_or_writer))
        remote = "://" in name  # a bucket's: it shows no file before it is closed
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
    """Where it writes; for a writer that does not say, a text that stands for it."""
    if isinstance(logdir_or_writer, (str, os.PathLike)):
        return os.path.abspath(os.fspath(logdir_or_writer))
    path = getattr(logdir_or_writer, "log_dir", None)
    return os.path.abspath(path) if isinstance(path, str) else repr(logdir_or_writer)


def _new_file(directory: str) -> str:
    """A name that TensorBoard takes for an event file, and that none of its writers would take.

    It reads files in the order of their names: those of one second are numbered, with zeros.
    """
    tf.io.gfile.makedirs(directory)
    place = f"{socket.gethostname()}.{os.getpid()}.{next(_files):06}"
    name = f"events.out.tfevents.{int(time.time()):010}.{place}.graphviz_torch"
    return os.path.join(directory, name)


def _record(file: Any, event: event_pb2.Event) -> None:
    """Append one event: its length and its bytes, each with a checksum behind it."""
    content = event.SerializeToString()
    length = struct.pack("<Q", len(content))
    sums = [struct.pack("<I", checksum(data)) for data in (length, content)]
    file.write(b"".join([length, sums[0], content, sums[1]]))


def _event(summary: summary_pb2.Summary, step: int) -> event_pb2.Event:
    return event_pb2.Event(wall_time=time.time(), step=step, summary=summary)


def blob(tag: str, plugin: str, content: bytes, *, version: bytes = b"1") -> summary_pb2.Summary:
    """A summary that carries bytes for a plugin."""
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
    """A summary with one number for each tag."""
    summary = summary_pb2.Summary()
    for tag, value in values.items():
        summary.value.add(tag=tag, simple_value=value)
    return summary


def buckets(
    tag: str, rows: list[tuple[float, float, float]], *, description: str = ""
) -> summary_pb2.Summary:
    """A histogram of buckets that are given: rows of left edge, right edge and count."""
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
    """A summary for the Images tab."""
    summary = summary_pb2.Summary()
    shown = summary.value.add(tag=tag).image
    shown.width, shown.height = struct.unpack(">II", png[16:24])  # of the header of every PNG
    shown.colorspace = 4
    shown.encoded_image_string = png
    return summary


def charts(category: str, lines: dict[str, list[str]]) -> summary_pb2.Summary:
    """A layout for the Custom Scalars tab: for each title, a chart of all scalars with its tags."""
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


def markdown(tag: str, text: str) -> summary_pb2.Summary:
    """A summary for the Text tab, which shows Markdown."""
    summary = summary_pb2.Summary()
    value = summary.value.add(tag=tag)
    value.metadata.plugin_data.plugin_name = "text"
    value.metadata.data_class = summary_pb2.DATA_CLASS_TENSOR
    value.tensor.dtype = types_pb2.DT_STRING
    value.tensor.tensor_shape.dim.add(size=1)
    value.tensor.string_val.append(text.encode())
    return summary


def pack(graph: Graph) -> bytes:
    """The graph as compressed JSON, the same bytes for the same graph."""
    return gzip.compress(to_json(graph).encode(), compresslevel=4, mtime=0)


def unpack(content: bytes) -> Graph:
    """The graph that `pack` was given. Raises ValueError for anything else."""
    try:
        return packed_value(content, Graph)
    except ValueError as error:
        raise ValueError(f"the graph in the event file is unreadable: {error}") from None
