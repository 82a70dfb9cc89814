"""Programs with tensors of PyTorch and torchao that are not plain dense tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .steps import RAGGED, Program, Step, X, leaf_steps, mlp, steps_of


def fake() -> tuple[nn.Module, Step]:
    from torch._subclasses.fake_tensor import FakeTensorMode

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        model = mlp()

    def step() -> list[Any]:
        with mode:
            return steps_of(model, torch.ones(4, 8))()

    return model, step


def meta() -> tuple[nn.Module, Step]:
    model = mlp().to("meta")
    return model, steps_of(model, X.to("meta"))


def functional() -> tuple[None, Step]:
    def inner(x: Tensor) -> Tensor:
        y = x * 2
        y.add_(1)
        return y.square().sum()

    return leaf_steps(X.clone(), loss=torch.func.functionalize(inner))


def batched() -> tuple[nn.Module, Step]:
    model = mlp()

    def step() -> list[Any]:
        parameters = dict(model.named_parameters())

        def loss(given: Any, x: Tensor) -> Tensor:
            return torch.func.functional_call(model, given, (x,)).square().mean()

        each = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, X)
        total = torch.func.vmap(loss, (None, 0))(parameters, X).sum()
        total.backward()
        return [total, *each.values(), *(p.grad for p in model.parameters())]

    return model, step


def forward_mode() -> tuple[None, Step]:
    return leaf_steps(
        X.clone(), loss=lambda x: torch.func.jvp(torch.sin, (x,), (torch.ones_like(x),))[1].sum()
    )


def zero_tensor() -> tuple[None, Step]:
    return leaf_steps(
        X.clone(), loss=lambda x: (x + torch._efficientzerotensor(X.shape)).square().sum()
    )


def nested(layout: torch.layout) -> Program:
    def loss(x: Any) -> Any:
        return torch.nested.to_padded_tensor(x * 2, 0.0).square().sum()

    def program() -> tuple[None, Step]:
        return leaf_steps(torch.nested.nested_tensor(RAGGED, layout=layout), loss=loss)

    return program


def sparse(to: Callable[[Tensor], Tensor]) -> Program:
    def program() -> tuple[nn.Module, Step]:
        module = nn.Module()
        module.weight = nn.Parameter(to(torch.eye(8) * 3))

        def step() -> list[Any]:
            y = module.weight @ X.t()
            loss = y.square().sum()
            loss.backward()
            return [loss, module.weight.grad]

        return module, step

    return program


def embedding() -> tuple[nn.Module, Step]:
    torch.manual_seed(0)
    model = nn.Embedding(16, 4, sparse=True)
    ids = torch.tensor([[1, 2, 1], [5, 1, 2]])
    return model, steps_of(model, ids)


def mkldnn() -> tuple[None, Step]:
    return leaf_steps(X.clone(), loss=lambda x: (F.relu(x.to_mkldnn()).to_dense() * x).sum())


def freed() -> tuple[nn.Module, Step]:
    """Return a training that frees the memory of a weight while nothing needs it, as FSDP does."""
    model = mlp()
    model.register_buffer("spare", torch.ones(4))
    weight = model[0].weight
    value = weight.detach().clone()
    storage = weight.untyped_storage()
    size = storage.nbytes()

    def fill(*_: Any) -> None:
        if not storage.nbytes():
            storage.resize_(size)
            with torch.no_grad():
                weight.data.copy_(value)

    def step() -> list[Any]:
        loss = model(X).square().mean()
        storage.resize_(0)
        model.spare.untyped_storage().resize_(0)
        loss.register_hook(fill)
        loss.backward()
        return [loss, *(p.grad for p in model.parameters())]

    return model, step


def quantised(prepare: Callable[[nn.Module], object]) -> Program:
    def program() -> tuple[nn.Module, Step]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
        prepare(model)
        x = torch.linspace(-1, 1, 128).reshape(2, 64).requires_grad_()

        def step() -> list[Any]:
            loss = model(x).square().mean()
            loss.backward()
            return [loss, x.grad, *(p.grad for p in model.parameters())]

        return model, step

    return program


def int8_weights(model: nn.Module) -> None:
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    quantize_(model, Int8WeightOnlyConfig())


def int8_training(model: nn.Module) -> None:
    from torchao.prototype.quantized_training import int8_weight_only_quantized_training
    from torchao.quantization import quantize_

    quantize_(model, int8_weight_only_quantized_training())


def nf4_weights(model: nn.Module) -> None:
    from torchao.quantization.quantize_.workflows.nf4.nf4_tensor import linear_nf4, to_nf4

    def forward(layer: Any, x: Tensor) -> Any:
        return linear_nf4(x, layer.weight) + layer.bias

    for layer in model.children():
        if isinstance(layer, nn.Linear):
            weight = to_nf4(layer.weight.detach(), 64, 64)
            layer.weight = nn.Parameter(weight, requires_grad=False)
            layer.forward = partial(forward, layer)  # type: ignore[method-assign]
