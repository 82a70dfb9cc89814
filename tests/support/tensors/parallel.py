"""Parallel models in a single process, with a process group whose collectives do nothing."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from .steps import Step, X, leaf_steps, mlp, steps_of


def mesh() -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if not dist.is_initialized():
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    return init_device_mesh("cpu", (2,))


def leave() -> None:
    """Destroy the process group, so that later tests in this process have none."""
    if dist.is_initialized():
        dist.destroy_process_group()


def tensor_parallel() -> tuple[nn.Module, Step]:
    from torch.distributed.tensor import parallel

    plan = {"0": parallel.ColwiseParallel(), "2": parallel.RowwiseParallel()}
    model = parallel.parallelize_module(mlp(), mesh(), plan)
    return model, steps_of(model)


def sequence_parallel() -> tuple[nn.Module, Step]:
    from torch.distributed.tensor import Replicate, Shard, parallel

    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    plan = {
        "0": parallel.SequenceParallel(use_local_output=True),
        "1": parallel.ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    return parallel.parallelize_module(model, mesh(), plan), steps_of(model, X.reshape(2, 2, 8))


def sharded(model: nn.Module, **options: Any) -> tuple[nn.Module, Step]:
    from torch.distributed.fsdp import fully_shard

    for part in (*model.children(), model):
        if list(part.parameters()):
            fully_shard(part, mesh=mesh(), **options)
    return model, steps_of(model)


def mixed_precision() -> tuple[nn.Module, Step]:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return sharded(mlp(), mp_policy=policy)


def tensor_parallel_and_sharded() -> tuple[nn.Module, Step]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import parallel

    mesh()
    grid = init_device_mesh("cpu", (1, 2), mesh_dim_names=("data", "tensor"))
    plan = {"0": parallel.ColwiseParallel(), "2": parallel.RowwiseParallel()}
    model = parallel.parallelize_module(mlp(), grid["tensor"], plan)
    fully_shard(model, mesh=grid["data"])
    return model, steps_of(model)


def dtensor_leaf() -> tuple[None, Step]:
    from torch.distributed.tensor import Shard, distribute_tensor

    leaf = distribute_tensor(torch.linspace(1, 4, 4), mesh(), [Shard(0)]).detach()
    return leaf_steps(leaf, loss=lambda x: (x * x).sum().to_local())


def awaited() -> tuple[None, Step]:
    from torch.distributed import _functional_collectives as collectives

    group = mesh().get_group()
    return leaf_steps(
        torch.linspace(1, 4, 4),
        loss=lambda x: (
            collectives.all_reduce(x.detach(), "sum", group) * x
            + collectives.all_gather_tensor_autograd(x, 0, group)[:4]
        ).sum(),
    )
