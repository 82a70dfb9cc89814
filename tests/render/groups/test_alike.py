"""Test which blocks are folded as equal: those with the same computation."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby

import pytest
import torch
from torch import Tensor, nn

from graphviz_torch import Graph, record, trace
from graphviz_torch.export import to_dot, to_mermaid
from graphviz_torch.render.drawing.steps import draw
from graphviz_torch.render.groups.groups import group
from graphviz_torch.render.labels import TIMES


class Apply(nn.Module):
    """A block that computes a function of its input and of a weight."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.full((2, 4, 8), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x * self.weight)


def conv(dilation: int) -> nn.Module:
    return nn.Conv1d(4, 4, 3, padding=dilation, dilation=dilation)


def in_runs(model: nn.Module, *inputs: Tensor, **options: object) -> list[int]:
    """How many blocks of a chain follow each other that are drawn as one."""
    with record(model) as recording:
        model(*inputs).sum().backward()
    drawing = draw(recording.graph, {"fold": True, "depth": 0})
    assert drawing.groups is not None
    boxes = sorted(drawing.boxes, key=lambda box: drawing.groups.groups[box].span)  # type: ignore[union-attr]
    return [len(drawing.tree.represented_groups.get(box, (box,))) for box in boxes]


def same_results(blocks: list[nn.Module], x: Tensor) -> list[int]:
    """How many blocks follow each other that give the same result for the same weights."""
    results = []
    for block in blocks:
        for parameter in block.parameters():
            nn.init.constant_(parameter, 0.3)
        torch.manual_seed(0)
        results.append(block(x).detach().numpy().tobytes())
    return [len(list(run)) for _, run in groupby(results)]


BLOCKS = {
    "an exponent": [Apply(lambda x, p=p: x**p) for p in (2, 2, 3, 3, 3, 4)],
    "a factor": [Apply(lambda x, k=k: x * k) for k in (1.5, 1.5, 2.5)],
    "a dimension": [Apply(lambda x, d=d: x.softmax(d)) for d in (1, 1, 2, 2)],
    "a shift": [Apply(lambda x, n=n: x.roll(n, -1)) for n in (0, 0, 2, 2)],
    "a diagonal": [Apply(lambda x, n=n: x.tril(n)) for n in (0, 0, 1)],
    "a dilation": [nn.Sequential(conv(d), nn.ReLU()) for d in (1, 2, 2, 4, 8, 8)],
    "a dropout": [nn.Sequential(conv(1), nn.Dropout(p)) for p in (0.1, 0.1, 0.3)],
    "nothing": [nn.Sequential(conv(2), nn.ReLU(), nn.Dropout(0.1)) for _ in range(5)],
}


@pytest.mark.parametrize("what", BLOCKS)
def test_blocks_are_drawn_as_one_where_the_same_weights_give_the_same_results(what: str) -> None:
    x = torch.linspace(-1, 1, 64).reshape(2, 4, 8)
    blocks = BLOCKS[what]
    assert in_runs(nn.Sequential(*blocks), x) == same_results(blocks, x)


def test_of_sixty_powers_each_is_drawn_for_itself() -> None:
    model = nn.Sequential(*(Apply(lambda x, p=p: x ** (2 + p / 100)) for p in range(60)))
    with record(model) as recording:
        model(torch.ones(2, 4, 8)).sum().backward()
    drawing = draw(recording.graph, {})
    assert drawing.fold
    assert not drawing.tree.represented_groups
    assert f"{TIMES}60" not in to_mermaid(recording.graph)


class Steps(nn.Module):
    """Steps along the rows of what comes in. Each takes its row itself, or gets it."""

    def __init__(self, row: Callable[[Tensor, int], Tensor], *, inside: bool) -> None:
        super().__init__()
        self.row, self.inside = row, inside
        for t in range(6):
            self.add_module(f"step{t}", Step(row if inside else lambda row, _: row, t))

    def forward(self, x: Tensor) -> Tensor:
        x, h = x * 2, torch.zeros(2, 3)
        for t, step in enumerate(self.children()):
            h = step(x if self.inside else self.row(x, t), h)
        return h


class Step(nn.Module):
    def __init__(self, row: Callable[[Tensor, int], Tensor], t: int) -> None:
        super().__init__()
        self.row, self.t = row, t

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        return (h + self.row(x, self.t)).tanh()


WAYS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "x[t]": lambda x, t: x[t],
    "x[-t]": lambda x, t: x[-1 - t],
    "x.select": lambda x, t: x.select(0, t),
    "x[t:t + 1]": lambda x, t: x[t : t + 1].sum(0),
    "x.narrow": lambda x, t: x.narrow(0, t, 1).mean(0),
    "x.as_strided": lambda x, t: x.as_strided((2, 3), (3, 1), 6 * t),
    "x.unbind": lambda x, t: x.unbind(0)[t],
    "x.split": lambda x, t: x.split(1)[t].sum(0),
}


@pytest.mark.parametrize("way", WAYS)
def test_steps_that_read_one_row_each_are_alike_however_they_take_it(way: str) -> None:
    x = torch.linspace(-1, 1, 36).reshape(6, 2, 3).requires_grad_()
    assert in_runs(Steps(WAYS[way], inside=True), x) == [6]
    with record(model := Steps(WAYS[way], inside=False)) as recording:
        model(x).sum().backward()
    cells = [part for part in group(recording.graph).groups if part.kind == "module"]
    assert [part.like for part in cells] == [cells[0].id] * 6


def test_layers_whose_weights_are_cut_out_of_one_stacked_tensor_are_alike() -> None:
    class Layer(nn.Module):
        def forward(self, x: Tensor, weights: Tensor, t: int) -> Tensor:
            return (x @ weights[t]).relu()

    class Stacked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.Parameter(torch.ones(8, 3, 3))
            for t in range(8):
                self.add_module(f"layer{t}", Layer())

        def forward(self, x: Tensor) -> Tensor:
            weights = self.weights * 1
            for t, layer in enumerate(self.children()):
                x = layer(x, weights, t)
            return x

    assert in_runs(Stacked(), torch.ones(2, 3)) == [8]


def test_a_place_to_read_from_is_not_how_far_apart_the_rows_are() -> None:
    blocks = [Apply(lambda x, n=n: x[..., : 2 * n : n]) for n in (1, 2)]
    x = torch.ones(2, 4, 8, requires_grad=True)
    both = nn.ModuleList(blocks)
    with record(both) as recording:
        (blocks[0](x).sum() + blocks[1](x).sum()).backward()
    first, second = (part for part in group(recording.graph).groups if not part.children)
    assert second.like == second.id != first.id


def test_modules_of_two_classes_that_compute_the_same_are_not_alike() -> None:
    class Other(Apply):
        pass

    model = nn.Sequential(*(kind(torch.relu) for kind in (Apply, Apply, Other, Other, Other)))
    assert in_runs(model, torch.ones(2, 4, 8)) == [2, 3]


@pytest.mark.parametrize(
    ("names", "runs"),
    [
        (("layer1", "layer2", "layer10"), [3]),
        (("encoder", "decoder", "head"), [1, 1, 1]),
        (("enc1", "enc2", "dec1"), [2, 1]),
    ],
)
def test_modules_alike_are_one_where_their_names_differ_in_a_number(
    names: tuple[str, ...], runs: list[int]
) -> None:
    model = nn.Sequential()
    for name in names:
        model.add_module(name, Apply(torch.relu))
    assert in_runs(model, torch.ones(2, 4, 8)) == runs


def test_of_a_trace_the_attributes_count_that_autograd_keeps() -> None:
    def steps(powers: list[int]) -> Graph:
        y = torch.ones(3, requires_grad=True)
        for p in powers:
            y = (y**p).sin().exp()
        return trace(y.sum())

    same = draw(steps([2] * 60), {"fold": True, "limit": 20})
    # The first reads the leaf, and so is a block of its own.
    assert [len(family) for family in same.tree.represented_groups.values()] == [59]
    assert not draw(steps([*range(2, 62)]), {"fold": True, "limit": 20}).tree.represented_groups


class Mixture(nn.Module):
    """Each expert on the rows that are its own, its result put where they came from."""

    def __init__(self, rows: list[list[int]], way: str, *, hidden: int = 12) -> None:
        super().__init__()
        self.rows, self.way = rows, way
        self.router = nn.Linear(6, len(rows))
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(6, hidden), nn.ReLU(), nn.Linear(hidden, 6)) for _ in rows
        )

    def forward(self, x: Tensor) -> Tensor:
        weights = self.router(x).softmax(-1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            rows = torch.tensor(self.rows[i], dtype=torch.long)
            if len(rows) and self.way == "out[rows] +=":
                out[rows] += expert(x[rows]) * weights[rows, i, None]
            elif len(rows):
                out = out.index_add(0, rows, expert(x[rows]) * weights[rows, i, None])
        return out + x


ROUTED = {
    "each row to one of four": [[0, 4, 9], [1, 11], [2, 3, 5, 6, 7], [8, 10]],
    "each row to two of four": [[0, 1, 2, 3], [0, 1, 4], [2, 5, 6, 7, 8], [3, 4, 5, 6, 7, 8]],
    "one of four gets none": [[0, 4, 9, 11], [1, 2], [], [3, 5, 6, 7, 8, 10]],
    "one of eight gets none": [[0, 1], [1, 2], [3, 0], [4, 5, 6], [], [7, 8], [9, 10], [11, 4]],
}


@pytest.mark.parametrize("way", ["out[rows] +=", "index_add"])
@pytest.mark.parametrize("routed", ROUTED)
def test_experts_are_drawn_as_one_on_however_many_rows_each(routed: str, way: str) -> None:
    rows = ROUTED[routed]
    with record(model := Mixture(rows, way)) as recording:
        model(torch.randn(12, 6, requires_grad=True)).sum().backward()
    drawing = draw(recording.graph, {})
    many = [len(some) for some in rows if some]
    assert [len(family) for family in drawing.tree.represented_groups.values()] == [len(many)]
    (frame,) = drawing.tree.represented_groups
    title = f"experts.0 … {len(rows) - 1}  {TIMES}{len(many)}, side by side"
    assert drawing.title(frame) == title
    axis = f"[{min(many)}…{max(many)}, "
    for text in (to_dot(recording.graph), to_mermaid(recording.graph).replace("#91;", "[")):
        assert f"f32{axis}12]" in text  # the first layer of an expert
        assert "f32[12, 6]" in text  # what all of them give
    leaves = [node.leaf for node in drawing.contents[frame].inside]
    assert leaves.count("parameter") == 4 * len(many)
    every = draw(recording.graph, {"fold": False})
    assert not every.tree.represented_groups
    assert "…" not in to_dot(recording.graph, fold=False)


def test_experts_of_two_widths_are_not_alike() -> None:
    model = Mixture(ROUTED["each row to one of four"], "index_add")
    wide = Mixture([[1, 2]], "", hidden=24).experts[0]
    model.experts[2] = wide
    with record(model) as recording:
        model(torch.ones(12, 6)).sum().backward()
    assert not draw(recording.graph, {"fold": True}).tree.represented_groups


@pytest.mark.parametrize(("grown", "times"), [("keys", 6), ("keys and queries", 1)])
def test_steps_over_a_growing_sequence_are_alike_while_one_axis_grows(
    grown: str, times: int
) -> None:
    class Attention(nn.Module):
        def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
            return (queries @ keys.T).softmax(-1).sum()

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for t in range(6):
                self.add_module(f"step{t}", Attention())

        def forward(self, x: Tensor) -> Tensor:
            count = 1 if grown == "keys" else None
            return torch.stack(
                [step(x[: count or t], x[:t]) for t, step in enumerate(self.children(), 1)]
            ).sum()

    x = torch.ones(9, 4, requires_grad=True)
    with record(model := Decoder()) as recording:
        model(x * 1).backward()
    steps = [part for part in group(recording.graph).groups if part.name.startswith("step")]
    assert [part.like for part in steps].count(steps[0].id) == times
