"""Gather one graph per rank through the process group that the program already has.

Graphs are sent as compressed JSON through the store of the process group, that is, the key-value
server that the ranks used to find each other. This works with gloo and NCCL, and nothing is
unpickled. Only the gathering rank waits for the others, and no longer than its timeout.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from ..graph import Graph, GraphLike, TensorMeta, graph_of
from ..graph.files.file import packed_value
from ..graph.json import to_json
from ..internals.functions import TensorBase
from ..internals.sharding import group_store
from ..internals.tensors.metadata import tensor_meta
from ..internals.tensors.pytree import flatten
from .tracer import iter_grad_fns

_POLL_SECONDS = 0.05  # seconds between two checks for new graphs
# Name of a process group -> number of calls of `gather_graphs` so far. The keys in the store
# contain this number, so that each call uses keys of its own.
_GATHER_COUNTS: dict[str, int] = {}


def gather_graphs(
    graph: GraphLike, *, timeout: float = 60.0, group: Any = None
) -> list[Graph] | None:
    """Return the graphs of all ranks, in order of ranks, on rank 0 of the group.

    Other ranks return None. Every rank of the group has to call this function the same number of
    times. A program without a process group counts as one rank.

    Args:
        graph: this rank's graph.
        timeout: number of seconds for which rank 0 waits for the other ranks, which do not wait.
        group: the process group; by default the group of all ranks.

    Raises:
        TimeoutError: on rank 0, if a rank sent no graph in time, because it died or did not call
            `gather_graphs`. The message names these ranks.
        ValueError: on rank 0, if the graph of a rank cannot be read, for example because the rank
            has a different version of this package. Also on a rank that is not in the group.

    >>> import torch
    >>> from graphviz_torch import trace
    >>> graphs = gather_graphs(trace(torch.ones(3, requires_grad=True).sum()))
    >>> graphs and len(graphs)
    1
    """
    graph = graph_of(graph)
    if not (dist.is_available() and dist.is_initialized()):
        return [graph]
    rank, ranks = dist.get_rank(group), dist.get_process_group_ranks(group)
    if rank < 0:
        raise ValueError(
            f"gather_graphs: rank {dist.get_rank()} is not in the group of ranks {ranks}."
        )
    process_group: Any = dist.group.WORLD if group is None else group
    store = group_store(process_group)
    call = _GATHER_COUNTS[process_group.group_name] = (
        _GATHER_COUNTS.get(process_group.group_name, 0) + 1
    )
    if rank:
        store.set(_key(call, rank), zlib.compress(to_json(graph).encode(), 1))
        return None
    arrived = _collect(store, call, ranks, timeout)
    return [graph, *(_read(arrived[r], ranks[r]) for r in range(1, len(ranks)))]


def local_shapes(outputs: Any) -> dict[int, str]:
    """Return the placements and the local shape of each DTensor in a graph, by node id.

    Add the result to the nodes' notes with `graph.annotate(note=local_shapes(loss))`. Only leaves
    and outputs are included, because intermediate tensors are not available.

    Args:
        outputs: the argument of `trace`.

    >>> import torch
    >>> from graphviz_torch import trace
    >>> loss = torch.ones(3, requires_grad=True).sum()
    >>> local_shapes(loss)  # no DTensor here
    {}
    >>> graph = trace(loss).annotate(note=local_shapes(loss))
    """
    from torch.distributed.tensor import DTensor

    fns = iter_grad_fns(outputs)
    ids = {fn: i for i, fn in enumerate(fns)}
    known = [(i, fn.variable) for i, fn in enumerate(fns) if hasattr(fn, "variable")]
    known += [(ids[t.grad_fn], t) for _, t in flatten(outputs) if t.grad_fn in ids]
    return {
        node: f"{', '.join(map(str, tensor.placements))}, local {_local_meta(tensor)}"
        for node, tensor in known
        if isinstance(tensor, DTensor)
    }


def _local_meta(tensor: Any) -> TensorMeta:
    return tensor_meta(TensorBase.detach(tensor.to_local()))


def _key(call: int, rank: int) -> str:
    return f"graphviz_torch/gather/{call}/{rank}"


def _collect(store: Any, call: int, ranks: Sequence[int], timeout: float) -> dict[int, bytes]:
    """Return the bytes that each rank of the group except rank 0 sent.

    Args:
        store: the store of the process group.
        call: number of earlier calls of `gather_graphs` in the group.
        ranks: global ranks of the group.
        timeout: seconds to wait.

    Raises:
        TimeoutError: if any rank sent nothing within `timeout` seconds.
    """
    missing = list(range(1, len(ranks)))
    arrived: dict[int, bytes] = {}
    end = time.monotonic() + timeout
    while missing:
        for rank in list(missing):
            key = _key(call, rank)
            if store.check([key]):
                arrived[rank] = store.get(key)
                store.delete_key(key)
                missing.remove(rank)
        if missing and time.monotonic() > end:
            names = ", ".join(str(ranks[rank]) for rank in missing)
            raise TimeoutError(
                f"gather_graphs: no graph from rank{'s' if len(missing) > 1 else ''} {names} of "
                f"{len(ranks)} within {timeout:g} s. Did it die, or not call gather_graphs?"
            )
        if missing:
            time.sleep(_POLL_SECONDS)
    return arrived


def _read(content: bytes, rank: int) -> Graph:
    try:
        return packed_value(content, Graph)
    except ValueError as error:
        raise ValueError(
            f"gather_graphs: the graph of rank {rank} can't be read: {error}"
        ) from error
