"""Test rehearsals of a thousand ranks: the shards of fully_shard, and the memory of Llama."""

from __future__ import annotations

import math
import runpy
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp._fully_shard._fsdp_common import _chunk_with_empty
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from graphviz_torch.internals.fake.groups import LazyChunks
from graphviz_torch.rehearsal import Rehearsal, rehearse

LLAMA = Path(__file__).parents[2] / "examples" / "rehearsal" / "llama.py"


@pytest.mark.parametrize("shape", [(7, 4), (8, 4), (1, 4), (3,), (0, 4), (4, 0)], ids=str)
@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 16])
@pytest.mark.parametrize("dim", [0, 1])
def test_each_piece_is_the_one_that_pytorch_cuts(
    shape: tuple[int, ...], count: int, dim: int
) -> None:
    if dim >= len(shape):
        dim = 0
    tensor = torch.arange(float(torch.Size(shape).numel())).view(shape)
    pieces, real = LazyChunks(tensor, count, dim), _chunk_with_empty(tensor, count, dim)
    assert len(pieces) == len(real) == count
    for i, its in enumerate(real):
        mine = pieces[i]
        assert mine.shape == its.shape
        assert mine.stride() == its.stride()
        assert mine.storage_offset() == its.storage_offset()
        assert torch.equal(mine, its)
        if its.numel():
            assert mine.untyped_storage().data_ptr() == its.untyped_storage().data_ptr()


LAYERS, TOKENS, WIDTH, HIDDEN, WORDS = 2, 256, 8192, 28672, 128256
# The matrices of a block, from Llama 3's paper: queries, output, keys, values, and three of 28,672.
MATRICES = [(8192, WIDTH), (WIDTH, 8192), (1024, WIDTH), (1024, WIDTH)]
MATRICES += [(HIDDEN, WIDTH), (HIDDEN, WIDTH), (WIDTH, HIDDEN)]


def llama(monkeypatch: pytest.MonkeyPatch, *args: str, **options: int) -> Rehearsal:
    given = [LLAMA.name, f"--layers={LAYERS}", f"--tokens={TOKENS}", *args]
    monkeypatch.setattr(sys, "argv", given)
    return rehearse(partial(runpy.run_path, str(LLAMA), run_name="__main__"), **options)


def test_llama_on_a_thousand_ranks_has_what_one_counts_by_hand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = llama(monkeypatch, ranks=1024, rank=1023, device_memory=80 * 2**30)
    shapes = LAYERS * [*MATRICES, (WIDTH,), (WIDTH,)] + [(WORDS, WIDTH), (WORDS, WIDTH), (WIDTH,)]
    rows = [(-(-first // 1024), rest) for first, *rest in shapes]  # of a rank, the last padded
    shard = sum(4 * math.prod([first, *rest]) for first, rest in rows)
    assert found.parameters_bytes == found.gradients_bytes == shard
    counts = Counter[str]()
    for each in found.collectives:
        assert each.group == "dp"
        assert "llama.py:" in each.where
        counts[each.kind] += each.count
    # Each block is gathered for forward and for backward, the rest of the model once.
    assert counts == {"all_gather": 2 * LAYERS + 1, "reduce_scatter": LAYERS + 1}
    # A block runs forward twice, the second time up to the last product, whose result nobody
    # saves; backward is two products for each of forward's.
    block = sum(math.prod(shape) for shape in MATRICES)
    attention = 2 * 2 * TOKENS * TOKENS * WIDTH  # scores, and what they weigh
    head = 2 * TOKENS * WORDS * WIDTH
    forward = LAYERS * (2 * TOKENS * block + attention)
    last = 2 * TOKENS * HIDDEN * WIDTH
    # Backward of attention computes the scores once more: five products for forward's two.
    assert found.flops == 4 * forward + LAYERS * (attention // 2 - last) + 3 * head
    assert found.fits


def test_llama_in_groups_of_eight_sends_within_them_what_tensor_parallel_sends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = llama(monkeypatch, "--tp=8", ranks=128)
    sent = {(each.kind, each.group): Counter[str]() for each in found.collectives}
    for each in found.collectives:
        sent[each.kind, each.group].update(count=each.count, nbytes=each.nbytes)
    assert set(sent) == {("all_gather", "dp"), ("reduce_scatter", "dp"), ("all_reduce", "tp")}
    # Forward and its repetition sum after attention and feed-forward; backward sums before them.
    reduced = sent["all_reduce", "tp"]
    assert reduced["nbytes"] == reduced["count"] * TOKENS * WIDTH * 2


def test_attention_on_sharded_heads_counts_the_heads_of_this_rank() -> None:
    batch, heads, length, width, ranks = 2, 8, 64, 32, 4

    def attention() -> None:
        dist.init_process_group("nccl")
        mesh = init_device_mesh("cuda", (ranks,), mesh_dim_names=("tp",))
        made = torch.ones(batch, heads, length, width, device="cuda", requires_grad=True)
        q = distribute_tensor(made, mesh, [Shard(1)])
        out = F.scaled_dot_product_attention(q, q, q)
        assert isinstance(out, DTensor)
        assert out.placements == (Shard(1),)
        assert out.to_local().shape == (batch, heads // ranks, length, width)
        out.sum().backward()

    found = rehearse(attention, ranks=ranks)
    # Two products forward and five backward, of this rank's heads.
    assert found.flops == 7 * 2 * batch * (heads // ranks) * length * length * width
    tables: Any = DTensor
    known = tables._op_dispatcher.sharding_propagator.op_strategy_funcs
    assert torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default not in known


def test_nccl_is_understood_where_pytorch_has_none(recwarn: pytest.WarningsRecorder) -> None:
    def train() -> None:
        dist.init_process_group("nccl")
        weight = torch.nn.Parameter(torch.ones(4, device="cuda"))
        weight.square().sum().backward()
        dist.all_reduce(weight.grad)
        torch.optim.SGD([weight]).step()

    assert [each.kind for each in rehearse(train, ranks=8).collectives] == ["all_reduce"]
    assert not [each for each in recwarn if "NCCL" in str(each.message)]


def stage_of(rank: int) -> nn.Module:
    return nn.Sequential(OrderedDict({f"block{rank}": nn.Linear(16, 16), "act": nn.Tanh()}))


def one_forward_one_backward() -> None:
    dist.init_process_group("nccl")
    rank, stages = dist.get_rank(), dist.get_world_size()
    sample, whole = torch.ones(2, 16, requires_grad=True), torch.ones(8, 16)
    module = stage_of(rank)
    stage = PipelineStage(module, rank, stages, torch.device("cuda"), sample, output_args=sample)
    optimizer = torch.optim.SGD(module.parameters())
    schedule = Schedule1F1B(stage, 4, loss_fn=F.mse_loss)
    for _ in range(2):
        target = {"target": whole} if rank == stages - 1 else {}
        schedule.step(*((whole,) if rank == 0 else ()), **target)
        optimizer.step()
        optimizer.zero_grad()


def by_hand() -> None:
    dist.init_process_group("nccl")
    rank, module = dist.get_rank(), stage_of(dist.get_rank())
    optimizer = torch.optim.SGD(module.parameters())
    for _ in range(2):
        for _ in range(4):
            given, gradient = torch.ones(2, 16), torch.ones(2, 16)
            dist.recv(given, rank - 1)
            result = module(given.requires_grad_())
            dist.send(result.detach(), rank + 1)
            dist.recv(gradient, rank + 1)
            result.backward(gradient)
            assert given.grad is not None
            dist.send(given.grad, rank - 1)
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("pipeline", [one_forward_one_backward, by_hand])
def test_messages_of_a_stage_are_of_forward_and_backward_and_of_its_modules(
    pipeline: Callable[[], None],
) -> None:
    found = rehearse(pipeline, ranks=3, rank=1)
    messages = Counter(
        (each.kind, each.peer, each.phase, each.module) for each in found.graph.collectives
    )
    assert messages == {  # of four micro-batches
        ("recv", 0, "forward", "block1"): 4,
        ("send", 2, "forward", "act"): 4,
        ("recv", 2, "backward", "act"): 4,
        ("send", 0, "backward", "block1"): 4,
    }


def test_what_is_taken_into_the_memory_of_a_result_and_sent_on_is_of_no_module() -> None:
    def relay() -> None:
        dist.init_process_group("nccl")
        module = stage_of(1)
        optimizer = torch.optim.SGD(module.parameters())
        for _ in range(2):
            result = module(torch.ones(2, 16))
            dist.send(result.detach(), 2)
            result.sum().backward()
            dist.recv(result.detach(), 0)
            dist.send(result.detach(), 2)
            optimizer.step()
            optimizer.zero_grad()

    found = rehearse(relay, ranks=3, rank=1).graph.collectives
    sent = [(each.kind, each.phase, each.module) for each in found]
    assert sent == [("send", "forward", "act"), ("recv", "other", ""), ("send", "other", "")]
