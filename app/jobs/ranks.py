"""Jobs of the page about many processes: samples of two ranks, and what differs across ranks."""

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
from .backward import recorded_here
from .values import Opened, Ranks

_SIZE = 2  # ranks


class Branch(nn.Module):
    """A model in which a rank can leave a layer out."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.extra, self.last = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x: Tensor, skip: bool) -> Tensor:
        hidden = self.first(x).relu()
        result: Tensor = self.last(hidden if skip else self.extra(hidden)).sum()
        return result


def sample() -> list[Opened]:
    """What two ranks of the same model record when rank 1 leaves a layer out.

    Both are recorded here, one after the other, without communication.
    """
    ranks = []
    for skip in (False, True):
        torch.manual_seed(0)
        model = Branch()
        with record(model) as recording:
            torch.autograd.backward(model(torch.randn(3, 4), skip))
        ranks.append(recorded_here(recording.graph))
    return ranks


def recorded(name: str) -> list[Opened]:
    """What two ranks record of one step of a model in `gallery.MESHES`.

    They are two processes of this machine, and send to each other over gloo.
    """
    with tempfile.TemporaryDirectory() as folder:
        start_processes(  # type: ignore[no-untyped-call]
            _rank, (name, folder), nprocs=_SIZE, start_method="fork"
        )
        graphs = [load(Path(folder, f"{i}.json")) for i in range(_SIZE)]
        return [recorded_here(graph) for graph in graphs if isinstance(graph, Graph)]


def _rank(rank: int, name: str, folder: str) -> None:
    store = dist.FileStore(f"{folder}/store", _SIZE)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=_SIZE)
    mesh = init_device_mesh("cpu", (_SIZE,), mesh_dim_names=(gallery.MESHES[name],))
    torch.manual_seed(0)
    model, step = gallery.module(name).build(mesh)
    with record(model) as recording:
        step()
    recording.graph.save(Path(folder, f"{rank}.json"))
    dist.destroy_process_group()


def ranks_of(graphs: tuple[Graph, ...]) -> Ranks:
    """What is wrong across ranks, and what each said to the others, in the order of its graph."""
    talks = [collectives(graph) for graph in graphs]
    rows = []
    for number in range(min(200, max(map(len, talks), default=0))):
        row = [("step", f"{number}")]
        for rank, talk in enumerate(talks):
            said = f"{talk[number]} · {talk[number].where}" if number < len(talk) else ""
            row.append((f"rank {rank}", said))
        rows.append(tuple(row))
    chart = ""
    with suppress(ValueError):  # they were recorded without times
        chart = rank_chart(graphs)
    return Ranks(tuple(find(graphs)), tuple(rows), chart, _apart(graphs))


def _apart(graphs: Sequence[Graph]) -> tuple[int | None, ...]:
    """By rank, the first node where its graph is not as rank 0's; of rank 0, as another's."""
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
