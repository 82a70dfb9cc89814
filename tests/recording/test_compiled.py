"""Test record() around compiled models: no exception is raised, and no value changes."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo import guards
from torch._dynamo.utils import counters

from graphviz_torch import find, record
from graphviz_torch.recording.recording import Recording

INDUCTOR = pytest.param(
    "inductor",
    marks=pytest.mark.skipif(
        not (shutil.which("g++") or shutil.which("clang++")),
        reason="inductor makes C++ of a model, and there is no compiler for it",
    ),
)


@pytest.fixture(autouse=True)
def nothing_compiled_stays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # Dynamo measures the guards of each region for a log, and empties the CPU's caches before.
    monkeypatch.setattr(guards, "profile_guard_manager", lambda *_: 0.0, raising=False)
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.relu(self.linear(self.norm(x)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(), nn.Dropout(0.2), Block())
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(x))


def train(
    backend: str, how: str, recorded: bool, steps: int = 2
) -> tuple[list[Tensor], list[Recording]]:
    """Return losses, gradients and random states of some steps, and the recording of each."""
    torch.manual_seed(0)
    model = Net()
    compiled: nn.Module = model
    if how == "whole":
        compiled = torch.compile(model, backend=backend)  # type: ignore[assignment]
    elif how == "in place":
        model.compile(backend=backend)
    else:
        model.blocks[0] = torch.compile(model.blocks[0], backend=backend)  # type: ignore[assignment]
    values, recordings = [], []
    for _ in range(steps):
        model.zero_grad()
        with record(model) if recorded else nullcontext() as recording:
            loss = compiled(torch.randn(4, 8)).square().mean()
            loss.backward()
        if recording is not None:
            recordings.append(recording)
        values += [loss.detach(), *(p.grad.clone() for p in model.parameters())]
    return [*values, torch.get_rng_state()], recordings


@pytest.mark.parametrize("how", ["whole", "in place", "a block"])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", INDUCTOR])
def test_a_compiled_model_gives_the_same_bits_with_and_without(backend: str, how: str) -> None:
    plain, _ = train(backend, how, recorded=False)
    torch._dynamo.reset()
    recorded, recordings = train(backend, how, recorded=True)
    assert all(torch.equal(a, b) for a, b in zip(plain, recorded, strict=True))
    for recording in recordings:
        graph = recording.graph
        regions = [node for node in graph.nodes if node.operation == "compiled"]
        # With "eager" the operations are autograd's own, and there is no region.
        assert len(regions) == (0 if backend == "eager" else 1)
        assert [node.order for node in graph.nodes].count(None) == 0
        assert not [finding for finding in find(graph) if finding.severity != "info"]


@pytest.mark.parametrize("how", ["whole", "in place"])
def test_a_model_that_is_recorded_step_by_step_is_compiled_once(how: str) -> None:
    _, recordings = train("aot_eager", how, recorded=True, steps=12)
    assert counters["frames"]["total"] == 1
    notes = [[node.note for node in recording.graph.nodes] for recording in recordings]
    assert {row.count("torch.compile region") for row in notes} == {1}


def test_what_asks_whether_it_is_compiled_is_compiled_once() -> None:
    @torch.compile(backend="eager", fullgraph=True)
    def where(x: Tensor) -> Tensor:
        return x + 1 if torch.compiler.is_compiling() and not torch.compiler.is_exporting() else x

    x = torch.ones(2)
    bare = where(x).tolist()
    assert bare == [2, 2] or torch.__version__ < "2.12"  # which say that an export runs
    for _ in range(2):
        with record():
            assert where(x).tolist() == bare
    assert where(x).tolist() == bare
    assert counters["stats"]["unique_graphs"] == 1


def test_a_compiled_module_warns_of_others_hooks_and_not_of_ours() -> None:
    compiled = torch.compile(nn.Linear(2, 2), backend="eager")
    with record(), warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled(torch.ones(1, 2))
    hook = nn.modules.module.register_module_forward_hook(lambda *_: None)
    with hook, record(), pytest.warns(UserWarning, match="global hooks"):
        compiled(torch.ones(1, 2))


def test_none_of_our_functions_is_compiled_where_a_container_is_left_as_it_is() -> None:
    # nn.Sequential is PyTorch's own: its forward is not compiled, those of its blocks are.
    model = nn.Sequential(Block(), Block())
    model.compile(backend="aot_eager")
    with record(model) as recording:
        loss = model(torch.ones(2, 8)).sum()
        loss.detach()
        loss.backward()
    assert counters["frames"]["total"] <= 2  # from 2.15 on the container is one
    regions = [node for node in recording.graph.nodes if node.note == "torch.compile region"]
    assert [node.module for node in regions] in (["0", "1"], [""])


def square_gradient(x: Tensor) -> None:
    assert x.grad is not None
    x.grad.square_()


METHODS_IN_PYTHON: dict[str, Callable[[Tensor], Tensor]] = {
    "unflatten": lambda x: x.unflatten(0, (2, 2)),
    "dim_order": lambda x: x * len(x.dim_order()),
    "register_post_accumulate_grad_hook": lambda x: (
        x.register_post_accumulate_grad_hook(square_gradient),
        x * 3,
    )[1],
    "register_hook": lambda x: (x.register_hook(lambda gradient: gradient * 5), x * 3)[1],
    "split": lambda x: x.split(2)[0],
    "__rsub__": lambda x: 1 - x,
}


@pytest.mark.parametrize("name", METHODS_IN_PYTHON)
def test_a_method_that_pytorch_writes_in_python_is_compiled_as_without(name: str) -> None:
    def run(recorded: bool) -> list[list[float]]:
        torch._dynamo.reset()
        x = torch.arange(1.0, 5.0, requires_grad=True)
        compiled = torch.compile(METHODS_IN_PYTHON[name], backend="eager", fullgraph=True)
        with record() if recorded else nullcontext():
            y = compiled(x)
            y.sum().backward()
        assert x.grad is not None
        return [y.tolist(), x.grad.tolist()]

    assert run(recorded=True) == run(recorded=False)
