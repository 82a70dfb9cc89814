"""Compare operators on lists of tensors on simulated devices with the same on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from graphviz_torch import record, simulate_accelerator


def test_a_list_is_copied_between_devices_each_tensor_to_where_its_target_is() -> None:
    values = [torch.tensor([1.0, 2.0]), torch.tensor([[3.0]])]
    with simulate_accelerator(2) as devices:
        there = [torch.zeros(2, device=devices[0]), torch.zeros(1, 1, device=devices[1])]
        across = [torch.zeros(2, device=devices[1]), torch.zeros(1, 1, device=devices[0])]
        back = [torch.zeros(2), torch.zeros(1, 1)]
        with record() as recording:
            torch._foreach_copy_(there, values)
            torch._foreach_copy_(across, there, non_blocking=True)
            torch._foreach_copy_(back, across)
            torch.ones(1, requires_grad=True).sum().backward()
        assert [tensor.device for tensor in across] == devices[::-1]
    assert all(torch.equal(a, b) for a, b in zip(back, values, strict=True))
    seen = [(t.source, t.target, t.nbytes, t.non_blocking) for t in recording.graph.transfers]
    assert seen == [
        ("cpu", "sim:0", 8, False),
        ("cpu", "sim:1", 4, False),
        ("sim:0", "sim:1", 8, True),
        ("sim:1", "sim:0", 4, True),
        ("sim:1", "cpu", 8, False),
        ("sim:0", "cpu", 4, False),
    ]


def test_lists_whose_devices_mix_fail_where_no_copy_is_meant() -> None:
    with simulate_accelerator() as [device]:
        first = [torch.zeros(2, device=device), torch.zeros(2, device=device)]
        with pytest.raises(RuntimeError, match="sim:0 and cpu!"):
            torch._foreach_add_(first, [torch.ones(2, device=device), torch.ones(2)])


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "Adam": lambda p: torch.optim.Adam(p, foreach=True),
    "AdamW, amsgrad": lambda p: torch.optim.AdamW(p, foreach=True, amsgrad=True),
    "SGD, momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, foreach=True, centered=True, momentum=0.5),
    "Adagrad": lambda p: torch.optim.Adagrad(p, foreach=True),
    "NAdam": lambda p: torch.optim.NAdam(p, foreach=True),
    "AdamW, fused": lambda p: torch.optim.AdamW(p, fused=True),
    "SGD, fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_over_lists_and_clipping_over_lists_train_as_on_the_cpu(name: str) -> None:
    def train(first: Any, second: Any) -> list[Tensor]:
        torch.manual_seed(0)
        a, b = nn.Linear(3, 4).to(first), nn.Linear(4, 2).to(second)
        parameters = [*a.parameters(), *b.parameters()]
        optimizer = OPTIMIZERS[name](parameters)
        for _ in range(3):
            optimizer.zero_grad()
            b(a(torch.ones(2, 3).to(first)).relu().to(second)).square().sum().backward()
            nn.utils.clip_grad_norm_(parameters, 0.5, foreach=True)
            optimizer.step()
        return [p.detach().cpu() for p in parameters]

    expected = train("cpu", "cpu")
    with simulate_accelerator(2) as devices:
        simulated = train(*devices)
    for a, b in zip(simulated, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


def test_what_was_asked_is_answered_as_before_after_the_block() -> None:
    weight = nn.Parameter(torch.ones(1, device="meta"))
    with simulate_accelerator():
        pass
    weight.grad = torch.ones(1, device="meta")
    with pytest.raises(RuntimeError, match="supported devices"):
        torch.optim.SGD([weight], fused=True).step()
    with pytest.raises(RuntimeError, match="foreach API on meta"):
        nn.utils.clip_grad_norm_([weight], 1.0, foreach=True)
