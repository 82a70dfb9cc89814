"""Test that checksums of tensors are equal for equal bits, and only for those."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from graphviz_torch.internals.tensors.checksums import Checksums

KINDS = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex64]


def checksum(tensor: Tensor) -> int | None:
    return Checksums({"": tensor}).fetch().get("")


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("shape", [(), (1,), (7,), (4, 6), (3, 5, 2)])
def test_a_copy_has_the_same_and_one_changed_element_another(
    dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    tensor = torch.randn(shape).to(dtype)
    other = tensor.clone()
    assert checksum(tensor) == checksum(other) is not None
    other.view(-1)[-1] = 0 if tensor.view(-1)[-1] else 1
    assert checksum(other) != checksum(tensor)


def test_it_is_the_sum_of_the_memory_in_words_of_64_bits() -> None:
    tensor = torch.randn(10, 4)
    with np.errstate(over="ignore"):
        total = int(tensor.numpy().view(np.int64).sum())
    assert checksum(tensor) == total * 11400714819323198485 % (1 << 64) >> 32


def test_sums_of_numbers_about_zero_are_told_apart() -> None:
    found = [checksum(torch.tensor([number])) for number in range(-3, 4)]
    assert len(set(found)) == len(found)


def test_of_what_has_gaps_or_no_memory_there_is_none() -> None:
    assert checksum(torch.ones(4, 4)[:, :2]) is None
    assert checksum(torch.ones(3, device="meta")) is None
    assert checksum(torch.ones(3, 1).expand(3, 5)) is None


@pytest.mark.parametrize("start", [1, 2, 3])
def test_a_part_of_a_storage_has_that_of_its_copy_wherever_it_begins(start: int) -> None:
    part = torch.randn(9)[start:]
    assert checksum(part) == checksum(part.clone()) is not None
