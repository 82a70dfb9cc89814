"""Test nn.DataParallel and manual placement on simulated devices."""

from __future__ import annotations

import copy
import importlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.cuda import comm
from torch.nn.parallel import _functions

from graphviz_torch import record, simulate_accelerator, trace
from graphviz_torch.devices import batch_division


def mlp() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))


# The tutorial: 100 samples in batches of 30, on 2, 3 and 8 devices. It prints these sizes.
TUTORIAL = {2: ([15, 15], [5, 5]), 3: ([10, 10, 10], [4, 4, 2]), 8: ([4] * 7 + [2], [2] * 5)}


@pytest.mark.parametrize("count", TUTORIAL)
def test_the_tutorials_table_is_read_from_graphs(count: int) -> None:
    with simulate_accelerator(count) as devices:
        model = torch.nn.DataParallel(mlp().to(devices[0]), device_ids=devices)
        divisions = []
        for batch in torch.randn(100, 5).split(30):
            divisions.append(batch_division(trace(model(batch.to(devices[0])), names={})))
    sizes = [[size for _, size in division] for division in divisions]
    assert sizes == [TUTORIAL[count][0]] * 3 + [TUTORIAL[count][1]]
    assert [device for device, _ in divisions[0]] == [f"sim:{k}" for k in range(count)]


def test_the_graph_shows_pytorchs_own_nodes_and_every_replicas_device() -> None:
    with simulate_accelerator(3) as devices:
        model = torch.nn.DataParallel(mlp().to(devices[0]), device_ids=devices)
        x = torch.randn(6, 5, requires_grad=True)
        graph = trace(model(x).sum(), names={})
    count = Counter(node.name for node in graph.nodes)
    assert count["ScatterBackward"] == count["BroadcastBackward"] == count["GatherBackward"] == 1
    assert count["AddmmBackward0"] == 6
    linear = [node.device for node in graph.nodes if node.name == "AddmmBackward0"]
    assert Counter(linear) == {"sim:0": 2, "sim:1": 2, "sim:2": 2}


@pytest.mark.parametrize("start", ["cpu", "sim:0"])
def test_gradients_equal_those_of_the_bare_module(start: str) -> None:
    bare, x = mlp(), torch.randn(7, 5)
    with simulate_accelerator(3) as devices:
        model = torch.nn.DataParallel(copy.deepcopy(bare).to(devices[0]), device_ids=devices)
        given = x.clone().to("cpu" if start == "cpu" else devices[0]).requires_grad_()
        out = model(given)
        assert out.device == devices[0]
        out.square().sum().backward()
        grads = [p.grad.cpu() for p in model.parameters()] + [given.grad.cpu()]
    x.requires_grad_()
    expected = bare(x)
    expected.square().sum().backward()
    assert torch.allclose(out.cpu(), expected)
    for a, b in zip(grads, [*(p.grad for p in bare.parameters()), x.grad], strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def test_without_device_ids_it_takes_every_simulated_device_and_one_is_just_the_module() -> None:
    with simulate_accelerator(2) as devices:
        model = torch.nn.DataParallel(mlp().to(devices[0]))
        assert model.device_ids == [64, 65]
        model(torch.randn(4, 5))
        alone = torch.nn.DataParallel(mlp(), device_ids=devices[1:])
        graph = trace(alone(torch.randn(4, 5).to(devices[1])), names={})
        assert {node.device for node in graph.nodes} == {"sim:1"}
        with pytest.raises(ValueError, match="has no GatherBackward"):
            batch_division(graph)


def test_the_functional_form_evaluation_complex_numbers_and_the_cpu_as_output() -> None:
    with simulate_accelerator(2) as devices:
        model = mlp().to(devices[0])
        x = torch.randn(4, 5)
        with torch.no_grad():
            out = torch.nn.parallel.data_parallel(model, x, devices)
            assert torch.allclose(out, model(x.to(devices[0])))
        z = torch.randn(4, 3, dtype=torch.complex64)
        parts = torch.nn.parallel.scatter(z, devices)
        assert [tuple(part.shape) for part in parts] == [(2, 3), (2, 3)]
        assert torch.equal(torch.nn.parallel.gather(parts, "cpu"), z)


def test_a_module_on_the_wrong_device_is_refused_by_pytorch() -> None:
    with simulate_accelerator(2) as devices:
        model = torch.nn.DataParallel(mlp(), device_ids=devices)
        with pytest.raises(RuntimeError, match="module must have its parameters and buffers"):
            model(torch.randn(4, 5))


def test_placement_by_hand_shows_one_copy_between_each_two_devices() -> None:
    with simulate_accelerator(2) as (a, b):
        first, second = torch.nn.Linear(5, 4).to(a), torch.nn.Linear(4, 2).to(b)
        y = second(first(torch.randn(3, 5).to(a)).relu().to(b)).cpu()
        y.sum().backward()
        graph = trace(y, names={})
    crossings = [
        (graph.nodes[edge.source].device, graph.nodes[edge.target].device)
        for edge in graph.edges
        if graph.nodes[edge.source].device != graph.nodes[edge.target].device
    ]
    assert crossings == [("sim:0", "sim:1"), ("sim:1", "cpu")]


def test_pytorchs_own_functions_are_back_after_the_last_block_also_after_an_exception() -> None:
    module = importlib.import_module("torch.nn.parallel.data_parallel")
    names = [(module, n) for n in ("_get_available_device_type", "parallel_apply")]
    names += [(_functions.Scatter, "forward"), (torch._C, "_scatter"), (torch._C, "_gather_out")]
    before = [getattr(owner, name, None) for owner, name in names]
    outer = simulate_accelerator()
    outer.__enter__()
    with pytest.raises(KeyError, match="inside"), simulate_accelerator(2):
        raise KeyError("inside")
    assert all(
        getattr(owner, name) != old for (owner, name), old in zip(names, before, strict=True)
    )
    outer.__exit__(None, None, None)
    assert [getattr(owner, name, None) for owner, name in names] == before


X = torch.arange(10.0).reshape(5, 2)


def empty(*rows: int) -> list[torch.Tensor]:
    """Return empty tensors on the devices 0, 1, ..., with these numbers of rows."""
    return [torch.empty(n, 2, device=f"cuda:{i}") for i, n in enumerate(rows)]


def each(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """Return the tensors on the devices 0, 1, ..."""
    return [tensor.cuda(i) for i, tensor in enumerate(tensors)]


# A call of each function as its documentation describes it: what it returns on which devices.
CALLS: dict[str, tuple[Callable[[], Any], Sequence[tuple[torch.Tensor, str]]]] = {
    "scatter": (
        lambda: comm.scatter(X, [0, "cuda:1"]),
        [*zip(X.chunk(2), ("cuda:0", "cuda:1"), strict=True)],
    ),
    "scatter in chunks": (
        lambda: comm.scatter(X, [1, 0], chunk_sizes=[1, 4]),
        [(X[:1], "cuda:1"), (X[1:], "cuda:0")],
    ),
    "scatter along a dimension": (
        lambda: comm.scatter(X.cuda(), [0, 1], dim=1),
        [(X[:, :1], "cuda:0"), (X[:, 1:], "cuda:1")],
    ),
    "scatter into tensors": (
        lambda: comm.scatter(X, out=empty(2, 3)),
        [(X[:2], "cuda:0"), (X[2:], "cuda:1")],
    ),
    "broadcast": (lambda: comm.broadcast(X, [0, 1]), [(X, "cuda:0"), (X, "cuda:1")]),
    "broadcast into tensors": (
        lambda: comm.broadcast(X, out=empty(5, 5)),
        [(X, "cuda:0"), (X, "cuda:1")],
    ),
    "broadcast_coalesced": (
        lambda: [t for part in comm.broadcast_coalesced([X, X + 1], [0, 1]) for t in part],
        [(X, "cuda:0"), (X + 1, "cuda:0"), (X, "cuda:1"), (X + 1, "cuda:1")],
    ),
    "gather": (lambda: [comm.gather(each(X[:2], X[2:]), destination=1)], [(X, "cuda:1")]),
    "gather on the current device": (lambda: [comm.gather(each(X[:2], X[2:]))], [(X, "cuda:0")]),
    "gather on the CPU": (
        lambda: [comm.gather(each(X[:2], X[2:]), destination="cpu")],
        [(X, "cpu")],
    ),
    "gather into a tensor": (
        lambda: [comm.gather(each(X[:, :1], X[:, 1:]), dim=1, out=torch.empty(5, 2))],
        [(X, "cpu")],
    ),
    "reduce_add": (lambda: [comm.reduce_add(each(X, 3 * X), 1)], [(4 * X, "cuda:1")]),
    "reduce_add_coalesced": (
        lambda: comm.reduce_add_coalesced([each(X)[:1], [X.cuda(1)]], 0),
        [(2 * X, "cuda:0")],
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_functions_of_torch_cuda_comm_return_their_tensors_on_their_devices(name: str) -> None:
    call, expected = CALLS[name]
    with simulate_accelerator(2, name="cuda"):
        found = [(tensor.cpu(), str(tensor.device)) for tensor in call()]
    assert [device for _, device in found] == [device for _, device in expected]
    assert all(torch.equal(a, b) for (a, _), (b, _) in zip(found, expected, strict=True))


def test_copies_of_torch_cuda_comm_are_recorded() -> None:
    with simulate_accelerator(2, name="cuda"), record() as recording:
        parts = comm.scatter(X, [0, 1])
        total = comm.gather(parts, destination="cpu")
        (torch.ones(2, requires_grad=True) * total).sum().backward()
    copies = [(copy.kind, copy.nbytes) for copy in recording.graph.transfers]
    assert copies == [("HtoD", 24), ("HtoD", 16), ("DtoH", 24), ("DtoH", 16)]


def test_torch_cuda_comm_raises_what_pytorch_raises() -> None:
    with simulate_accelerator(2, name="cuda"):
        with pytest.raises(AssertionError, match="input 0 is on CPU"):
            comm.reduce_add([X, X], 0)
        with pytest.raises(RuntimeError, match="same GPU with one of the tensors"):
            comm.reduce_add([X.cuda(1)], 0)
        with pytest.raises(RuntimeError, match="Exactly one of 'devices' and 'out'"):
            comm.broadcast(X)
