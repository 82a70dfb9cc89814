"""Test that ranks with different collectives are reported, with both lines."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from graphviz_torch.rehearsal import (
    CollectiveMismatch,
    compare_order,
    rehearse,
    representative_ranks,
)
from tests.support.processes import cells

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch without distributed")
HEALTHY = "DDP, fp32, accumulation, SGD", "TP + FSDP2, bf16, plain, AdamW"


def disagreements(program: Callable[[], object], ranks: int = 4) -> list[CollectiveMismatch]:
    every = list(range(ranks))
    found = rehearse(program, ranks=ranks, rank=every)
    return compare_order({rank: found[rank].order for rank in every})


def line(program: Callable[[], object], after: int) -> str:
    return f"test_order.py:{program.__code__.co_firstlineno + after}"


@pytest.mark.parametrize("cell", HEALTHY)
def test_ranks_of_a_healthy_training_agree(cell: str) -> None:
    assert disagreements(partial(cells.train, cell, "cuda")) == []


def pipeline() -> None:
    dist.init_process_group("nccl")
    rank, stages = dist.get_rank(), dist.get_world_size()
    sample, whole = torch.ones(1, 16, requires_grad=True), torch.ones(8, 16)
    stage = PipelineStage(
        nn.Linear(16, 16), rank, stages, torch.device("cuda"), sample, output_args=sample
    )
    schedule = Schedule1F1B(stage, 8, loss_fn=nn.functional.mse_loss)
    for _ in range(2):
        target = {"target": whole} if rank == stages - 1 else {}
        schedule.step(*((whole,) if rank == 0 else ()), **target)


def test_messages_of_a_pipeline_have_their_other_ends() -> None:
    assert disagreements(pipeline) == []


def test_what_pytorch_says_of_an_error_is_as_before() -> None:
    before = sys.excepthook
    rehearse(pipeline, ranks=4)
    assert sys.excepthook is before


def one_rank_more() -> None:
    dist.init_process_group("nccl")
    loss = torch.ones(4)
    dist.all_reduce(loss)
    if dist.get_rank() == 2:
        dist.barrier()
    dist.all_reduce(loss[:2])


def another_order() -> None:
    dist.init_process_group("nccl")
    names = ["a", "b"] if dist.get_rank() < 3 else ["b", "a"]
    values = {"a": torch.ones(4), "b": torch.ones(5)}
    for name in names:
        dist.all_reduce(values[name])


def another_dtype() -> None:
    dist.init_process_group("nccl")
    dist.all_reduce(torch.ones(4, dtype=torch.float64 if dist.get_rank() == 1 else torch.float32))


def of_a_smaller_group() -> None:
    dist.init_process_group("nccl")
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine = halves[dist.get_rank() // 2]
    dist.all_reduce(torch.ones(4), group=mine)
    if dist.get_rank() != 3:
        dist.all_gather([torch.ones(2), torch.ones(2)], torch.ones(2), group=mine)


def a_message_that_nobody_takes() -> None:
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    if rank:
        dist.recv(torch.ones(4), rank - 1)
    if rank < 3:
        dist.send(torch.ones(4 if rank else 8), rank + 1)


def two_groups_in_another_order() -> None:
    dist.init_process_group("nccl")
    pair = dist.new_group([0, 1])
    if dist.get_rank() == 1:
        dist.all_reduce(torch.ones(4))
        dist.all_reduce(torch.ones(4), group=pair)
    elif dist.get_rank() == 0:
        dist.all_reduce(torch.ones(4), group=pair)
        dist.all_reduce(torch.ones(4))
    else:
        dist.all_reduce(torch.ones(4))


def an_unused_layer() -> None:
    dist.init_process_group("nccl")
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters())
    for step in range(2):
        loss = model(torch.ones(2, 4)).sum()
        if not step or dist.get_rank() < 2:
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()


MISTAKES: dict[Callable[[], None], tuple[tuple[int, ...], int, dict[int, int | None]]] = {
    one_rank_more: ((0, 1, 2, 3), 2, {0: 6, 2: 5}),
    another_order: ((0, 1, 2, 3), 1, {0: 5, 3: 5}),
    another_dtype: ((0, 1, 2, 3), 1, {0: 2, 1: 2}),
    of_a_smaller_group: ((2, 3), 2, {2: 6, 3: None}),
    two_groups_in_another_order: ((0, 1), 1, {0: 7, 1: 4}),
    a_message_that_nobody_takes: ((0, 1), 1, {0: 6, 1: 4}),
}


@pytest.mark.parametrize("program", MISTAKES)
def test_the_first_that_differs_is_told_with_both_lines(program: Callable[[], None]) -> None:
    ranks, number, lines = MISTAKES[program]
    [found] = disagreements(program)
    assert (found.ranks, found.number) == (ranks, number)
    told = {rank: None if each is None else each.where for rank, each in found.calls.items()}
    assert told == {rank: None if n is None else line(program, n) for rank, n in lines.items()}
    assert all(where in str(found) for where in told.values() if where)


def test_which_group_each_rank_asks_first_is_told() -> None:
    [found] = disagreements(two_groups_in_another_order)
    assert str(found) == (
        "ranks 0 and 1 call collectives of several groups in different orders, first their 1st: "
        f"all_reduce among ranks 0 and 1 at {line(two_groups_in_another_order, 7)} on rank 0, and "
        f"all_reduce among ranks 0 to 3 at {line(two_groups_in_another_order, 4)} on rank 1"
    )


def test_a_backward_that_some_ranks_skip_is_told() -> None:
    [found] = disagreements(an_unused_layer)
    assert found.calls[2] is None
    first = found.calls[0]
    assert first is not None
    assert (first.kind, first.where) == ("all_reduce", line(an_unused_layer, 7))


def test_of_each_group_some_ranks_are_rehearsed_and_all_of_a_pipeline() -> None:
    one = rehearse(partial(cells.train, "TP + FSDP2, fp32, plain, SGD", "cuda"), ranks=8)
    assert representative_ranks(0, one.order) == [
        1,
        2,
        6,
    ]  # its tensor parallel group, and 0, 2, 4, 6
    assert representative_ranks(0, rehearse(pipeline, ranks=8).order) == list(range(1, 8))
