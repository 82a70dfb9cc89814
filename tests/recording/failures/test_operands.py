"""Test that operands of a failed operation have the names that the user's code gives them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from graphviz_torch import record


@dataclass
class Batch:
    """One batch of a DataLoader."""

    y: Tensor


class Model(nn.Module):
    """A model that adds a tensor of another length than its input."""

    def __init__(self, held: str) -> None:
        super().__init__()
        self.register_buffer("moving", torch.ones(3))
        self.pos = torch.ones(3)
        self.held = held

    def forward(self, x: Tensor) -> Tensor:
        return torch.add(x, getattr(self, self.held))


class Registry(dict[str, Tensor]):
    """A dict whose items cannot be listed."""

    def items(self) -> Any:
        raise ValueError("could not load")

    __iter__ = items


def labels(run: Callable[[Tensor], Tensor]) -> list[str]:
    """Return the labels of the operands if `run` fails because of their shapes."""
    x = torch.ones(4, requires_grad=True)
    with pytest.raises(RuntimeError, match="must match the size"), record() as recording:
        run(x)
    failure = recording.graph.failure
    assert failure is not None
    return [operand.label for operand in failure.operands]


@pytest.mark.parametrize("held", ["pos", "moving"])
def test_what_the_running_module_holds(held: str) -> None:
    assert labels(Model(held)) == ["x", f"self.{held}"]


@pytest.mark.parametrize(
    ("batch", "get", "expression"),
    [
        ({"y": torch.ones(3)}, lambda batch: batch["y"], "batch['y']"),
        ({2: torch.ones(3)}, lambda batch: batch[2], "batch[2]"),
        ([None, torch.ones(3)], lambda batch: batch[1], "batch[1]"),
        ((torch.ones(3),), lambda batch: batch[0], "batch[0]"),
        (Batch(torch.ones(3)), lambda batch: batch.y, "batch.y"),
        (Registry(y=torch.ones(3)), lambda batch: dict.get(batch, "y"), "batch['y']"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_item_of_the_users(batch: Any, get: Callable[[Any], Tensor], expression: str) -> None:
    def run(x: Tensor) -> Tensor:
        return torch.add(x, get(batch))

    assert labels(run) == ["x", expression]


def test_what_nobody_holds_has_no_label() -> None:
    assert labels(lambda x: torch.add(x, torch.ones(3))) == ["x", ""]


def test_a_view_that_pytorch_refuses_has_its_name_and_shape() -> None:
    base = torch.ones(3, requires_grad=True).clone()
    with torch.no_grad():
        view = base.view(3, 1)
    base.add_(1)
    with pytest.raises(RuntimeError, match="A view was created in no_grad"), record() as recording:
        view.sin()
    failure = recording.graph.failure
    assert failure is not None
    assert failure.operation == "sin"
    assert [(operand.label, operand.tensor.shape) for operand in failure.operands] == [
        ("view", (3, 1))
    ]
