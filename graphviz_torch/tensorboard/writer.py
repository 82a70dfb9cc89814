"""Write a graph for TensorBoard's Graphs tab, with scopes, devices, shapes, times and memory.

A node's compute time is the measured duration of its backward. A node's memory is the size of the
tensors that it saves for backward; in the scope "backward", it is the size of the gradients that
reached the node. Nothing is estimated.

TensorBoard is imported when a function is called, not when this module is imported.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..graph import Graph, GraphLike, Names, graph_of
from ..graph.files.replacement import replacement
from ..graph.gc import with_gc_disabled

MIN_VERSION = (2, 20)
_MAX_BYTES = 2**31 - 1  # maximum size of a protobuf message


def to_tensorboard(
    graph: GraphLike,
    logdir_or_writer: Any,
    *,
    tag: str = "graph",
    step: int = 0,
    backward: bool = False,
) -> None:
    """Write a graph for TensorBoard's Graphs tab.

    The tab shows one graph for each tag of a run: the graph of the last step. Each rank needs its
    own directory ("runs/rank0", "runs/rank1").

    Args:
        graph: a graph, a recording or a tensor.
        logdir_or_writer: a directory, in which a new event file is written, or a `SummaryWriter`,
            which is flushed and stays open. Writing a large graph to a directory takes half the
            time, because a `SummaryWriter` computes checksums in Python.
        tag: name of the graph in the list of the Graphs tab.
        step: the training step.
        backward: True to add the scope "backward", with a node for each gradient computation.

    Raises:
        ImportError: if TensorBoard is missing or older than 2.20.
        TypeError: if `graph` is not a graph, a recording or a tensor, or `logdir_or_writer` is
            neither a path nor a writer.
        ValueError: if the graph has no nodes, or is too large for a protobuf message.

    >>> import torch
    >>> x = torch.ones(2, requires_grad=True)
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = to_tensorboard((x * 2).sum(), folder)
    """
    graph = graph_of(graph)
    require()
    from .events import GRAPHS, PREFIX, blob, pack, writing
    from .graph_def import graph_def, run_metadata

    # This function may create a million objects. Garbage collections would take longer than that.
    @with_gc_disabled
    def contents() -> tuple[bytes, bytes, bool]:
        built, paths = graph_def(graph, backward=backward)
        metadata = run_metadata(graph, built, paths, backward=backward)
        return _serialize(metadata), pack(graph), bool(metadata.step_stats.dev_stats)

    data, packed, measured = contents()
    # The name of the plugin decides whether the Graphs tab offers to color by time and memory.
    plugin = "graph_run_metadata" if measured else "graph_run_metadata_graph"
    with writing(logdir_or_writer) as write:
        write(blob(tag, plugin, data), step)
        write(blob(PREFIX + tag, GRAPHS, packed), step)


def to_pbtxt(graph: GraphLike, path: str | Path, *, backward: bool = False) -> Path:
    """Write a graph as text, for the button "Upload file" of TensorBoard's Graphs tab.

    Args:
        graph: a graph, a recording or a tensor.
        path: the file to write.
        backward: as for `to_tensorboard`.

    Returns:
        The path.

    Raises:
        ImportError: if TensorBoard is missing or older than 2.20.
        ValueError: if the graph has no nodes.

    >>> import torch
    >>> x = torch.ones(2, requires_grad=True)
    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = to_pbtxt((x * 2).sum(), Path(folder) / "graph.pbtxt")
    ...     "node {" in Path(folder, "graph.pbtxt").read_text()
    True
    """
    require()
    from .graph_def import graph_def

    built, _ = graph_def(graph_of(graph), backward=backward)
    path = Path(path)
    with replacement(path) as file:
        file.write(str(built).encode())
    return path


def _serialize(message: Any) -> bytes:
    """Return the bytes of a protobuf message; raise ValueError if it exceeds the size limit."""
    from google.protobuf.message import EncodeError  # type: ignore[import-untyped]

    data: bytes | None = None
    with suppress(EncodeError):
        data = message.SerializeToString()
    if data is None or len(data) > _MAX_BYTES:
        raise ValueError(
            f"TensorBoard would not show this graph: it takes more than {_MAX_BYTES:,} bytes, the "
            "limit of a protobuf message. Write only a part of the graph."
        )
    return data


def require() -> None:
    """Raise ImportError, with the command to run, if TensorBoard 2.20 or newer is not installed."""
    install = 'pip install -U "graphviz-torch[tensorboard]"'
    try:
        from tensorboard.version import VERSION  # type: ignore[import-untyped]
    except ImportError as error:
        raise ImportError(f"TensorBoard is not installed. Install it with: {install}") from error
    if tuple(map(int, re.findall(r"\d+", VERSION)[:2])) < MIN_VERSION:
        oldest = ".".join(map(str, MIN_VERSION))
        raise ImportError(
            f"TensorBoard {VERSION} is too old: version {oldest} is needed, "
            f"or 2.21 if setuptools is 82 or newer. Install it with: {install}"
        )


def add_autograd_graph(
    output: GraphLike,
    writer: Any,
    *,
    tag: str = "graph",
    step: int = 0,
    names: Names = None,
    backward: bool = False,
) -> Graph:
    """Write the graph of `output` for TensorBoard's Graphs tab.

    Unlike `SummaryWriter.add_graph`, this function runs nothing and needs neither a module nor an
    example input: it shows the graph that autograd recorded in your forward.

    Args:
        output: the tensor on which you call `backward()`, or nested containers of such tensors; or
            a recording or a graph.
        writer: a `SummaryWriter`, or a directory.
        tag: name of the graph in the list of the Graphs tab.
        step: the training step. For each tag, the Graphs tab shows the last step.
        names: names of tensors, as for `trace`.
        backward: True to add the scope "backward", as for `to_tensorboard`.

    Returns:
        The graph that was written.

    Raises:
        ImportError: if TensorBoard is missing or older than 2.20.
        TypeError: if `output` or `writer` has the wrong type.
        ValueError: if the graph has no nodes, or cannot be shown.

    >>> import torch
    >>> from tempfile import TemporaryDirectory
    >>> x = torch.ones(3, requires_grad=True)
    >>> with TemporaryDirectory() as runs:
    ...     written = add_autograd_graph((x * 2).sum(), runs)
    >>> [node.title for node in written.nodes]
    ['AccumulateGrad', 'mul', 'sum']
    """
    require()
    graph = graph_of(output, names=names)
    to_tensorboard(graph, writer, tag=tag, step=step, backward=backward)
    return graph
