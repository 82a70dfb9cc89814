"""Test to which step, and to which data, each copy of data between devices belongs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import Variable

from graphviz_torch import record, simulate_accelerator
from graphviz_torch.graph import Graph
from graphviz_torch.integrations.steps import LoopSteps, due_steps

Moved = Callable[[Tensor, torch.device], Tensor]
# Ways to move a batch of 8-bit images, or of numbers, and what else a program does with the copy.
WAYS: dict[str, Moved] = {
    "to": lambda x, device: x.to(device).float(),
    "cuda": lambda x, device: x.cuda().float(),
    "with a dtype": lambda x, device: x.to(device, torch.float32),
    "scaled": lambda x, device: x.to(device) / 255,
    "flattened": lambda x, device: x.to(device).float().view(6, -1),
    "not blocking": lambda x, device: x.to(device, non_blocking=True).float(),
    "a variable": lambda x, device: Variable(x.float().cuda()),
}


def copied_bytes(graph: Graph, label: str) -> list[int | None]:
    """The bytes of each copy that made the data with this name, in the order of the copies."""
    [data] = [each for each in graph.untracked if each.label == label]
    return [copy.nbytes for copy in graph.transfers if copy.data in data.copies]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("clears", ["before the copy", "after the copy", "at the end"])
def test_each_step_has_the_copies_of_its_own_batch(way: str, clears: str) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps: list[Graph] = []
    moved: list[tuple[int, int]] = []  # bytes that the program saw arrive
    with simulate_accelerator(name="cuda") as [device]:
        loop = LoopSteps(due_steps(), lambda step, _: steps.append(step.graph))
        model.cuda()
        for _ in range(4):
            image = torch.randint(0, 9, (6, 4), dtype=torch.uint8)
            y = torch.zeros(6, dtype=torch.int64)
            if clears == "before the copy":
                optimizer.zero_grad()
            x, target = WAYS[way](image, device), y.cuda()
            # A cast to another dtype runs before the copy, unless the copy does not block.
            sent = image.nbytes if way not in ("with a dtype", "a variable") else x.nbytes
            moved.append((sent, target.nbytes))
            if clears == "after the copy":
                optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), target)
            loss.backward()
            optimizer.step()
            loss.item()
            if clears == "at the end":
                optimizer.zero_grad()
        loop.close()
    assert [(*copied_bytes(g, "x"), *copied_bytes(g, "target")) for g in steps] == moved
    kinds = [[copy.kind for copy in graph.transfers] for graph in steps]
    assert kinds == [["HtoD"] * 4 + ["DtoH"], *[["HtoD", "HtoD", "DtoH"]] * 3]


def test_parameters_that_an_optimizer_on_the_cpu_sends_back_belong_to_its_step() -> None:
    steps: list[Graph] = []
    with simulate_accelerator(name="cuda"):
        weight = torch.ones(3, device="cuda", requires_grad=True)
        master = weight.detach().cpu().requires_grad_()
        optimizer = torch.optim.SGD([master], lr=0.1)
        loop = LoopSteps(due_steps(), lambda step, _: steps.append(step.graph))
        for _ in range(3):
            x = torch.ones(3).cuda()
            (weight * x).sum().backward()
            assert weight.grad is not None
            master.grad = weight.grad.cpu()
            optimizer.step()
            weight.data.copy_(master.data)
            weight.grad = None
        loop.close()
    sent = [[copy.operation for copy in graph.transfers] for graph in steps]
    assert sent == [["cuda", "cpu", "copy_"]] * 3


def test_a_copy_in_several_stages_is_one_chain_of_copies() -> None:
    w = torch.ones(2, 2, requires_grad=True)
    with simulate_accelerator(2, name="cuda") as (first, second), record() as recording:
        x = torch.ones(5, 2).to(first).to(second)
        (x @ w.to(second)).sum().backward()
    graph = recording.graph
    assert copied_bytes(graph, "x") == [40, 40]
    [data] = graph.untracked
    made = [(copy.source, copy.target) for copy in graph.transfers if copy.data in data.copies]
    assert made == [("cpu", "sim cuda:0"), ("sim cuda:0", "sim cuda:1")]


def test_data_that_was_made_on_its_device_has_no_copies() -> None:
    w = torch.ones(2, 2, requires_grad=True)
    with simulate_accelerator(name="cuda") as [device], record() as recording:
        x = torch.ones(5, 2, device=device)
        (x @ w.to(device)).sum().backward()
    assert [each.copies for each in recording.graph.untracked] == [()]
