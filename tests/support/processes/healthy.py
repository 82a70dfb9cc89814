"""Distributed programs without a mistake, similar to those in mistakes.py."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim import SGD
from torch.utils.checkpoint import checkpoint

from tests.findings.corpus.cases import Record
from tests.support.processes.mistakes import average, batch, net, train

HEALTHY: dict[str, Callable[[Record], object]] = {}


def healthy(program: Callable[[Record], object]) -> Callable[[Record], object]:
    """Register a program without findings."""
    HEALTHY[program.__name__] = program
    return program


@healthy
def sampling_past_the_wrapper(record: Record) -> None:
    model = DDP(net())
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        with torch.no_grad():
            reward = model.module(batch())
        (model(batch()) * reward).mean().backward()
        optimizer.step()


@healthy
def what_ddp_does_not_average_is_averaged_by_hand(record: Record) -> None:
    """Average a parameter outside of the model, and a loss for the log, without DDP."""
    model, scale = DDP(net()), nn.Parameter(torch.ones(1))
    optimizer = SGD([*model.parameters(), scale], lr=0.1)
    with record(model):
        loss = (model(batch()) * scale).square().mean()
        loss.backward()
        average([scale])
        dist.all_reduce(loss.detach())
        optimizer.step()


@healthy
def averaged_by_hand_after_no_sync(record: Record) -> None:
    model = DDP(net())
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        with model.no_sync():
            model(batch()).square().mean().backward()
        average(model.parameters())
        optimizer.step()


@healthy
def forward_before_the_recording(record: Record) -> None:
    model = DDP(net())
    optimizer = SGD(model.parameters(), lr=0.1)
    loss = model(batch()).square().mean()
    with record(model):
        with torch.no_grad():
            model.module(batch())
        loss.backward()
        optimizer.step()


@healthy
def micro_batch_past_the_wrapper(record: Record) -> None:
    """The last backward averages all gradients, including those of earlier micro-batches."""
    model = DDP(net())
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        model.module(batch()).square().mean().backward()
        model(batch()).square().mean().backward()
        optimizer.step()


@healthy
def average_by_hand_past_the_wrapper(record: Record) -> None:
    model = DDP(net())
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        model.module(batch()).square().mean().backward()
        average(model.parameters())
        loss = torch.ones(1)
        dist.all_reduce(loss)
        optimizer.step()


@healthy
def average_of_one_buffer(record: Record) -> None:
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    with record(model):
        model(batch()).square().mean().backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        parts = flat.split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient) / dist.get_world_size())
        optimizer.step()


@healthy
def weights_averaged_now_and_then(record: Record) -> None:
    """Local SGD: between two averages, each rank has its own weights."""
    model = net()
    with record(model):
        train(model, steps=2)
        with torch.no_grad():
            for parameter in model.parameters():
                dist.all_reduce(parameter)
                parameter /= dist.get_world_size()


@healthy
def evaluation_of_a_divided_model(record: Record) -> None:
    model = net()
    for block in model[2:]:
        fully_shard(block)
    fully_shard(model)
    with record(model):
        train(model, steps=2)
        with torch.no_grad():
            for _ in range(3):
                model(batch())


class Checkpointed(nn.Module):
    """A model whose first part runs again in backward."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = net(), nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(checkpoint(self.body, x.requires_grad_(), use_reentrant=True))


@healthy
def part_that_runs_again_in_backward(record: Record) -> None:
    model = DDP(Checkpointed())
    with record(model):
        train(model, steps=1)


@healthy
def two_models_with_a_step_each(record: Record) -> None:
    first, second = DDP(net()), DDP(net())
    steps = [SGD(model.parameters(), lr=0.1) for model in (first, second)]
    with record():
        for model, optimizer in zip((first, second), steps, strict=True):
            model(batch()).square().mean().backward()
            optimizer.step()
