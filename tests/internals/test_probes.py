"""Test numbers that are computed at once and read later, hidden from the user's modes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from graphviz_torch.internals.probes import Probe, fetch, probe, run_unobserved, unobserved


class Functions(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"the user's mode saw {func}")


class Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"the user's mode saw {func}")


def test_neither_modes_nor_autocast_nor_autograd_see_what_a_probe_computes() -> None:
    matrix = torch.full((2, 2), 1.001, requires_grad=True)
    seen: list[torch.Tensor] = []

    def product(given: torch.Tensor) -> torch.Tensor:
        seen.append(torch.mm(given, given))
        return seen[0]

    number = torch._C._autograd._get_sequence_nr()
    operators: Any = Operators
    with Functions(), operators(), torch.autocast("cpu", torch.bfloat16):
        found = probe(product, matrix)
        assert found is not None
        fetch([found])
    assert torch._C._autograd._get_sequence_nr() == number
    assert seen[0].grad_fn is None
    assert seen[0].dtype == torch.float32
    assert found.values == (matrix @ matrix).flatten().tolist()


@pytest.mark.parametrize("run", [lambda f: run_unobserved(f), lambda f: unobserved()(f)()])
def test_the_modes_are_back_after_an_exception(run: Any) -> None:
    def fail() -> None:
        raise ValueError("ours")

    with pytest.raises(ValueError, match="ours"):
        run(fail)
    with Functions(), pytest.raises(AssertionError, match="saw"):
        torch.ones(1) + 1


def test_tensors_that_cannot_be_read_are_not_probed() -> None:
    with FakeTensorMode():
        fake = torch.ones(3)
    assert probe(torch.sum, fake) is None
    assert probe(torch.sum, torch.ones(3), torch.ones(3, device="meta")) is None
    batched: list[Probe | None] = []

    def note(row: torch.Tensor) -> torch.Tensor:
        batched.append(probe(torch.sum, row))
        return row

    torch.func.vmap(note)(torch.ones(2, 3))
    assert batched == [None]
