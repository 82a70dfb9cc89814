"""Jobs of the page about many processes: a sample of two ranks, and what differs across ranks."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from graphviz_torch import Graph, collectives, find_across, record

from .backward import recorded_here
from .values import Opened, Ranks


class Branch(nn.Module):
    """A model in which a rank can leave a layer out."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.extra, self.last = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x: Tensor, skip: bool) -> Tensor:
        hidden = self.first(x).relu()
        result: Tensor = self.last(hidden if skip else self.extra(hidden)).sum()
        return result


def sample() -> list[Opened]:
    """What two ranks of the same model record when rank 1 leaves a layer out.

    Both are recorded here, one after the other, without communication.
    """
    ranks = []
    for skip in (False, True):
        torch.manual_seed(0)
        model = Branch()
        with record(model) as recording:
            torch.autograd.backward(model(torch.randn(3, 4), skip))
        ranks.append(recorded_here(recording.graph))
    return ranks


def ranks_of(graphs: tuple[Graph, ...]) -> Ranks:
    """What is wrong across ranks, and what each said to the others, in the order of its graph."""
    talks = [collectives(graph) for graph in graphs]
    rows = []
    for number in range(min(200, max(map(len, talks), default=0))):
        row = [("step", f"{number}")]
        for rank, talk in enumerate(talks):
            said = f"{talk[number]} · {talk[number].where}" if number < len(talk) else ""
            row.append((f"rank {rank}", said))
        rows.append(tuple(row))
    return Ranks(tuple(find_across(list(graphs))), tuple(rows))
