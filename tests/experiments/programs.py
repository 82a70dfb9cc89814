"""Small programs for each experiment: faulty ones, and similar ones without a fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphviz_torch import record

Step = Callable[[], None]


def net(forward: Callable[..., Any], **modules: nn.Module) -> nn.Module:
    """Return a module with these submodules and this forward, whose lines are in this file."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, module in modules.items():
                self.add_module(name, module)

    Net.forward = forward
    return Net()


def recorded(model: nn.Module, *args: Any, targets: Tensor | None = None) -> Any:
    """Return a recording of one step; with targets, the loss is their cross entropy."""
    with record(model, experiments=True) as recording:
        output = model(*args)
        output = output[0] if isinstance(output, tuple) else output
        if targets is None:
            output.sum().backward()
        else:
            F.cross_entropy(output.flatten(0, -2), targets.flatten()).backward()
    return recording


def classified(forward: Callable[..., Any], x: Tensor, **modules: nn.Module) -> Any:
    """Return a step of a classifier of 3 classes; the first dimension is the samples."""
    return recorded(net(forward, **modules), x, targets=torch.arange(len(x)) % 3)


def predicted(forward: Callable[..., Any], shift: int = 1, length: int = 8, **modules: Any) -> Any:
    """Return a step of a token model: 3 sequences, 11 words, targets shifted by a number."""
    tokens = torch.randint(0, 11, (3, length + 2))
    model = net(forward, embed=nn.Embedding(11, 8), head=nn.Linear(8, 11), **modules)
    return recorded(model, tokens[:, :length], targets=tokens[:, shift : length + shift])


def attention(x: Tensor, mask: Tensor | None) -> Tensor:
    """Return attention with one head and without weights."""
    scores = x @ x.transpose(1, 2) / 3
    if mask is not None:
        scores = scores.masked_fill(mask, float("-inf"))
    return scores.softmax(-1) @ x


def later(x: Tensor) -> Tensor:
    """Return a mask that is True where a position comes after another one."""
    return torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
