"""Test the names of several calls of one module."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from graphviz_torch import draw_graph, record


class Siamese(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))

    def forward(self, *inputs: Tensor) -> Tensor:
        return torch.stack([self.encoder(each) for each in inputs]).square().sum()


def test_calls_of_a_shared_module_have_the_names_of_their_data() -> None:
    left, right = torch.randn(3, 4), torch.randn(3, 4)
    model = Siamese()
    with record(model) as recording:
        model(left, right).backward()
    source = draw_graph(recording, fold=False).source
    assert "encoder(left) · Sequential" in source
    assert "encoder(right) · Sequential" in source
    assert "<B>encoder#2" not in source


def test_two_calls_on_the_same_data_keep_their_numbers() -> None:
    left = torch.randn(3, 4)
    model = Siamese()
    with record(model) as recording:
        model(left, left).backward()
    source = draw_graph(recording, fold=False).source
    assert "encoder · Sequential" in source
    assert "encoder#2 · Sequential" in source
    assert "(left)" not in source


class Refined(nn.Module):
    """A model that calls its layer on data, and then on the result together with the data."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Bilinear(4, 4, 4)

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        return self.layer(self.layer(x, x), scale)


def test_a_call_that_reads_a_result_first_is_not_named_by_the_data_beside_it() -> None:
    x, scale = torch.randn(3, 4), torch.randn(3, 4)
    model = Refined()
    with record(model) as recording:
        model(x, scale).sum().backward()
    source = draw_graph(recording, fold=False).source
    assert "layer(x)" in source
    assert "layer(scale)" not in source
    assert "layer#2" in source


def test_calls_on_results_have_the_names_of_those() -> None:
    G, D = nn.Sequential(nn.Linear(4, 6), nn.Tanh()), nn.Sequential(nn.Linear(6, 1), nn.Tanh())
    real = torch.randn(3, 6)
    with record() as recording:
        fake = G(torch.randn(3, 4))
        (D(fake.detach()).mean() + D(fake).mean() - D(real).mean()).backward()
    source = draw_graph(recording, fold=False).source
    for call in ("D(fake.detach())", "D(fake)", "D(real)"):
        assert f"{call} · Sequential" in source
