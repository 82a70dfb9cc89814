"""Jobs of the Processes page: record two ranks, and compare the graphs of ranks."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.multiprocessing import start_processes  # type: ignore[attr-defined]

from graphviz_torch import Graph, diff, load, record
from graphviz_torch.distributed import collectives, rank_chart
from graphviz_torch.findings import find

from ..models import gallery
from .backward import open_own_recording
from .values import OpenedGraph, RankComparison

_WORLD_SIZE = 2


class Branch(nn.Module):
    """A model in which a rank can skip a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.extra, self.last = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x: Tensor, skip: bool) -> Tensor:
        hidden = self.first(x).relu()
        result: Tensor = self.last(hidden if skip else self.extra(hidden)).sum()
        return result


def sample() -> list[OpenedGraph]:
    """Return recordings of the same model on two ranks; rank 1 skips a layer.

    Both ranks are recorded in this process, one after the other, without communication.
    """
    ranks = []
    for skip in (False, True):
        torch.manual_seed(0)
        model = Branch()
        with record(model) as recording:
            torch.autograd.backward(model(torch.randn(3, 4), skip))
        ranks.append(open_own_recording(recording.graph))
    return ranks


def record_mesh(name: str) -> list[OpenedGraph]:
    """Record one step of a model in `gallery.MESHES` on two ranks.

    The ranks are two processes of this machine that communicate over gloo.
    """
    with tempfile.TemporaryDirectory() as folder:
        start_processes(  # type: ignore[no-untyped-call]
            _record_rank, (name, folder), nprocs=_WORLD_SIZE, start_method="fork"
        )
        graphs = [load(Path(folder, f"{i}.json")) for i in range(_WORLD_SIZE)]
        return [open_own_recording(graph) for graph in graphs if isinstance(graph, Graph)]


def _record_rank(rank: int, name: str, folder: str) -> None:
    store = dist.FileStore(f"{folder}/store", _WORLD_SIZE)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=_WORLD_SIZE)
    mesh = init_device_mesh("cpu", (_WORLD_SIZE,), mesh_dim_names=(gallery.MESHES[name],))
    torch.manual_seed(0)
    model, step = gallery.module(name).build(mesh)
    with record(model) as recording:
        step()
    recording.graph.save(Path(folder, f"{rank}.json"))
    dist.destroy_process_group()


def compare_ranks(graphs: tuple[Graph, ...]) -> RankComparison:
    """Return findings that compare ranks, and each rank's collectives in the order of its calls."""
    talks = [collectives(graph) for graph in graphs]
    rows = []
    for number in range(min(200, max(map(len, talks), default=0))):
        row = [("step", f"{number}")]
        for rank, talk in enumerate(talks):
            text = f"{talk[number]} · {talk[number].where}" if number < len(talk) else ""
            row.append((f"rank {rank}", text))
        rows.append(tuple(row))
    chart = ""
    with suppress(ValueError):  # raised if collectives have no times
        chart = rank_chart(graphs).source
    return RankComparison(tuple(find(graphs)), tuple(rows), chart, _first_differences(graphs))


def _first_differences(graphs: Sequence[Graph]) -> tuple[int | None, ...]:
    """Return, for each rank, the first node that rank 0 does not have; None if there is none.

    For rank 0, it is the first node that another rank does not have.
    """
    first, *others = graphs
    found: list[int | None] = [None]
    for graph in others:
        difference = diff(first, graph)
        new = difference.added or [edge.target for edge in difference.added_edges]
        if found[0] is None and difference.removed:
            found[0] = _first_operation(first, difference.removed)
        found.append(_first_operation(graph, new) if new else None)
    return tuple(found)


def _first_operation(graph: Graph, nodes: Sequence[int]) -> int:
    return min(nodes, key=lambda node: (bool(graph.nodes[node].leaf), node))
