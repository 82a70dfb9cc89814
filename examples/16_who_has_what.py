"""Divide a model between two ranks in two ways; print each rank's shards and the collectives.

    torchrun --nproc-per-node=2 16_who_has_what.py

The command `python 16_who_has_what.py` starts torchrun itself.
"""

import os
import subprocess
import sys
from collections import OrderedDict

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from graphviz_torch import record
from graphviz_torch.distributed import collectives

RANKS = 2


def divide_tensors(model):
    mesh = init_device_mesh("cpu", (RANKS,), mesh_dim_names=("tp",))
    parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


def shard_parameters(model):
    mesh = init_device_mesh("cpu", (RANKS,), mesh_dim_names=("dp",))
    for layer in (model.up, model.down):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def step(divide):
    torch.manual_seed(0)
    layers = {"up": nn.Linear(16, 64), "act": nn.ReLU(), "down": nn.Linear(64, 16)}
    model = nn.Sequential(OrderedDict(layers))
    divide(model)
    with record(model) as recording:
        model(torch.randn(30, 16)).square().mean().backward()
    if dist.get_rank() == 0:
        print(divide.__name__)
        for parameter in recording.graph.parameters:
            print(" ", parameter.name, list(parameter.tensor.shape), parameter.placement)
        for each in collectives(recording):
            print(" ", each.phase, each, each.change or f"for {each.module}")
    return [each.kind for each in collectives(recording)]


if "RANK" in os.environ:
    dist.init_process_group("gloo")
    assert step(divide_tensors) == ["all_reduce"]  # adds the two parts of the output
    sent = step(shard_parameters)  # layers are gathered for forward and backward
    assert sent == ["all_gather"] * 4 + ["reduce_scatter"] * 2
    dist.destroy_process_group()
else:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    subprocess.run([*command, f"--nproc-per-node={RANKS}", __file__], check=True)
