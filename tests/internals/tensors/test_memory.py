"""Test which values of a tensor may be read, for tensors with and without memory."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor

from graphviz_torch import simulate_accelerator
from graphviz_torch.internals.tensors.memory import elements, has_memory, parts, storage_bytes
from tests.support.programs import Functions, Operators
from tests.support.tensors.parallel import leave, mesh
from tests.support.tensors.subclasses import Dispatching, Named, Offset, Wrapper

ROW = torch.tensor([[0.0, 5.0], [7.0, 0.0]])
RAGGED = [torch.tensor([1.0, 2.0]), torch.tensor([3.0])]


@pytest.fixture(autouse=True, scope="module")
def group_of_one_module() -> Iterator[None]:
    """Destroy the process group that `mesh` creates at the end of this file."""
    yield
    leave()


def freed() -> Tensor:
    tensor = ROW.clone()[:, 1]  # with an offset
    tensor.untyped_storage().resize_(0)
    return tensor


def sharded() -> Tensor:
    from torch.distributed.tensor import DTensor, Shard

    # Not distributed: torch 2.8 sends the parts around, and the fake group sends nothing.
    return DTensor.from_local(ROW[:1].clone(), mesh(), [Shard(0)])


def replicated() -> Tensor:
    from torch.distributed.tensor import Replicate, distribute_tensor

    return distribute_tensor(ROW.clone(), mesh(), [Replicate()])


def awaited(completed: bool) -> Tensor:
    from torch.distributed._functional_collectives import AsyncCollectiveTensor

    tensor = AsyncCollectiveTensor(ROW.clone())
    tensor.completed = completed
    return tensor


def uncoalesced() -> Tensor:
    return torch.sparse_coo_tensor(torch.tensor([[1, 1]]), torch.tensor([2.0, 3.0]), (4,))


WHOLE = [0.0, 5.0, 7.0, 0.0]
Kind = tuple[Callable[[], Tensor], list[float], int, str]
# What may be read of each: the numbers, how many elements it has, and what of it they are of.
READABLE: dict[str, Kind] = {
    "plain": (ROW.clone, WHOLE, 4, ""),
    "a parameter": (lambda: nn.Parameter(ROW.clone()), WHOLE, 4, ""),
    "a view with an offset": (lambda: ROW[1], [7.0, 0.0], 2, ""),
    "empty": (lambda: torch.empty(0), [], 0, ""),
    "a subclass with memory": (lambda: ROW.as_subclass(Named), WHOLE, 4, ""),
    "one that dispatches": (
        lambda: torch.Tensor._make_subclass(Dispatching, ROW.clone()),
        WHOLE,
        4,
        "",
    ),
    "COO": (lambda: ROW.to_sparse(), [5.0, 7.0], 4, ""),
    "COO, not coalesced": (uncoalesced, [5.0], 4, ""),
    "CSR": (lambda: ROW.to_sparse_csr(), [5.0, 7.0], 4, ""),
    "CSC": (lambda: ROW.to_sparse_csc(), [7.0, 5.0], 4, ""),
    "nested": (lambda: torch.nested.nested_tensor(RAGGED), [1.0, 2.0, 3.0], 3, ""),
    "jagged": (
        lambda: torch.nested.nested_tensor(RAGGED, layout=torch.jagged),
        [1.0, 2.0, 3.0],
        3,
        "",
    ),
    "TwoTensor": (lambda: TwoTensor(ROW, ROW + 1), [*WHOLE, 1, 6, 8, 1], 8, "inner tensors"),
    "a DTensor": (sharded, [0.0, 5.0], 2, "local part"),
    "a DTensor that is whole": (replicated, WHOLE, 4, ""),
    "a collective that has ended": (lambda: awaited(True), WHOLE, 4, ""),
}
UNREADABLE: dict[str, Callable[[], Tensor]] = {
    "meta": lambda: ROW.to("meta"),
    "fake": lambda: FakeTensorMode().from_tensor(ROW),
    "functional": lambda: torch._to_functional_tensor(ROW.clone()),
    "zeros without memory": lambda: torch._efficientzerotensor((2,)),
    "a wrapper": lambda: Wrapper(ROW.clone()),
    "a wrapper with an offset": lambda: Offset(ROW.clone()),
    "two tensors without memory": lambda: TwoTensor(ROW.to("meta"), ROW.to("meta")),
    "COO on meta": lambda: ROW.to_sparse().to("meta"),
    "a collective that runs": lambda: awaited(False),
    "MKL-DNN": lambda: ROW.to_mkldnn(),
    "freed": freed,
    "lazy": lambda: nn.parameter.UninitializedParameter(),
}


@pytest.fixture(autouse=True)
def quiet() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of layouts that PyTorch calls experimental
        yield


@pytest.mark.parametrize("kind", READABLE)
def test_what_has_numbers_gives_plain_tensors_that_hold_them(kind: str) -> None:
    make, numbers, count, extent = READABLE[kind]
    found = elements(make())
    assert [number for one in found.tensors for number in one.flatten().tolist()] == numbers
    assert (found.numel, found.extent) == (count, extent)
    assert all(map(has_memory, found.tensors))


@pytest.mark.parametrize("kind", UNREADABLE)
def test_what_has_no_memory_gives_nothing_to_read(kind: str) -> None:
    tensor = UNREADABLE[kind]()
    if kind == "lazy":  # no element is known, so none is missing
        assert not has_memory(tensor)
        return
    assert not has_memory(tensor)
    assert elements(tensor).tensors == []


def test_what_vmap_and_grad_wrap_gives_nothing_to_read() -> None:
    def look(x: Tensor) -> Tensor:
        assert not has_memory(x)
        assert elements(x).tensors == []
        return x.sum()

    torch.func.vmap(look)(ROW)
    torch.func.grad(look)(ROW)
    torch.func.jvp(look, (ROW,), (ROW,))


@pytest.mark.parametrize("kind", [*READABLE, *UNREADABLE])
def test_nobody_sees_that_it_is_asked(kind: str) -> None:
    tensor = READABLE[kind][0]() if kind in READABLE else UNREADABLE[kind]()
    Wrapper.calls.clear()
    with Operators() as seen, Functions() as called, torch._C.DisableTorchFunction():
        elements(tensor)
        parts(tensor)
    assert (seen.calls, called.calls, Wrapper.calls) == ([], [], [])


def test_the_bytes_of_a_wrapper_are_those_of_what_it_wraps() -> None:
    assert sum(map(storage_bytes, parts(TwoTensor(ROW.clone(), ROW.clone())))) == 32
    assert sum(map(storage_bytes, parts(sharded()))) == 8


def test_a_simulated_tensor_is_read_where_it_lies() -> None:
    with simulate_accelerator() as [device]:
        found = elements(ROW.to(device))
    assert [one.tolist() for one in found.tensors] == [ROW.tolist()]
