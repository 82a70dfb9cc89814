"""Compare autocast on simulated devices with PyTorch's lists, dtypes and losses."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing._internal.autocast_test_lists import AutocastTestLists

from graphviz_torch import record, simulate_accelerator
from graphviz_torch.devices.simulated import autocast
from graphviz_torch.devices.simulated.tensor import AUTOCAST

HALF, FLOAT = torch.float16, torch.float32


@pytest.fixture
def cuda() -> Iterator[torch.device]:
    with simulate_accelerator(name="cuda"):
        yield torch.device("cuda:0")


def kernels() -> set[str]:
    """Return the operators that PyTorch casts on CUDA."""
    names = torch._C._dispatch_get_all_op_names()
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return {name for name in names if name.startswith("aten::") and has(name, AUTOCAST)}


def test_the_lists_have_every_operator_that_pytorch_casts() -> None:
    casts = {name.removeprefix("aten::") for name in kernels()}
    assert casts <= autocast.policies().keys()
    added = autocast.policies().keys() - casts
    if torch.__version__.startswith("2.13"):  # older versions cast fewer
        assert added == {*autocast.RECURRENT.split()}


def test_each_operator_of_pytorchs_own_lists_has_the_dtype_that_its_test_expects(
    cuda: torch.device,
) -> None:
    lists = AutocastTestLists(cuda)
    functions, layers, methods = torch, torch._C._nn, torch.Tensor
    rows = [
        *((functions, HALF, row) for row in lists.torch_fp16 if not (len(row) == 3 and row[2])),
        *((functions, FLOAT, row) for row in lists.torch_fp32),
        *((functions, FLOAT, row) for row in lists.torch_need_autocast_promote),
        *((layers, HALF, row) for row in lists.nn_fp16),
        *((layers, FLOAT, row) for row in lists.nn_fp32),
        *((functions, row[2], row) for row in lists.torch_expect_builtin_promote),
        *((methods, row[2], row) for row in lists.methods_expect_builtin_promote),
        *((methods, HALF, row) for row in lists.methods_fp16),
        *((methods, FLOAT, row) for row in lists.methods_fp32),
    ]
    assert len(rows) > 100
    wrong = {}
    with torch.autocast("cuda"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for owner, expected, (name, args, *keywords) in rows:
            if name.startswith("cudnn") or name == "equal":  # no kernel on the CPU; no tensor
                continue
            given = keywords[0] if keywords and isinstance(keywords[0], dict) else {}
            found = (getattr(owner, name, None) or getattr(torch.Tensor, name))(*args, **given)
            first = found[0] if isinstance(found, (tuple, list)) else found
            if first.dtype != expected:
                wrong[name] = first.dtype
    assert wrong == {}


def sdpa(x: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(x, x, x)


def by_lstm(x: torch.Tensor) -> torch.Tensor:
    return nn.LSTM(4, 4).cuda()(x[0])[0]


@pytest.mark.parametrize(
    ("call", "dtype"),
    [
        (lambda x: x @ x.mT, HALF),
        (lambda x: F.linear(x, x[0, 0]), HALF),
        (lambda x: torch.einsum("bhij,bhkj->bhik", x, x), HALF),
        (sdpa, HALF),
        (by_lstm, HALF),
        (lambda x: F.relu(x.half()), HALF),
        (lambda x: x.half() + x, FLOAT),
        (lambda x: x.half().softmax(-1), FLOAT),
        (lambda x: x.half().softmax(-1, dtype=torch.float16), HALF),
        (lambda x: F.layer_norm(x.half(), (4,)), FLOAT),
        (lambda x: x.half().norm(), FLOAT),
        (lambda x: x.half().norm(dim=-1), FLOAT),
        (lambda x: x.half().sum(), FLOAT),
        (lambda x: x.half().mean(), HALF),
        (lambda x: F.mse_loss(x.half(), x.half()), FLOAT),
        (lambda x: x.double() @ x.double().mT, torch.float64),
        (lambda x: torch.cross(x[..., :3], x[..., 1:].half(), dim=-1), FLOAT),
    ],
)
def test_a_result_has_the_dtype_that_the_documentation_of_autocast_says(
    cuda: torch.device, call: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype
) -> None:
    x = torch.randn(2, 1, 3, 4, device=cuda)
    with torch.autocast("cuda", dtype=torch.float16):
        assert call(x).dtype == dtype
    with torch.autocast("cuda", enabled=False):
        assert (x @ x.mT).dtype == FLOAT


def test_binary_cross_entropy_is_refused_and_its_form_with_logits_is_not(
    cuda: torch.device,
) -> None:
    x, target = torch.rand(3, device=cuda), torch.ones(3, device=cuda)
    with torch.autocast("cuda"):
        with pytest.raises(RuntimeError, match="unsafe to autocast"):
            F.binary_cross_entropy(x, target)
        assert F.binary_cross_entropy_with_logits(x.half(), target).dtype == FLOAT


def losses(device: str) -> list[float]:
    """Train three steps under autocast, of operators that both devices cast in the same way."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.Tanh())
    model.append(model[2]).append(nn.Linear(16, 2))  # one layer is called twice
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    x, target = torch.randn(8, 6), torch.randn(8, 2)
    found = []
    for _ in range(3):
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = F.mse_loss(model(x.to(device)), target.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def test_the_losses_are_those_of_autocast_on_the_cpu(cuda: torch.device) -> None:
    assert losses("cuda") == losses("cpu")


def test_a_weight_that_is_used_twice_is_cast_once_and_dropped_after_the_block(
    cuda: torch.device,
) -> None:
    layer = nn.Linear(4, 4, bias=False).cuda()
    x = torch.randn(2, 4, device=cuda)
    with record(layer) as recording:
        with torch.autocast("cuda"):
            y = layer(layer(x))
            assert autocast._cast_weights
        assert not autocast._cast_weights
        y.sum().backward()
    weight = next(node for node in recording.graph.nodes if node.leaf)
    casts = [edge for edge in recording.graph.edges if edge.source == weight.id]
    assert [recording.graph.nodes[edge.target].operation for edge in casts] == ["to_copy"]
    assert layer.weight.grad is not None
    assert layer.weight.grad.dtype == FLOAT


def test_pytorchs_kernels_are_back_after_the_block() -> None:
    def dump() -> list[str]:
        return [torch._C._dispatch_dump(f"aten::{name}") for name in autocast.policies()]

    before: Any = dump()
    with simulate_accelerator(name="cuda"):
        assert dump() != before
        with simulate_accelerator(2, name="cuda"):
            pass
        assert dump() != before
    assert dump() == before
