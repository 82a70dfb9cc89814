"""nn.DataParallel and placement by hand on simulated devices: nodes, values, divided batches."""

from __future__ import annotations

import copy
import importlib
from collections import Counter

import pytest
import torch
from torch.nn.parallel import _functions, comm

from graphviz_torch import simulate_accelerator, trace
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
    names += [(comm, "gather"), (comm, "broadcast_coalesced"), (_functions.Scatter, "forward")]
    before = [getattr(owner, name) for owner, name in names]
    outer = simulate_accelerator()
    outer.__enter__()
    with pytest.raises(KeyError, match="inside"), simulate_accelerator(2):
        raise KeyError("inside")
    assert [getattr(owner, name) for owner, name in names] != before
    outer.__exit__(None, None, None)
    assert [getattr(owner, name) for owner, name in names] == before
