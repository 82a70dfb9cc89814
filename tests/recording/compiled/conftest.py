"""Fixtures of tests that ask for the graph of a compiled model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from torch._inductor import config


@pytest.fixture(autouse=True)
def kernels_of_pytorch() -> Iterator[None]:
    """Let inductor call PyTorch's kernels: compiling its own in C++ takes a minute.

    The tests beside this folder train with kernels of inductor.
    """
    known = hasattr(config, "fallback_by_default")  # not in the oldest PyTorch
    with config.patch({"fallback_by_default": True} if known else {}):
        yield
