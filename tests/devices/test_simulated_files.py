"""Test files, data loaders, child processes and indices on simulated devices."""

from __future__ import annotations

import copy
import io
import multiprocessing
import pickle
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from graphviz_torch import record, simulate_accelerator


def saved(value: Any) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return file


@pytest.mark.parametrize("as_text", [False, True])
def test_a_file_is_loaded_onto_the_device_that_is_asked_for(as_text: bool) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    file = saved({"state": model.state_dict(), "step": [torch.tensor(3.0)], "name": "mine"})
    with simulate_accelerator() as [device]:
        location = str(device) if as_text else device
        found = torch.load(file, map_location=location, weights_only=True)
        assert found["name"] == "mine"
        assert found["step"][0].device == device
        assert {tensor.device for tensor in found["state"].values()} == {device}
        assert found["state"]._metadata == model.state_dict()._metadata
        there = copy.deepcopy(model).to(device)
        nn.init.zeros_(there[0].weight)
        there.load_state_dict(found["state"])
        assert torch.equal(there[0].weight.cpu(), model[0].weight)
        x = torch.load(saved(torch.ones(2, requires_grad=True)), device)
        assert (x.is_leaf, x.requires_grad, (x * 2).tolist()) == (True, True, [2, 2])
        whole = torch.load(saved(model), map_location=location, weights_only=False)
        assert whole(torch.ones(3, 2, device=device)).shape == (3, 2)
        assert torch.load(saved(torch.ones(1)), map_location="cpu").device.type == "cpu"
        assert torch.load(saved(torch.ones(1))).device.type == "cpu"
    assert torch.load(saved(torch.ones(1)), map_location="meta").is_meta


def test_a_data_loader_pins_and_its_batches_are_copied_from_pinned_memory() -> None:
    loader = DataLoader(TensorDataset(torch.arange(6.0).view(3, 2)), batch_size=2, pin_memory=True)
    weight = torch.ones(2, requires_grad=True)
    with simulate_accelerator() as [device], warnings.catch_warnings():
        warnings.simplefilter("error")
        with record() as recording:
            for (batch,) in loader:
                assert batch.is_pinned()
                loss = (batch.to(device, non_blocking=True) * weight.to(device)).sum()
            loss.backward()
    assert loader.pin_memory
    first, _, *_ = recording.graph.transfers
    assert (first.pinned, first.non_blocking, first.nbytes) == (True, True, 16)
    if not torch.accelerator.is_available():
        with pytest.warns(UserWarning, match="no accelerator is found"):
            assert not next(iter(loader))[0].is_pinned()


def test_a_pickle_opens_anywhere() -> None:
    with simulate_accelerator() as [device]:
        weight = nn.Linear(2, 2).to(device).weight
        data = pickle.dumps(weight)
    read = pickle.loads(data)
    assert (read.device.type, isinstance(read, nn.Parameter)) == ("cpu", True)
    assert torch.equal(read, weight.cpu())


def compute(x: Tensor, queue: Any) -> None:
    with simulate_accelerator() as [device]:
        queue.put((x * torch.full((2,), 3.0, device=device)).tolist())


def test_a_forked_process_computes_on_the_device_as_its_parent_does() -> None:
    context = multiprocessing.get_context("fork")
    with simulate_accelerator() as [device]:
        queue = context.SimpleQueue()
        process = context.Process(target=compute, args=(torch.ones(2, device=device), queue))
        process.start()
        assert queue.get() == [3, 3]
        process.join()
    assert process.exitcode == 0


INDICES: dict[str, Any] = {
    "a range": range(2),
    "numbers of numpy": [np.int64(2), np.int64(0)],
    "an array": np.array([True, False, True]),
    "a mask": torch.tensor([False, True, True]),
    "a list of truths": [True, False, True],
    "a tuple with a list": (None, ..., [0, 1]),
    "nothing": [],
}


@pytest.mark.parametrize("name", INDICES)
def test_what_is_on_the_cpu_indexes_a_tensor_on_the_device(name: str) -> None:
    index = INDICES[name]
    expected = torch.arange(3.0)
    with simulate_accelerator() as [device]:
        x = torch.arange(3.0, device=device)
        assert torch.equal(x[index].cpu(), expected[index])
        x[index] = 7.0
        expected[index] = 7.0
        assert torch.equal(x.cpu(), expected)


def test_numbers_on_two_devices_are_not_joined() -> None:
    with simulate_accelerator() as [device]:
        one = torch.ones((), device=device)
        for join in (torch.stack, torch.hstack):
            with pytest.raises(RuntimeError, match="sim:0 and cpu!"):
                join([one, torch.ones(())])
