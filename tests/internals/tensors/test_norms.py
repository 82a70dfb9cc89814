"""Compare the norms of many tensors, computed together, with PyTorch's norm of each."""

from __future__ import annotations

import pytest
import torch

from graphviz_torch.internals.tensors.norms import Norms


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
