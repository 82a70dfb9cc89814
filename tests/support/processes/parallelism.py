"""Count a model's collectives in every kind of parallelism, by PyTorch and by a recording.

    torchrun --nproc-per-node 4 -m tests.support.processes.parallelism gloo    all kinds, on gloo
    python -m tests.support.processes.parallelism fake 8    as rank 0 of a fake group

Each kind runs bare and recorded from the same initial state. Rank 0 prints JSON: the counts of
PyTorch's CommDebugMode in a bare step (for point-to-point messages, the number of calls), the
counts of the recording, whether all ranks' values and gradients are bit-equal, and the findings, of
which none is expected.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, parallel
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn.parallel import DistributedDataParallel

from graphviz_torch import Finding, Graph, find, record
from graphviz_torch.graph.files.file import text_of, value_of

warnings.filterwarnings("ignore")
Step = Callable[[], object]

# Names of the kinds in CommDebugMode.
KINDS = {
    "allreduce": "all_reduce",
    "all_reduce": "all_reduce",
    "allgather": "all_gather",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "all_to_all": "all_to_all",
    "broadcast": "broadcast",
}


class Block(nn.Module):
    """A norm and two layers in a residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.up(self.norm(x)).relu())


class Net(nn.Module):
    """Two blocks and a head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def batch() -> Tensor:
    torch.manual_seed(1 + dist.get_rank())
    return torch.randn(8, 8, 16)


def stepping(model: nn.Module, x: Tensor | None = None) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = batch() if x is None else x

    def step() -> None:
        out = model(x)
        loss = (out.full_tensor() if isinstance(out, DTensor) else out).square().mean()
        loss.backward()
        optimizer.step()

    return step


def ddp(ranks: int) -> tuple[nn.Module, Step]:
    model = DistributedDataParallel(Net(), bucket_cap_mb=0.002)
    return model, stepping(model)


def ddp_hook(ranks: int) -> tuple[nn.Module, Step]:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    model = DistributedDataParallel(Net(), bucket_cap_mb=0.002)
    model.register_comm_hook(None, fp16_compress_hook)
    return model, stepping(model)


def _sharded(model: nn.Module, mesh: Any, **options: Any) -> nn.Module:
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def fsdp(ranks: int) -> tuple[nn.Module, Step]:
    model = _sharded(Net(), init_device_mesh("cpu", (ranks,), mesh_dim_names=("dp",)))
    return model, stepping(model)


def fsdp_mixed(ranks: int) -> tuple[nn.Module, Step]:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("dp",))
    model = _sharded(Net(), mesh, mp_policy=policy)
    return model, stepping(model)


def hsdp(ranks: int) -> tuple[nn.Module, Step]:
    mesh = init_device_mesh("cpu", (ranks // 2, 2), mesh_dim_names=("replicate", "shard"))
    model = _sharded(Net(), mesh)
    return model, stepping(model)


def _divided(model: nn.Module, mesh: Any) -> nn.Module:
    plan = {"up": parallel.ColwiseParallel(), "down": parallel.RowwiseParallel()}
    for block in model.blocks:
        parallel.parallelize_module(block, mesh, plan)
    return model


def tp(ranks: int) -> tuple[nn.Module, Step]:
    model = _divided(Net(), init_device_mesh("cpu", (ranks,), mesh_dim_names=("tp",)))
    torch.manual_seed(1)  # the ranks of a group share one batch
    return model, stepping(model, torch.randn(8, 8, 16))


def sp(ranks: int) -> tuple[nn.Module, Step]:
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("tp",))
    model = Net()
    plan = {
        "norm": parallel.SequenceParallel(),
        "up": parallel.ColwiseParallel(input_layouts=Shard(1)),
        "down": parallel.RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
    }
    for block in model.blocks:
        parallel.parallelize_module(block, mesh, plan)
    ends = {
        "blocks.0": parallel.PrepareModuleInput(
            input_layouts=(Replicate(),), desired_input_layouts=(Shard(1),), use_local_output=False
        ),
        "head": parallel.ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    parallel.parallelize_module(model, mesh, ends)
    torch.manual_seed(1)
    return model, stepping(model, torch.randn(8, 8, 16))


def tp_fsdp(ranks: int) -> tuple[nn.Module, Step]:
    mesh = init_device_mesh("cpu", (ranks // 2, 2), mesh_dim_names=("dp", "tp"))
    model = _sharded(_divided(Net(), mesh["tp"]), mesh["dp"])
    return model, stepping(model)


def pp(ranks: int) -> tuple[nn.Module, Step]:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank, model = dist.get_rank(), Net()
    parts = [model.blocks[0], model.blocks[1]] + [nn.Linear(16, 16) for _ in range(ranks - 2)]
    torch.manual_seed(2)
    part, sample = parts[rank], torch.randn(1, 8, 16, requires_grad=True)
    stage = PipelineStage(
        part, rank, ranks, torch.device("cpu"), input_args=(sample,), output_args=(sample,)
    )
    schedule = Schedule1F1B(stage, 8, loss_fn=lambda out, target: (out - target).square().mean())
    optimizer = torch.optim.SGD(part.parameters(), lr=0.1)

    def step() -> None:
        whole = torch.ones(8, 8, 16)
        given = {"target": whole} if rank == ranks - 1 else {}
        schedule.step(*((whole,) if rank == 0 else ()), **given)
        optimizer.step()

    return part, step


WAYS: dict[str, Callable[[int], tuple[nn.Module, Step]]] = {
    "DDP": ddp,
    "DDP with a hook": ddp_hook,
    "FSDP2": fsdp,
    "FSDP2 in bf16": fsdp_mixed,
    "HSDP": hsdp,
    "TP": tp,
    "SP": sp,
    "TP + FSDP2": tp_fsdp,
    "PP": pp,
}


@contextmanager
def messages() -> Iterator[Counter[str]]:
    """Count the calls that send point-to-point messages, which CommDebugMode does not count."""
    counts: Counter[str] = Counter()

    def counted(name: str) -> Any:
        real = getattr(dist.ProcessGroup, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            counts[name] += 1
            return real(*args, **kwargs)

        return patch.object(dist.ProcessGroup, name, call)

    with counted("send"), counted("recv"):
        yield counts


def counted(step: Step, *, collectives: bool) -> Counter[str]:
    """Return PyTorch's own counts of a step.

    Args:
        collectives: whether to use CommDebugMode. For a pipeline, which only sends messages, it
            raises an IndexError (2.13).
    """
    if not collectives:
        with messages() as counts:
            step()
        return counts
    with messages() as counts, CommDebugMode() as mode:
        step()
    for packet, number in mode.get_comm_counts().items():
        name = str(packet).rpartition(".")[2].strip("_")
        name = name.removesuffix("_base").removesuffix("_coalesced")
        kind = next(kind for begin, kind in KINDS.items() if name.startswith(begin))
        counts[kind] += number
    return counts


def state(model: nn.Module) -> list[Tensor]:
    """Return the tensors that a step changes, as this rank has them."""
    tensors = [*model.parameters()]
    tensors += [p.grad for p in model.parameters() if p.grad is not None]
    return [t.to_local() if isinstance(t, DTensor) else t.detach() for t in tensors]


def compare(make: Callable[[int], tuple[nn.Module, Step]], ranks: int) -> dict[str, Any]:
    """Compare the second steps, bare and recorded. (DDP sends more in its second step.)"""
    bare, bare_step = make(ranks)
    bare_step()
    counts = counted(bare_step, collectives=make is not pp)
    model, step = make(ranks)
    step()
    with record(model) as recording:
        step()
    graph: Graph = recording.graph
    found = Counter(each.kind for each in graph.collectives)
    sent = sum(each.nbytes for each in graph.collectives)
    named = sum(each.nbytes for each in graph.collectives if each.where or each.module)
    equal = all(map(torch.equal, state(bare), state(model)))
    whose = sum(bool(each.parameters) for each in graph.collectives)
    return {
        "counted": dict(sorted(counts.items())),
        "recorded": dict(sorted(found.items())),
        "bytes": sent,
        "named": named / sent if sent else 1.0,
        "parameters": whose,
        "nodes": sum(each.node is not None for each in graph.collectives),
        "equal": equal,
        "missed": sorted({node.note for node in graph.nodes if "not recorded" in node.note}),
        "findings": messages_of(find(recording)),
        "graph": text_of(graph),
    }


def messages_of(findings: Sequence[Finding]) -> list[str]:
    """Return the messages of findings, without notes."""
    return [f"{each.rule}: {each.message}" for each in findings if each.severity != "info"]


def main(backend: str, ranks: int, wanted: list[str]) -> None:
    if backend == "fake":
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    else:
        dist.init_process_group(backend)
    ranks = dist.get_world_size()
    results = {}
    for name, make in WAYS.items():
        if wanted and name not in wanted:
            continue
        try:
            mine = compare(make, ranks)
        except Exception as error:
            mine = {"error": f"{type(error).__name__}: {error}"[:300]}
        every: list[Any] = [mine]
        if backend != "fake":
            every = [None] * ranks
            dist.all_gather_object(every, mine)
        graphs = [value_of(each.pop("graph"), Graph) for each in every if "graph" in each]
        if len(graphs) == ranks:
            every[0]["findings"] += messages_of(find(graphs))
        results[name] = every
    if dist.get_rank() == 0:
        print("RESULT", json.dumps(results), flush=True)
    if backend != "fake":
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    given = sys.argv[2:]
    number = int(given.pop(0)) if sys.argv[1] == "fake" else 0
    main(sys.argv[1], number, given)
