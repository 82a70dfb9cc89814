"""Mistakes in distributed programs that people reported, each with its repair."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from tests.findings.corpus.cases import Record
from tests.findings.mistakes.rows import Mistake

Program = Callable[[Record, bool], object]
ROWS: dict[str, Mistake] = {}


def says(rule: str, *words: str, severity: str = "error") -> Callable[[Program], Program]:
    """Register a program, whose arguments are `record` and whether it is repaired.

    The program has one finding of this rule, with these words, at the line that ends with `#
    cause`. The repaired program has no finding of this rule.
    """

    def enter(program: Program) -> Program:
        row: Any = program
        ROWS[program.__name__] = Mistake(row, rule, words, None, severity, None, "")
        return program

    return enter


def net(*between: nn.Module) -> nn.Sequential:
    """Return a model with equal weights on every rank."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), *between, nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 2))


def batch(size: int = 6) -> Tensor:
    """Return a batch, which differs on each rank."""
    torch.manual_seed(1 + dist.get_rank())
    return torch.randn(size, 4)


def train(model: nn.Module, steps: int) -> None:
    """Run some correct steps."""
    optimizer = SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(batch()).square().mean().backward()
        optimizer.step()


def average(parameters: Any) -> None:
    """Average the gradients of parameters over the ranks."""
    for parameter in parameters:
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


@says("mismatched-collectives", "all_reduce of 0.weight", "all_reduce of 1.weight at")
def gradients_averaged_in_the_order_of_a_set(record: Record, repaired: bool) -> None:
    """https://github.com/NVIDIA/Megatron-LM/pull/2218"""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    parameters = [*model.parameters()]
    if dist.get_rank() == 1 and not repaired:
        parameters.reverse()
    with record(model):
        model(batch()).square().mean().backward()
        average(parameters)


@says("mismatched-collectives", "4 B float32 at", "on rank 0, and nothing on rank 1")
def loss_that_one_rank_alone_reduces(record: Record, repaired: bool) -> None:
    """https://github.com/NVIDIA/nccl/issues/257, https://github.com/pytorch/pytorch/issues/64629"""
    model = net()
    with record(model):
        loss = model(batch()).square().mean()
        loss.backward()
        average(model.parameters())
        if dist.get_rank() == 0 or repaired:
            dist.all_reduce(loss.detach())  # cause


class TwoHeads(nn.Module):
    """A model that uses one of its two heads."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head, self.spare = nn.Linear(4, 8), nn.Linear(8, 2), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).relu())


@says("ddp-unused-parameter", "spare.weight and spare.bias")
def head_that_ddp_waits_for(record: Record, repaired: bool) -> None:
    """https://github.com/pytorch/pytorch/issues/112152"""
    model = DDP(TwoHeads(), find_unused_parameters=repaired)
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        model(batch()).square().mean().backward()  # cause
        optimizer.step()


@says("ddp-unused-parameter", "spare.weight and spare.bias")
def head_that_ddp_has_waited_for(record: Record, repaired: bool) -> None:
    """Skip one head as in `head_that_ddp_waits_for`; here the second forward raises."""
    model = DDP(TwoHeads(), find_unused_parameters=repaired)
    with record(model):
        train(model, steps=2)


@says("ddp-bypassed", "did not go through model,")
def forward_past_the_wrapper(record: Record, repaired: bool) -> None:
    """https://github.com/jingyaogong/minimind/pull/854"""
    model = DDP(net())
    policy = model if repaired else model.module
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        policy(batch()).square().mean().backward()  # cause
        optimizer.step()


class Policy(nn.Module):
    """A model with a method that computes its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def loss(self, x: Tensor) -> Tensor:
        return self(x).square().mean()

    def parts(self, x: Tensor) -> Tensor:
        return self.net(x).square().mean()


@says("ddp-bypassed", "did not go through model,")
def method_of_what_the_wrapper_holds(record: Record, repaired: bool) -> None:
    model = DDP(Policy())
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        loss = model(batch()).square().mean() if repaired else None
        loss = loss if repaired else model.module.loss(batch())  # cause
        loss.backward()
        optimizer.step()


@says("ddp-bypassed", "did not go through model,")
def method_that_calls_a_part(record: Record, repaired: bool) -> None:
    model = DDP(Policy())
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        loss = model(batch()).square().mean() if repaired else None
        loss = loss if repaired else model.module.parts(batch())  # cause
        loss.backward()
        optimizer.step()


def weights_that_came_apart(record: Record, repaired: bool) -> None:
    """Weights under DDP that are equal at first, and are then changed on one rank only."""
    model = DDP(net())
    if dist.get_rank() and not repaired:
        with torch.no_grad():
            model.module[0].weight += 1
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        model(batch()).square().mean().backward()  # cause
        optimizer.step()


says("diverged-replicas", "The values of 0.weight differ", "in backward")(weights_that_came_apart)


@says("diverged-replicas", "0.weight, 0.bias, 2.weight and 1 more differ")
def weights_of_another_seed(record: Record, repaired: bool) -> None:
    """https://github.com/pytorch/torchtitan/issues/166"""
    torch.manual_seed(dist.get_rank())
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    if repaired:
        for parameter in model.parameters():
            dist.broadcast(parameter.detach(), src=0)
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        model(batch()).square().mean().backward()
        average(model.parameters())
        optimizer.step()


@says("repeated-batch", "Both ranks", severity="warning")
def no_distributed_sampler(record: Record, repaired: bool) -> None:
    """https://github.com/yaak-ai/rbyte/pull/106"""
    model = DDP(net())
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(24, 4))
    sampler = DistributedSampler(data) if repaired else None
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for (x,) in DataLoader(data, batch_size=6, shuffle=sampler is None, sampler=sampler):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()


@says("redundant-all-reduce", "4 times", severity="info")
def average_in_every_micro_batch(record: Record, repaired: bool) -> None:
    """https://github.com/pytorch/pytorch/issues/43201"""
    model = DDP(net())
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for i in range(4):
            with model.no_sync() if repaired and i < 3 else nullcontext():
                (model(batch()).square().mean() / 4).backward()  # cause
        optimizer.step()


@says("redundant-all-reduce", "2 times", severity="info")
def sync_left_out_at_the_backward_alone(record: Record, repaired: bool) -> None:
    """https://github.com/baidu-baige/LoongForge/pull/163"""
    model = DDP(net())
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        for i in range(2):
            quiet = model.no_sync() if i < 1 else nullcontext()
            if repaired:
                with quiet:
                    (model(batch()).square().mean() / 2).backward()
            else:
                loss = model(batch()).square().mean() / 2
                with quiet:
                    loss.backward()  # cause
        optimizer.step()


@says("redundant-all-reduce", "0.weight, 0.bias, 2.weight and 3 more, which", severity="warning")
def averaged_by_ddp_and_by_hand(record: Record, repaired: bool) -> None:
    """https://github.com/kubeflow/pytorch-operator/issues/122, pytorch/tutorials issue 2305"""
    model = DDP(net())
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        model(batch()).square().mean().backward()
        for parameter in model.parameters() if not repaired else ():
            dist.all_reduce(parameter.grad)  # cause
            parameter.grad /= dist.get_world_size()
        optimizer.step()


@says("ineffective-clipping", severity="warning")
def clipped_before_the_average(record: Record, repaired: bool) -> None:
    """https://github.com/facebookresearch/fairscale/pull/167"""
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        model(batch()).square().mean().backward()
        if repaired:
            average(model.parameters())
            clip_grad_norm_(model.parameters(), 0.01)
        else:
            clip_grad_norm_(model.parameters(), 0.01)  # cause
            average(model.parameters())
        optimizer.step()


class Recurrent(nn.Module):
    """A cell that is called three times, and a head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cell, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = self.cell(x).relu()
        return self.head(x)


@says("fsdp-regather", "3 times", severity="info")
def cell_that_is_gathered_at_each_call(record: Record, repaired: bool) -> None:
    """https://github.com/pytorch/pytorch/issues/149029"""
    model = Recurrent()
    fully_shard(model.cell, reshard_after_forward=False if repaired else None)
    fully_shard(model)
    with record(model):
        model(batch()).square().mean().backward()


@says("diverged-replicas", "0.weight and 0.bias got")
def root_that_is_not_sharded(record: Record, repaired: bool) -> None:
    """https://github.com/Tencent-Hunyuan/UniRL/pull/7"""
    model = net()
    for block in model[2:]:
        fully_shard(block)
    if repaired:
        fully_shard(model)
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        model(batch()).square().mean().backward()
        optimizer.step()


@says("fsdp-single-unit", "72.0 MiB", severity="info")
def whole_model_in_one_unit(record: Record, repaired: bool) -> None:
    """https://discuss.pytorch.org: fully_shard of only the root gathers the whole model at once."""
    with torch.device("cpu"):
        model = nn.Sequential(*(nn.Linear(1536, 1536, bias=False) for _ in range(8)))
    for block in model if repaired else ():
        fully_shard(block)
    fully_shard(model)
    with record(model):
        model(torch.randn(2, 1536)).square().mean().backward()


@says("redistributed-back", "Shard(0)", severity="info")
def activations_gathered_and_sharded_again(record: Record, repaired: bool) -> None:
    """https://github.com/pytorch/pytorch/issues/120542"""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    weight = distribute_tensor(torch.ones(4, 4), mesh, [Replicate()]).requires_grad_()
    x = distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)])
    with record():
        h = x @ weight
        if not repaired:
            h = h.redistribute(mesh, [Replicate()])  # gathers all shards
            h = h.redistribute(mesh, [Shard(0)])  # cause
        h.relu().sum().full_tensor().backward()


@says("unsynced-batch-norm", "2 rows", severity="info")
def batch_norm_of_two_rows(record: Record, repaired: bool) -> None:
    """https://github.com/pytorch/pytorch/issues/2584"""
    model = DDP(net(nn.GroupNorm(2, 8) if repaired else nn.BatchNorm1d(8)))
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        model(batch(2)).square().mean().backward()
        optimizer.step()
