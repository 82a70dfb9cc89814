"""Compare recorded copies with the profiler's memcpy events on a GPU.

`python -m pytest tests/recording/transfers/test_cuda_copies.py -s` prints for each way to move a
tensor the kind, bytes and memory of each copy, both as recorded and as profiled. They must be
equal.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader, TensorDataset

from graphviz_torch import Graph, record

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

GPU = torch.device("cuda", 0)
Copy = tuple[str, int, str]  # kind, bytes, memory of the host: "pinned" or "pageable"
_NAME = re.compile(r"Memcpy (HtoD|DtoH|PtoP) \((\w+) -> (\w+)\)")


def batches() -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.ones(8, 3)), batch_size=4, pin_memory=True)


def put(target: Tensor, where: Any, value: Any) -> None:
    target[where] = value


def step() -> None:
    """A model with a copy inside the graph, its optimizer, and the loss read back."""
    model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 1)).to(GPU)
    optimizer = torch.optim.AdamW(model.parameters())
    scale = torch.ones(1, requires_grad=True)
    loss = (model(torch.ones(7, 3).to(GPU)) * scale.to(GPU)).square().mean()
    loss.backward()
    optimizer.step()
    loss.item()


def offloaded(d: Tensor) -> None:
    leaf = d.requires_grad_()
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        y = leaf * leaf
    y.sum().backward()


def scaled() -> None:
    scaler = torch.amp.GradScaler("cuda")
    model = nn.Linear(3, 1).to(GPU)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler.scale(model(torch.ones(2, 3, device=GPU)).sum()).backward()
    scaler.step(optimizer)
    scaler.update()


# One line a way to move a tensor. x is 6 by 4 floats on the CPU, d the same on the GPU.
WAYS: dict[str, Callable[[Tensor, Tensor], object]] = {
    "to": lambda x, d: x.to(GPU),
    "cuda": lambda x, d: x.cuda(),
    "to, pinned": lambda x, d: x.pin_memory().to(GPU, non_blocking=True),
    "to, pageable and not blocking": lambda x, d: x.to(GPU, non_blocking=True),
    "to, with a cast": lambda x, d: x.to(GPU, torch.float64),
    "to, with a cast and not blocking": lambda x, d: x.to(GPU, torch.float64, non_blocking=True),
    "to, pinned, with a cast": lambda x, d: x.pin_memory().to(GPU, torch.float64),
    "to, pinned, of a part": lambda x, d: x.pin_memory()[:, 1].to(GPU),
    "back into pinned memory": lambda x, d: x.pin_memory().copy_(d),
    "back into gaps of pinned memory": lambda x, d: x.pin_memory()[:, 1].copy_(d[:, 0]),
    "to, of a transpose": lambda x, d: x.t().to(GPU),
    "to, of a part": lambda x, d: x[:, 1].to(GPU),
    "to, of an expansion": lambda x, d: x[0].expand(5, 4).to(GPU),
    "to, of an empty tensor": lambda x, d: x[:0].to(GPU),
    "back": lambda x, d: d.cpu(),
    "back, not blocking": lambda x, d: d.to("cpu", non_blocking=True),
    "back, with a cast": lambda x, d: d.to("cpu", torch.float64),
    "back, with a cast and not blocking": lambda x, d: d.to(
        "cpu", torch.float64, non_blocking=True
    ),
    "back, of a part": lambda x, d: d[:, 1].cpu(),
    "item": lambda x, d: d[0, 0].item(),
    "item of a double": lambda x, d: d.double().sum().item(),
    "float": lambda x, d: float(d.sum()),
    "bool": lambda x, d: bool((d > 0).all()),
    "tolist": lambda x, d: d.tolist(),
    "numpy": lambda x, d: d.cpu().numpy(),
    "copy_ in": lambda x, d: d.copy_(x),
    "copy_ in, broadcast": lambda x, d: d.copy_(x[0]),
    "copy_ in, across": lambda x, d: d.t().copy_(x.t().contiguous()),
    "copy_ in, with a cast": lambda x, d: d.copy_(x.double()),
    "copy_ out": lambda x, d: x.copy_(d),
    "copies in a list": lambda x, d: torch._foreach_copy_([d, d.t()], [x, x.t()]),
    "tensor": lambda x, d: torch.tensor([1.0, 2.0], device=GPU),
    "as_tensor": lambda x, d: torch.as_tensor(x.numpy(), device=GPU),
    "index": lambda x, d: d[torch.tensor([0, 2])],
    "index of short integers": lambda x, d: d[torch.tensor([0, 2], dtype=torch.int32)],
    "index by a list": lambda x, d: d[[0, 2]],
    "two indices": lambda x, d: d[torch.tensor([[0], [1]]), torch.tensor([0, 1, 2])],
    "mask": lambda x, d: d[x > 0],
    "mask of rows": lambda x, d: d[x[:, 0] > 0],
    "put a number": lambda x, d: put(d, torch.tensor([0, 2]), 3.0),
    "put a number by a mask": lambda x, d: put(d, x > 0, 3.0),
    "put a number by the GPU's mask": lambda x, d: put(d, d > 0, 3.0),
    "put rows": lambda x, d: put(d, torch.tensor([0, 2]), d[:2].clone()),
    "set a part": lambda x, d: put(d, slice(0, 2), x[:2]),
    "gradient of an index": lambda x, d: d.requires_grad_()[torch.tensor([0, 2])].sum().backward(),
    "gradient of a mask": lambda x, d: d.requires_grad_()[x > 0].sum().backward(),
    "gradient of to": lambda x, d: (x.requires_grad_().to(GPU) * 2).sum().backward(),
    "gradient of a cast": lambda x, d: x.requires_grad_().to(GPU, torch.float64).sum().backward(),
    "gradient of cpu": lambda x, d: d.requires_grad_().cpu().sum().backward(),
    "module": lambda x, d: nn.Linear(4, 5).to(GPU),
    "batches": lambda x, d: [b.to(GPU, non_blocking=True) for (b,) in batches()],
    "sparse": lambda x, d: x.to_sparse().to(GPU),
    "sparse by rows": lambda x, d: x.to_sparse_csr().to(GPU),
    "nested": lambda x, d: torch.nested.nested_tensor([x[0], x[0, :2]]).to(GPU),
    "jagged": lambda x, d: torch.nested.nested_tensor([x, x[:2]], layout=torch.jagged).to(GPU),
    "offloaded": lambda x, d: offloaded(d),
    "a scaled step": lambda x, d: scaled(),
    "a step": lambda x, d: step(),
}


def inputs() -> tuple[Tensor, Tensor]:
    x = torch.arange(24.0).view(6, 4) - 5
    return x, x.to(GPU)


def profiled(run: Callable[[], object], folder: Path) -> list[Copy]:
    """Return the copies that the profiler saw."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        run()
        torch.cuda.synchronize()
    path = folder / "trace.json"
    seen.export_chrome_trace(str(path))
    found = []
    for event in json.loads(path.read_text())["traceEvents"]:
        name = _NAME.match(event.get("name", ""))
        if event.get("cat") == "gpu_memcpy" and name is not None:
            kind, source, target = name.groups()
            memory = (source if kind == "HtoD" else target).lower()
            found.append((kind.replace("PtoP", "DtoD"), event["args"]["bytes"], memory))
    return sorted(found)


def recorded(graph: Graph) -> list[Copy]:
    words = {True: "pinned", False: "pageable", None: "?"}
    return sorted((c.kind, c.nbytes or 0, words[c.pinned]) for c in graph.transfers if c.nbytes)


@pytest.mark.parametrize("way", WAYS)
def test_what_is_recorded_is_what_the_profiler_saw(way: str, tmp_path: Path) -> None:
    WAYS[way](*inputs())  # the first time, CUDA's libraries set themselves up
    x, d = inputs()
    with record() as recording:  # it brings its own numbers over when the block ends
        theirs = profiled(lambda: WAYS[way](x, d), tmp_path)
        torch.ones(1, requires_grad=True).sum().backward()  # a graph to hang the copies on
    ours = recorded(recording.graph)
    print(f"\n{way}\n  recorded {ours}\n  profiler {theirs}")
    assert ours == theirs


def everything() -> None:
    for way in WAYS.values():
        way(*inputs())


def test_a_parameter_made_of_a_copy_leaves_it_not_unused() -> None:
    with record() as recording:
        scale = nn.Parameter(torch.tensor(2.65, device=GPU))
        (scale * torch.ones(3, device=GPU)).sum().backward()
    assert [copy.used for copy in recording.graph.transfers if copy.kind == "HtoD"] == [None]


def test_every_copy_is_timed_and_none_is_left_over() -> None:
    everything()
    with record(clock=True) as recording:
        everything()
        torch.ones(1, requires_grad=True).sum().backward()
    copies = [copy for copy in recording.graph.transfers if copy.nbytes]
    assert len(copies) > 10
    assert [copy for copy in copies if not copy.seconds] == []
    assert [copy.operation for copy in copies if copy.operation.startswith("Memcpy")] == []


def waits(run: Callable[[], object]) -> int:
    """Return the number of PyTorch's warnings about calls that wait for the device."""
    torch.cuda.synchronize()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            run()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("called a synchronizing" in str(each.message) for each in said)


@pytest.mark.parametrize("steps", [1, 3])
def test_a_recording_waits_for_the_device_only_when_its_block_has_ended(
    steps: int, tmp_path: Path
) -> None:
    model = nn.Sequential(nn.Linear(300, 500), nn.ReLU(), nn.Linear(500, 1)).to(GPU)
    x, inside = torch.randn(8, 300, device=GPU), []

    def run() -> None:
        for _ in range(steps):
            model(x).square().mean().backward()

    def recorded() -> None:
        with record(model):
            inside.append(waits(run))

    run()
    recorded()
    copies = profiled(recorded, tmp_path)
    print(f"\na block of {steps} recorded steps\n  profiler {copies}")
    assert inside == [0, 0]
    # Of each backward its gradients, and the parameters' norms; of all, what is not finite.
    assert [kind for kind, _, _ in copies] == ["DtoH"] * (2 * steps + 1)


def test_a_light_recording_waits_for_the_device_once_in_each_backward() -> None:
    model = nn.Sequential(nn.Linear(300, 500), nn.ReLU(), nn.Linear(500, 1)).to(GPU)
    x = torch.randn(8, 300, device=GPU)

    def run() -> None:
        for _ in range(2):
            model(x).square().mean().backward()

    run()
    with record(model, gradients="finite"):
        assert waits(run) == 2


def test_copies_in_forward_and_backward_are_timed_at_their_nodes() -> None:
    x = torch.randn(1000, requires_grad=True)
    with record(clock=True) as recording:
        y = (x.cuda() * 2).sum().cpu()
        y.backward()
    graph = recording.graph
    found = [(c.kind, c.phase, c.nbytes, graph.nodes[c.node or 0].title) for c in graph.transfers]
    assert found == [
        ("HtoD", "forward", 4000, "to_copy"),
        ("DtoH", "forward", 4, "to_copy"),
        ("HtoD", "backward", 4, "to_copy"),
        ("DtoH", "backward", 4000, "to_copy"),
    ]
    assert all((copy.seconds or 0) > 0 for copy in graph.transfers)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two CUDA devices")
@pytest.mark.parametrize("cast", [None, torch.float64])
def test_a_copy_between_two_cards_is_what_the_profiler_saw(
    cast: torch.dtype | None, tmp_path: Path
) -> None:
    x = torch.randn(1000, device=GPU)
    x.to("cuda:1", cast)
    with record() as recording:
        theirs = profiled(lambda: x.to("cuda:1", cast), tmp_path)
        torch.ones(1, requires_grad=True).sum().backward()
    ours = recorded(recording.graph)
    print(f"\nto another card, {cast}\n  recorded {ours}\n  profiler {theirs}")
    kernel = cast is not None and torch.cuda.can_device_access_peer(0, 1)
    assert [copy[:2] for copy in ours] == (
        [copy[:2] for copy in theirs] or kernel * [("DtoD", 4000)]
    )
