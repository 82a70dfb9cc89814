"""Compare the gradients of a sharded model, put together from all ranks, with PyTorch's.

    torchrun --nproc-per-node 4 -m tests.support.processes.whole_gradients FSDP2 HSDP

Rank 0 prints JSON: for each kind of sharding and each parameter, the norm and the largest element
of the gradient, and the norm of the values before the step. There are three results: the package's,
that of PyTorch's `full_tensor()`, and rank 0's own.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from graphviz_torch import record
from graphviz_torch.distributed import gather_graphs
from graphviz_torch.integrations.ranks import merge_graphs
from tests.support.processes.parallelism import WAYS


def full(tensor: Any) -> Tensor:
    whole: Tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return whole.detach().double()


def compare(way: str) -> dict[str, Any]:
    model, step = WAYS[way](dist.get_world_size())
    before = {name: full(parameter).norm().item() for name, parameter in model.named_parameters()}
    with record(model) as recording:
        step()
    graphs = gather_graphs(recording.graph)
    theirs = {}
    for name, parameter in model.named_parameters():
        grad = full(parameter.grad)
        theirs[name] = grad.norm().item(), grad.abs().max().item(), grad.mean().item()
    if graphs is None:
        return {}
    whole = merge_graphs(dict(enumerate(graphs)))
    assert len(whole.nodes) == len(graphs[0].nodes), "the ranks are alike"
    rows = {}
    for mine, own in zip(whole.parameters, graphs[0].parameters, strict=True):
        if mine.grad is not None and own.grad is not None:
            rows[mine.name] = {
                "ours": (mine.grad.norm, mine.grad.max_abs, mine.grad.mean),
                "theirs": theirs[mine.name],
                "rank 0": (own.grad.norm, own.grad.max_abs, own.grad.mean),
                "extents": (own.grad.extent, mine.grad.extent, mine.extent),
                "parts": own.shard_count,
                "values": (mine.norm, before[mine.name]),
            }
    return rows


if __name__ == "__main__":
    dist.init_process_group("gloo")
    results = {way: compare(way) for way in sys.argv[1:]}
    if dist.get_rank() == 0:
        print("RESULT", json.dumps(results), flush=True)
    dist.barrier()
    dist.destroy_process_group()
