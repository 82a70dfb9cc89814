"""Record programs whose backward fails, and find marked lines in programs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from graphviz_torch import Graph, record

CHANGED = "modified by an inplace operation"


def line(program: Callable[..., Any], mark: str) -> str:
    """Return the line of a program whose comment contains `mark`, such as "train.py:41"."""
    lines, start = inspect.getsourcelines(program)
    (found,) = [start + i for i, text in enumerate(lines) if text.rstrip().endswith(f"# {mark}")]
    return f"{Path(inspect.getfile(program)).name}:{found}"


def failing(program: Callable[[], Any], said: str, **options: Any) -> Graph:
    """Record a program that raises PyTorch's error `said`, and return the graph."""
    recording = record(**options)
    with pytest.raises(RuntimeError, match=said), recording:
        program()
    return recording.graph


def leaf() -> Tensor:
    return torch.randn(3, 3, requires_grad=True)
