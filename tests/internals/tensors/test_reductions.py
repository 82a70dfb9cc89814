"""Compare norms and checksums with those that PyTorch and Python compute for each tensor."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from graphviz_torch.internals.tensors.reductions import Checksums, Norms


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_the_norms_of_many_are_those_of_each_bit_by_bit(dtype: torch.dtype) -> None:
    numbers = torch.Generator().manual_seed(0)
    shapes = [(1,), (7,), (8,), (33,), (300,), (8, 8), (3, 5), (16, 3, 3, 3), (512,), (5000,)]
    given = [
        (torch.randn(shape, generator=numbers) * 10 ** (i - 2)).to(dtype)
        for i in range(5)
        for shape in (*shapes, (), (0,))
    ]
    given += [given[5].t(), torch.randn(9)[::2].to(dtype)]
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    expected = [torch.linalg.vector_norm(each, dtype=wide).item() for each in given]
    found = Norms(dict(enumerate(given))).fetch()
    assert [found[i].norm for i in range(len(given))] == expected


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
