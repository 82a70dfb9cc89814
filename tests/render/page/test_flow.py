"""What is put in columns goes from what is read to what reads it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from graphviz_torch import record
from graphviz_torch.render.drawing.steps import draw
from graphviz_torch.render.page.flow import flow_of


class Block(nn.Module):
    """Calls a module that lies beside it between two operations of its own."""

    def __init__(self, other: nn.Module) -> None:
        super().__init__()
        self.inner, self.others = nn.Linear(4, 4), (other,)

    def forward(self, x: Tensor) -> Tensor:
        [other] = self.others
        result: Tensor = other(self.inner(x).sin()).cos()
        return result


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Linear(4, 4)
        self.block = Block(self.shared)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.block(x)
        return result


def test_what_a_module_computes_after_another_stands_below_what_it_reads_of_that() -> None:
    model = Net()
    with record(model) as recording:
        model(torch.ones(2, 4)).sum().backward()
    drawing = draw(recording.graph, {})
    keys = flow_of(drawing).keys
    titles = [recording.graph.nodes[key].title for key in keys]
    assert titles == ["addmm", "sin", "addmm", "cos", "sum"]  # as the program calls them
    assert all(keys.index(source) < keys.index(target) for source, target in drawing.ends)
