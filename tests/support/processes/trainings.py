"""Measure the second step of trainings on several ranks, on real tensors, without the package.

    torchrun --nproc-per-node 2 -m tests.support.processes.trainings FSDP2 TP
    python -m tests.support.processes.trainings fake 2 FSDP2    the peak alone, as rank 0

Rank 0 prints JSON for each training and rank: bytes of parameters, gradients and optimizer state,
measured by the tensors themselves; bytes of activations, by saved-tensor hooks; the peak, by the
CPU allocator's events in PyTorch's profiler; floating-point operations, by a dispatch mode with the
formulas of PyTorch's counter (that counter itself adds up all ranks); and the number and bytes of
collectives by kind.

Gloo copies the tensors that it reduces and scatters, and frees them when its threads have finished.
PyTorch's fake group does neither, so the peak is measured with both.
"""

from __future__ import annotations

import gc
import json
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, parallel
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, AdamW
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import flop_registry

warnings.filterwarnings("ignore")
ALONE = sys.argv[1:2] == ["fake"]  # the other ranks do not exist, but all tensors do
WIDTH, LENGTH, BATCH, WORDS = 128, 64, 4, 512


class Block(nn.Module):
    """A norm and two layers in a residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    """An embedding, three blocks and a head."""

    def __init__(self, *, tied: bool = False, checkpointed: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(3)])
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        if tied:
            self.head.weight = self.words.weight
        self.checkpointed = checkpointed

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return self.head(x)


Training = Callable[[], "tuple[nn.Module, torch.optim.Optimizer, int]"]  # the int: batches per step
TRAININGS: dict[str, Training] = {}


def entered(name: str) -> Callable[[Training], Training]:
    def enter(training: Training) -> Training:
        TRAININGS[name] = training
        return training

    return enter


def ranks() -> int:
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    return dist.get_world_size()


def replicated(model: nn.Module, **options: Any) -> nn.Module:
    """Return the model in DDP, adapted to the results of PyTorch's fake group."""
    wrapper = DistributedDataParallel(model, **options)
    if ALONE:
        wrapper.register_comm_hook(None, lambda state, bucket: reduced(bucket))
    return wrapper


def reduced(bucket: Any) -> Any:
    future: Any = torch.futures.Future()
    dist.all_reduce(bucket.buffer(), async_op=True)
    future.set_result(bucket.buffer())
    return future


def line(name: str) -> Any:
    return init_device_mesh("cpu", (ranks(),), mesh_dim_names=(name,))


def sharded(model: Any, mesh: Any, **options: Any) -> Any:
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def divided(model: Any, mesh: Any, *, sequence: bool = False) -> Any:
    plan: dict[str, Any] = {"up": parallel.ColwiseParallel(), "down": parallel.RowwiseParallel()}
    if sequence:
        plan = {
            "norm": parallel.SequenceParallel(),
            "up": parallel.ColwiseParallel(input_layouts=Shard(1)),
            "down": parallel.RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
        }
    for block in model.blocks:
        parallel.parallelize_module(block, mesh, plan)
    if sequence:
        edges = {
            "words": parallel.RowwiseParallel(
                input_layouts=Replicate(), output_layouts=Shard(1), use_local_output=False
            ),
            "head": parallel.ColwiseParallel(
                input_layouts=Shard(1), output_layouts=Replicate(), use_local_output=True
            ),
        }
        parallel.parallelize_module(model, mesh, edges)
    return model


@entered("DDP")
def ddp() -> Any:
    ranks()
    model = replicated(Net(), bucket_cap_mb=0.5)
    return model, AdamW(model.parameters()), 1


@entered("DDP, bucket views, SGD with momentum")
def ddp_views() -> Any:
    ranks()
    model = replicated(Net(), bucket_cap_mb=0.5, gradient_as_bucket_view=True)
    return model, SGD(model.parameters(), 0.1, momentum=0.9), 1


@entered("DDP, accumulation")
def ddp_accumulation() -> Any:
    ranks()
    model = replicated(Net(), bucket_cap_mb=0.5)
    return model, AdamW(model.parameters()), 2


@entered("DDP, tied weights")
def ddp_tied() -> Any:
    ranks()
    model = replicated(Net(tied=True))
    return model, AdamW(model.parameters()), 1


@entered("FSDP2")
def fsdp() -> Any:
    model = sharded(Net(), line("dp"))
    return model, AdamW(model.parameters()), 1


@entered("FSDP2, SGD with momentum")
def fsdp_momentum() -> Any:
    model = sharded(Net(), line("dp"))
    return model, SGD(model.parameters(), 0.1, momentum=0.9), 1


@entered("FSDP2, bf16")
def fsdp_bf16() -> Any:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = sharded(Net(), line("dp"), mp_policy=policy)
    return model, AdamW(model.parameters()), 1


@entered("FSDP2, accumulation")
def fsdp_accumulation() -> Any:
    model = sharded(Net(), line("dp"))
    return model, AdamW(model.parameters()), 2


@entered("FSDP2, checkpointing")
def fsdp_checkpointing() -> Any:
    model = sharded(Net(checkpointed=True), line("dp"))
    return model, AdamW(model.parameters()), 1


@entered("FSDP2, tied weights")
def fsdp_tied() -> Any:
    model = sharded(Net(tied=True), line("dp"))
    return model, AdamW(model.parameters()), 1


@entered("HSDP")
def hsdp() -> Any:
    mesh = init_device_mesh("cpu", (ranks() // 2, 2), mesh_dim_names=("replicate", "shard"))
    model = sharded(Net(), mesh)
    return model, AdamW(model.parameters()), 1


@entered("TP")
def tp() -> Any:
    model = divided(Net(), line("tp"))
    return model, AdamW(model.parameters(), foreach=False), 1


@entered("SP")
def sp() -> Any:
    model = divided(Net(), line("tp"), sequence=True)
    return model, AdamW(model.parameters(), foreach=False), 1


@entered("TP + FSDP2")
def tp_fsdp() -> Any:
    mesh = init_device_mesh("cpu", (ranks() // 2, 2), mesh_dim_names=("dp", "tp"))
    model = sharded(divided(Net(), mesh["tp"]), mesh["dp"])
    return model, AdamW(model.parameters(), foreach=False), 1


def train(training: Training, before: Callable[[int, Any, Any], object] | None = None) -> None:
    """Run two steps; call `before` before each, with the model and the optimizer."""
    model, optimizer, batches = training()
    for step in range(2):
        if before is not None:
            before(step, model, optimizer)
        for _ in range(batches):
            words = torch.randint(0, WORDS, (BATCH, LENGTH))
            loss = nn.functional.cross_entropy(model(words).flatten(0, 1), words.flatten())
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def local(tensor: Any) -> Tensor:
    """Return this rank's part of a DTensor, or the result of a collective, without waiting."""
    while isinstance(tensor, DTensor | AsyncCollectiveTensor):
        tensor = tensor._local_tensor if isinstance(tensor, DTensor) else tensor.elem
    return tensor


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of the tensors' memory; shared memory counts once."""
    storages = [local(tensor).untyped_storage() for tensor in tensors]
    return sum({each.data_ptr(): each.nbytes() for each in storages}.values())


def count_at_step(model: Any, optimizer: Any, found: dict[str, Any]) -> None:
    """Write the bytes that the training has in memory at its next optimizer step to `found`."""

    def at_step(*_: Any) -> None:
        parameters = list(model.parameters())
        found["parameters"] = storage_bytes(parameters)
        found["gradients"] = storage_bytes(p.grad for p in parameters if p.grad is not None)

    def after_step(*_: Any) -> None:
        states = optimizer.state.values()
        found["optimizer"] = storage_bytes(v for each in states for v in each.values())

    optimizer.register_step_pre_hook(at_step)
    optimizer.register_step_post_hook(after_step)


class Sent(TorchDispatchMode):
    """Counts of collectives by kind, and the bytes of their inputs."""

    KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
    GIVEN = ("input", "inputs", "input_tensor", "input_tensors", "input_list", "tensors", "self")

    def __init__(self) -> None:
        super().__init__()
        self.count, self.nbytes, self.flops = Counter[str](), Counter[str](), 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if DTensor in types:
            return NotImplemented
        if func.namespace in ("c10d", "_c10d_functional"):
            name = func._schema.name.replace("allreduce", "all_reduce").replace(
                "allgather", "all_gather"
            )
            kind = next((kind for kind in self.KINDS if kind in name), "")
            names = [argument.name for argument in func._schema.arguments]
            if kind:
                at = next(names.index(given) for given in self.GIVEN if given in names)
                given = args[at] if isinstance(args[at], list) else [args[at]]
                self.count[kind] += 1
                self.nbytes[kind] += sum(each.numel() * each.element_size() for each in given)
        result = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func._overloadpacket)
        self.flops += 0 if formula is None else formula(*args, **(kwargs or {}), out_val=result)
        return result


def sizes(training: Training) -> dict[str, Any]:
    """Return the bytes that the second step holds at its end, and its collectives."""
    found: dict[str, Any] = {}
    sent = Sent()
    opened = ExitStack()

    def before(step: int, model: Any, optimizer: Any) -> None:
        if step == 0:
            return
        opened.enter_context(sent)

        count_at_step(model, optimizer, found)

    with opened:
        train(training, before)
    found["flops"] = sent.flops
    found["sent"] = {kind: [sent.count[kind], sent.nbytes[kind]] for kind in sorted(sent.count)}
    return found


def activations(training: Training) -> int:
    """Return the bytes saved by the second step's graph; the largest of several backwards."""
    saved: list[dict[int, int]] = []
    models: list[Any] = []

    def pack(tensor: Tensor) -> Tensor:
        storage = local(tensor).untyped_storage()
        own = [local(p).untyped_storage().data_ptr() for p in models[0].parameters()]
        if tensor.dtype != torch.int64 and storage.data_ptr() not in own:
            saved[-1][storage.data_ptr()] = storage.nbytes()
        return tensor.detach()

    def before(step: int, model: Any, optimizer: Any) -> None:
        models[:] = [model]
        saved.append({})
        model.register_forward_pre_hook(lambda *_: saved.append({}))

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        train(training, before)
    return max(sum(each.values()) for each in saved[2:])


def peak(training: Training) -> int:
    """Return the largest memory that the CPU allocator held in the second step, in bytes.

    oneDNN is off: on a processor without bf16, it multiplies float32 copies.
    """
    marks: list[Any] = []

    def before(step: int, model: Any, optimizer: Any) -> None:
        if step == 1:
            with torch.profiler.record_function("SECOND STEP"):
                marks.append(step)

    gc.collect()
    with (
        torch.backends.mkldnn.flags(enabled=False),
        torch.profiler.profile(profile_memory=True) as profile,
    ):
        train(training, before)
    events = profile.profiler.kineto_results.events()
    start = next(each.start_ns() for each in events if each.name() == "SECOND STEP")
    total = most = 0
    memory = [each for each in events if each.name() == "[memory]"]
    for each in sorted(memory, key=lambda each: each.start_ns()):
        total += each.nbytes()
        most = max(most, total) if each.start_ns() >= start else total
    return most


def counted(training: Training) -> dict[str, Any]:
    """Return all measurements of this rank."""
    found = {}
    for count in (sizes, activations, peak):
        result = count(training)
        found.update(result if isinstance(result, dict) else {count.__name__: result})
    return found


def main() -> None:
    results: dict[str, Any] = {}
    if ALONE:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        size = int(sys.argv[2])
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)
        for name in sys.argv[3:] or TRAININGS:
            results[name] = peak(TRAININGS[name])
        print("RESULT", json.dumps(results), flush=True)
        return
    ranks()
    for name in sys.argv[1:] or TRAININGS:
        every: list[Any] = [None] * ranks()
        dist.all_gather_object(every, counted(TRAININGS[name]))
        results[name] = every
    if dist.get_rank() == 0:
        print("RESULT", json.dumps(results), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
