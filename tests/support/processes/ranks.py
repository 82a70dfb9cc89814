"""Programs for the ranks of tests/tracing/test_distributed.py: `torchrun ranks.py SCENE`."""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from graphviz_torch import diff, find, record, trace
from graphviz_torch.distributed import gather_graphs, local_shapes

warnings.filterwarnings("ignore")
RESULT: dict[str, object] = {}


class Branch(nn.Module):
    """A model in which a rank can skip a layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.extra, self.last = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor, skip: bool = False) -> torch.Tensor:
        x = self.first(x).relu()
        return self.last(x if skip else self.extra(x)).sum()


def work(rank: int) -> None:
    """Gather graphs twice; with a skipped parameter, a subgroup, DTensor and FSDP2."""
    x = torch.ones(2, rank + 1, requires_grad=True)
    for _ in range(2):
        graphs = gather_graphs(trace((x * 2).sum(), names={"x": x}))
        if rank == 0:
            assert graphs is not None
            RESULT["shapes"] = [graph.nodes[0].outputs[0].shape for graph in graphs]
        else:
            assert graphs is None

    model = DistributedDataParallel(Branch())
    with record(model) as recording, model.no_sync():
        model(torch.randn(3, 4), skip=rank == 2).backward()
    graphs = gather_graphs(recording.graph)
    if graphs:
        RESULT["findings"] = [f.message for f in find(graphs)]
        changes = [diff(graphs[0], graph) for graph in graphs[1:]]
        RESULT["removed"] = [len(change.removed) for change in changes]
    model.zero_grad()
    torch.manual_seed(rank)  # another batch on each rank
    with record(model) as recording:  # communication, because all ranks do the same
        model(torch.randn(3, 4)).backward()
    graphs = gather_graphs(recording.graph)
    if graphs:
        RESULT["ddp_leaves"] = [[n.label for n in g.nodes if n.leaf == "parameter"] for g in graphs]
        RESULT["ddp_findings"] = [f.message for f in find(graphs)]

    pair = dist.new_group([1, 3])
    if rank in (1, 3):
        inside = gather_graphs(trace((x * 2).sum(), names={"x": x}), group=pair)
        if rank == 1:
            assert inside is not None
            assert [g.nodes[0].outputs[0].shape for g in inside] == [(2, 2), (2, 4)]
    sharded(rank)


def sharded(rank: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (4,))
    weight = distribute_tensor(torch.ones(8, 4), mesh, [Shard(0)]).requires_grad_()
    loss = (weight * 2).redistribute(mesh, [Replicate()]).to_local().sum()
    graph = trace(loss, names={"weight": weight})
    graph = graph.annotate(note=local_shapes(loss))
    loss.backward()
    if rank == 0:
        leaf = graph.nodes[0]
        RESULT["dtensor_global"] = leaf.outputs[0].shape
        RESULT["dtensor_note"] = leaf.note
    model = Branch()
    fully_shard(model.extra, mesh=mesh)  # its parameters are gathered while it runs
    fully_shard(model, mesh=mesh)
    with record(model) as recording:
        model(torch.randn(3, 4)).backward()
    graphs = gather_graphs(recording.graph)
    if graphs:
        RESULT["fsdp_same"] = [diff(graphs[0], g).removed == () for g in graphs]
        RESULT["fsdp_leaves"] = {
            node.label: node.outputs[0].shape for node in graphs[0].nodes if node.leaf
        }
        RESULT["fsdp_parameters"] = [parameter.name for parameter in graphs[0].parameters]
        RESULT["fsdp_findings"] = [finding.message for finding in find(recording)]
        traced = trace(model(torch.randn(3, 4)))
        RESULT["fsdp_traced"] = [node.label for node in traced.nodes if node.leaf]
    else:
        model(torch.randn(3, 4))


def silent(rank: int) -> None:
    """Rank 1 never calls gather_graphs and rank 2 dies: rank 0 names both, and nothing hangs."""
    graph = trace(torch.ones(1, requires_grad=True) * 2, names={})
    store = dist.distributed_c10d._get_default_store()
    ready = store.add("ready", 1)
    while ready < 4:  # a rank that exits while others connect ends them too
        time.sleep(0.01)
        ready = store.add("ready", 0)
    if rank == 2:
        os._exit(0)
    if rank != 1:
        started = time.monotonic()
        try:
            gather_graphs(graph, timeout=2)
        except TimeoutError as error:
            RESULT["message"] = str(error)
            RESULT["seconds"] = time.monotonic() - started


SCENES: dict[str, Callable[[int], None]] = {"work": work, "silent": silent}

if __name__ == "__main__":
    dist.init_process_group("gloo")
    number = dist.get_rank()
    SCENES[sys.argv[1]](number)
    if number == 0:
        print("RESULT", json.dumps(RESULT), flush=True)
    dist.destroy_process_group()
