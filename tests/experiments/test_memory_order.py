"""Test the experiment that changes the memory order of inputs."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphviz_torch.experiments import experiment
from tests.experiments.programs import net, recorded

pytestmark = pytest.mark.usefixtures("the_same_numbers")


def step(forward: Callable[..., Any], x: Tensor | None = None, **modules: nn.Module) -> Any:
    x = torch.randn(6, 4) if x is None else x
    return recorded(net(forward, fc=nn.Linear(4, 3), **modules), x)


def images(forward: Callable[..., Any], **modules: nn.Module) -> Any:
    return step(forward, torch.randn(6, 4, 5, 5), **modules)


def by_stride() -> Any:
    return step(lambda self, x: self.fc(x.as_strided((6, 4), (4, 1))))


class OfStorage(torch.autograd.Function):
    """A Function that doubles its input as if it were contiguous."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        flat = x.new_empty(0).set_(x.untyped_storage(), 0, (x.numel(),))
        return (2 * flat).reshape(x.shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return 2 * grad


def custom_function() -> Any:
    return step(lambda self, x: self.fc(OfStorage.apply(x)))


@torch.library.custom_op("tests::square_rows", mutates_args=())
def square_rows(x: Tensor) -> Tensor:
    """Square rows in memory order, as a kernel in C would."""
    values = (ctypes.c_float * x.numel()).from_address(x.data_ptr())
    return torch.tensor([v * v for v in values]).view(x.shape)


square_rows.register_autograd(
    lambda ctx, grad: 2 * grad * ctx.saved_tensors[0],
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


def custom_operator() -> Any:
    return step(lambda self, x: self.fc(square_rows(x)))


def flattened_by_numpy() -> Any:
    def forward(self: Any, x: Tensor) -> Tensor:
        flat = torch.from_numpy(x.detach().numpy().ravel(order="K").copy())
        return self.fc(x + flat.view(6, 4).relu())

    return step(forward)


def written_through_storage() -> Any:
    def forward(self: Any, x: Tensor) -> Tensor:
        result = torch.empty_like(x)  # it lies in memory as x does
        flat = x.new_empty(0).set_(result.untyped_storage(), 0, (x.numel(),))
        flat.copy_(x.flatten())
        return self.fc(result.sin())

    return step(forward)


def patches_of_images() -> Any:
    def forward(self: Any, x: Tensor) -> Tensor:
        h = self.conv(x).relu()
        windows = h.as_strided((6, 4, 2, 2), (4 * 25, 25, 5, 1))
        return self.fc(windows.amax((2, 3)))

    return images(forward, conv=nn.Conv2d(4, 4, 3, padding=1))


@pytest.mark.parametrize(
    ("program", "operation", "line"),
    [
        (by_stride, "as_strided", "x.as_strided("),
        (custom_function, "", "2 * flat"),
        (custom_operator, "square_rows", "square_rows(x)"),
        (flattened_by_numpy, "", "torch.from_numpy("),
        (written_through_storage, "sin", "result.sin()"),
        (patches_of_images, "as_strided", "h.as_strided("),
    ],
)
def test_what_reads_elements_in_the_order_of_memory_is_named_with_its_line(
    program: Callable[[], Any], operation: str, line: str
) -> None:
    [found] = experiment(program(), "memory_order")
    assert found.finding is not None, str(found)
    assert found.finding.rule == "memory-order"
    assert operation in found.operation
    number = int(found.where.rpartition(":")[2])
    assert line in Path(__file__).read_text().splitlines()[number - 1]


def strides_of_its_own() -> Any:
    return step(lambda self, x: self.fc(x.as_strided((6, 4), x.stride())))


def made_contiguous() -> Any:
    return step(lambda self, x: self.fc(OfStorage.apply(x.contiguous())))


def reshaped() -> Any:
    return step(lambda self, x: self.fc(x.reshape(4, 6).flatten().reshape(6, 4)))


def convolutions() -> Any:
    def forward(self: Any, x: Tensor) -> Tensor:
        return self.fc(F.max_pool2d(self.norm(self.conv(x)), 2).mean((2, 3)))

    return images(forward, conv=nn.Conv2d(4, 4, 3), norm=nn.BatchNorm2d(4))


def dropout() -> Any:
    return images(lambda self, x: self.fc(self.drop(x).mean((2, 3))), drop=nn.Dropout())


def written_where_it_lies() -> Any:
    def forward(self: Any, x: Tensor) -> Tensor:
        result = torch.empty_like(x)
        torch.mul(x, 2, out=result)
        return self.fc(result.mul_(x))

    return step(forward)


@pytest.mark.parametrize(
    "program",
    [
        strides_of_its_own,
        made_contiguous,
        reshaped,
        convolutions,
        dropout,
        written_where_it_lies,
    ],
)
def test_the_order_of_memory_does_not_matter_elsewhere(program: Callable[[], Any]) -> None:
    [found] = experiment(program(), "memory_order")
    assert found.holds is True, str(found)


def test_random_numbers_that_are_drawn_in_the_order_of_memory_are_no_finding() -> None:
    forward: Any = lambda self, x: self.fc(F.dropout(x, training=self.training))  # noqa: E731
    [found] = experiment(step(forward), "memory_order")
    assert (found.holds, found.finding) == (None, None)
    assert "random numbers" in found.message
