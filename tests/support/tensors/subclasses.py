"""Tensor subclasses: with memory, without, and with other tensors inside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .steps import Program, Step, X, leaf_steps, mlp


class Wrapper(torch.Tensor):
    """A wrapper defined by a user, which does not reveal where its elements are."""

    inside: Tensor
    calls: list[str] = []  # noqa: RUF012

    @staticmethod
    def __new__(cls, inside: Tensor) -> Wrapper:
        made: Wrapper = torch.Tensor._make_wrapper_subclass(
            cls, inside.shape, dtype=inside.dtype, requires_grad=inside.requires_grad
        )
        made.inside = inside
        return made

    def __init__(self, inside: Tensor) -> None:
        super().__init__()

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        from torch.utils._pytree import tree_map

        cls.calls.append(str(func))

        def unwrap(value: Any) -> Any:
            return value.inside if isinstance(value, cls) else value

        result = func(*tree_map(unwrap, args), **tree_map(unwrap, kwargs or {}))
        if func is torch.ops.aten.detach.default or not isinstance(result, Tensor):
            return cls(result) if isinstance(result, Tensor) else result
        return cls(result)


class Offset(Wrapper):
    """A subclass without memory that has a storage offset."""

    @staticmethod
    def __new__(cls, inside: Tensor) -> Offset:
        made: Offset = torch.Tensor._make_wrapper_subclass(
            cls, inside.shape, inside.stride(), 16, dtype=inside.dtype
        )
        made.inside = inside
        return made


class Named(torch.Tensor):
    """A subclass with memory, created by `as_subclass`."""


class Dispatching(torch.Tensor):
    """A subclass with memory and `__torch_dispatch__`."""

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        with torch._C._DisableTorchDispatch():
            result = func(*args, **(kwargs or {}))
        kind = cls if func is torch.ops.aten.detach.default else Tensor
        return torch.Tensor._make_subclass(kind, result) if kind is cls else result


def with_parameters(wrap: Callable[[Tensor], Tensor]) -> Program:
    """Return a program whose model has wrapped parameters."""

    def program() -> tuple[nn.Module, Step]:
        model = mlp()
        for module in model:
            for name, parameter in list(module.named_parameters(recurse=False)):
                wrapped = nn.Parameter(wrap(parameter.detach().clone()))
                setattr(module, name, wrapped)

        def step() -> list[Any]:
            Wrapper.calls.clear()
            loss = model(X).square().mean()
            loss.backward()
            return [loss, *(p.grad for p in model.parameters()), list(Wrapper.calls)]

        return model, step

    return program


def two_tensors() -> tuple[nn.Module, Step]:
    from torch.testing._internal.two_tensor import TwoTensor

    return with_parameters(lambda tensor: TwoTensor(tensor, tensor.clone()))()


def logging_tensors() -> tuple[nn.Module, Step]:
    from torch.testing._internal.logging_tensor import LoggingTensor

    return with_parameters(LoggingTensor)()


def diagonals() -> tuple[None, Step]:
    from torch.testing._internal.common_subclass import DiagTensorBelow

    return leaf_steps(
        DiagTensorBelow(torch.linspace(1, 4, 4)), loss=lambda x: (x * x).sum() + x.sum()
    )
