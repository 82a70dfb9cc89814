"""Measure the second step of trainings in all combinations, on real tensors, without the package.

    python -m tests.support.processes.cells fake 4 "FSDP2, bf16, checkpointing, fused"
    python -m tests.support.processes.cells fake 4 cuda "FSDP2, bf16, checkpointing, fused"

A cell combines a kind of parallelism, a precision, a variant and an optimizer. It runs as rank 0 of
a group that sends nothing, with real tensors on the CPU or a GPU. Parameters, gradients and
optimizer state are measured by the tensors themselves, and gathered parameters by the storages that
`fully_shard` allocates. The peak is measured on the CPU by the allocator's events in PyTorch's
profiler, without oneDNN, whose kernels allocate scratch memory; on a GPU, by the bytes requested
from the allocator, without those that cuBLAS keeps. For a cell that PyTorch refuses, the error is
printed.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import product
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy
from torch.distributed.fsdp._fully_shard import _fsdp_param
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.optim import SGD, AdamW

from tests.support.processes.trainings import (
    BATCH,
    LENGTH,
    WIDTH,
    WORDS,
    Net,
    count_at_step,
    divided,
    replicated,
    sharded,
)

WAYS = "DDP", "FSDP2", "FSDP2 kept", "HSDP", "TP", "TP + FSDP2", "PP"
PRECISIONS = "fp32", "bf16", "autocast"
VARIANTS = "plain", "checkpointing", "accumulation", "offloading"
OPTIMIZERS = "AdamW", "fused", "SGD"
SHARDED = frozenset(WAYS) - {"DDP", "TP", "PP"}


def cells(*, every: bool = False) -> Iterator[str]:
    """Yield the names of all cells, or of a few cells that contain each pair of settings."""
    for (i, way), (j, variant) in product(enumerate(WAYS), enumerate(VARIANTS)):
        for (k, precision), (m, optimizer) in product(enumerate(PRECISIONS), enumerate(OPTIMIZERS)):
            if every or ((i + j) % 3, (i // 3 + 2 * j + i) % 3) == (k, m):
                yield f"{way}, {precision}, {variant}, {optimizer}"


class First(nn.Module):
    """The first stage of a pipeline: an embedding and a block."""

    def __init__(self, *, checkpointed: bool) -> None:
        super().__init__()
        net = Net(checkpointed=checkpointed)
        self.words, self.block, self.checkpointed = net.words, net.blocks[0], checkpointed

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words)
        if self.checkpointed:
            return torch.utils.checkpoint.checkpoint(self.block, x, use_reentrant=False)
        return self.block(x)


def built(way: str, precision: str, variant: str, device: str) -> nn.Module:
    """Return the model of a cell on its device, distributed over the ranks."""
    checkpointed = variant == "checkpointing"
    model: Any = (First if way == "PP" else Net)(checkpointed=checkpointed)
    if precision == "bf16" and way not in SHARDED:
        model = model.to(torch.bfloat16)
    model = model.to(device)
    options: dict[str, Any] = {"reshard_after_forward": way != "FSDP2 kept"}
    if precision == "bf16":
        options["mp_policy"] = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    if variant == "offloading":
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=False)
    size = dist.get_world_size()
    if way == "DDP":
        return replicated(model, bucket_cap_mb=0.5)
    if way in ("FSDP2", "FSDP2 kept"):
        return sharded(model, init_device_mesh(device, (size,)), **options)
    if way == "HSDP":
        names = ("replicate", "shard")
        mesh = init_device_mesh(device, (size // 2, 2), mesh_dim_names=names)
        return sharded(model, mesh, **options)
    if way == "TP":
        return divided(model, init_device_mesh(device, (size,)))
    if way == "TP + FSDP2":
        mesh = init_device_mesh(device, (size // 2, 2), mesh_dim_names=("dp", "tp"))
        return sharded(divided(model, mesh["tp"]), mesh["dp"], **options)
    return model


def optimizing(name: str, way: str, parameters: Any) -> torch.optim.Optimizer:
    """Return an optimizer; it steps one parameter at a time if `foreach` is not possible."""
    if name == "SGD":
        return SGD(parameters, 0.1, foreach=not way.startswith("TP"))
    if name == "fused":
        return AdamW(parameters, fused=True)
    return AdamW(parameters, foreach=not way.startswith("TP"))


def train(cell: str, device: str, before: Callable[[int, Any, Any], object] | None = None) -> None:
    """Run two steps of a cell; call `before` before each, with the model and the optimizer."""
    way, precision, variant, name = cell.split(", ")
    if not dist.is_initialized():
        dist.init_process_group("gloo" if device == "cpu" else "nccl")
    model = built(way, precision, variant, device)
    optimizer = optimizing(name, way, model.parameters())
    schedule: Any = None
    if way == "PP":
        dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        rows = torch.zeros(BATCH, LENGTH, dtype=torch.int64, device=device)
        out = torch.zeros(BATCH, LENGTH, WIDTH, dtype=dtype, device=device, requires_grad=True)
        shapes: dict[str, Any] = {"input_args": (rows,), "output_args": (out,)}
        stage = PipelineStage(model, 0, dist.get_world_size(), torch.device(device), **shapes)
        schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
    for step in range(2):
        if before is not None:
            before(step, model, optimizer)
        for _ in range(2 if variant == "accumulation" else 1):
            with ExitStack() as opened:
                if precision == "autocast":
                    opened.enter_context(torch.autocast(device, torch.bfloat16))
                if variant == "offloading" and way not in SHARDED:
                    opened.enter_context(torch.autograd.graph.save_on_cpu())
                count = 4 if way == "PP" else 1
                words = torch.randint(0, WORDS, (count * BATCH, LENGTH), device=device)
                if way == "PP":
                    schedule.step(words)
                    continue
                scores = model(words)
                loss = nn.functional.cross_entropy(scores.flatten(0, 1), words.flatten())
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def peak_on_cpu(run: Callable[[Callable[[], None]], None]) -> int:
    """Return the largest memory that the CPU allocator held after the mark, in bytes."""

    def mark() -> None:
        with torch.profiler.record_function("SECOND STEP"):
            pass

    with torch.profiler.profile(profile_memory=True) as profile:
        run(mark)
    events = profile.profiler.kineto_results.events()
    start = next(each.start_ns() for each in events if each.name() == "SECOND STEP")
    total = most = 0
    memory = [each for each in events if each.name() == "[memory]"]
    for each in sorted(memory, key=lambda each: each.start_ns()):
        total += each.nbytes()
        most = max(most, total) if each.start_ns() >= start else total
    return most


def peak_on_cuda(run: Callable[[Callable[[], None]], None]) -> int:
    """Return the largest number of bytes requested on the GPU at one time, after the mark.

    cuBLAS keeps a workspace for each thread and stream. These workspaces are allocated before and
    do not count.
    """

    def asked(when: str) -> int:
        return int(torch.cuda.memory_stats()[f"requested_bytes.all.{when}"])

    for dtype in (torch.float32, torch.bfloat16):
        layer = nn.Linear(WIDTH, WIDTH, device="cuda", dtype=dtype)
        rows = torch.ones(BATCH, WIDTH, device="cuda", dtype=dtype, requires_grad=True)
        layer(rows).sum().backward()
    layer = rows = None  # type: ignore[assignment]
    gc.collect()
    before = asked("current")
    run(torch.cuda.reset_peak_memory_stats)
    return asked("peak") - before


def counted(cell: str, device: str) -> dict[str, Any]:
    """Return the measurements of the second step, and its peak."""
    found: dict[str, Any] = {"gathered": 0}
    began: list[int] = []
    gathered: dict[int, tuple[Any, int]] = {}
    Param: Any = _fsdp_param.FSDPParam

    def noted(real: Any) -> Any:
        def note(this: Any) -> None:
            real(this)
            for tensor in this.all_gather_outputs:
                gathered[id(tensor)] = tensor, tensor.untyped_storage().nbytes()
            if began:
                total = sum(nbytes for _, nbytes in gathered.values())
                found["gathered"] = max(found["gathered"], total)

        return note

    def run(mark: Callable[[], None]) -> None:
        def before(step: int, model: Any, optimizer: Any) -> None:
            if step == 0:
                return
            count_at_step(model, optimizer, found)
            began.append(step)
            mark()

        train(cell, device, before)

    gc.collect()
    names = ("alloc_all_gather_outputs", "free_unsharded_param")
    with ExitStack() as opened:
        for name in names:
            opened.enter_context(patch.object(Param, name, noted(getattr(Param, name))))
        known = lambda *_, **__: torch.ones(1)  # noqa: E731  # no other rank sends shapes
        if hasattr(PipelineStage, "_warmup_backward_result"):  # since 2.12
            opened.enter_context(patch.object(PipelineStage, "_warmup_backward_result", known))
        found["peak"] = (peak_on_cuda if device == "cuda" else peak_on_cpu)(run)
    return found


def main() -> None:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.backends.mkldnn.set_flags(False)  # type: ignore[no-untyped-call]
    size = int(sys.argv[2])
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)
    results: dict[str, Any] = {}
    device = "cuda" if "cuda" in sys.argv[3:] else "cpu"
    for cell in [name for name in sys.argv[3:] if name != "cuda"] or cells(every=True):
        try:
            results[cell] = counted(cell, device)
        except (RuntimeError, ValueError, NotImplementedError) as error:
            results[cell] = {"refused": f"{type(error).__name__}: {error}"[:200]}
    print("RESULT", json.dumps(results), flush=True)


if __name__ == "__main__":
    main()
