"""Test blocks that are drawn as one: the figures, links and colors are those of all."""

from __future__ import annotations

import math
import re
from graphlib import TopologicalSorter

import pytest
import torch
from torch import nn

from graphviz_torch import record
from graphviz_torch.export import to_dot, to_mermaid
from graphviz_torch.graph import Finding, GradientStats, TensorMeta
from graphviz_torch.graph.units import bytes_text
from graphviz_torch.render import labels
from graphviz_torch.render.drawing.steps import draw
from graphviz_torch.render.style import COLORS, NONFINITE
from graphviz_torch.render.wording import edge_label
from tests.support.drawn import lines, named, visible
from tests.support.models import MLP
from tests.support.recorded import blocks, trained

F32 = TensorMeta((3,), "float32", "cpu")


def test_blocks_drawn_as_one_never_feed_what_they_read() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))
            self.norm, self.cell = nn.LayerNorm(8), nn.LSTMCell(8, 8)

        def forward(self, h: torch.Tensor) -> torch.Tensor:
            states = [h := self.norm(h + block(h)) for block in self.blocks]
            now = torch.zeros(2, 8), torch.zeros(2, 8)
            for state in states:
                now = self.cell(state, now)
            return now[0]

    drawn = visible(trained(Net(), torch.ones(2, 8)), fold=True, limit=1000)
    assert drawn.tree.represented_groups
    users = TopologicalSorter[int]()
    for source, target in drawn.ends:
        users.add(target, source)
    users.prepare()  # raises for a circle


class Collecting(nn.Module):
    """A model that joins the results of all its modules."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(4, 4) for _ in range(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = []
        for part in self.parts:
            x = part(x)
            found.append(x)
        return torch.cat(found)


def test_what_folded_blocks_hand_on_to_one_user_is_one_edge_with_a_number() -> None:
    graph = trained(Collecting(), torch.ones(2, 4))
    (cat,) = named(graph, "cat")
    (first, *_) = named(graph, "addmm")
    drawn = visible(graph, fold=True)
    assert [(line.source, line.target, line.times) for line in drawn.merged_edges] == [
        (first, cat, 5)
    ]
    assert [(edge.source, edge.target) for edge in drawn.edges] == [(cat, cat + 1)]
    assert f'{first} -> {cat} [label=" f32[2, 4] \N{MULTIPLICATION SIGN}5 "]' in to_dot(
        graph, fold=True
    )


def test_tensors_that_folded_blocks_hand_on_are_told_with_the_range_of_their_rows() -> None:
    rows = [2, 5, 3]

    class Parts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList(MLP(4, 4, 4) for _ in rows)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat([part(x[:n]) for part, n in zip(self.parts, rows, strict=True)])

    graph = trained(Parts(), torch.ones(6, 4))
    (cat,) = named(graph, "cat")
    for options in ({"depth": 1}, {"depth": 2}):  # closed, and open
        drawn = draw(graph, {"fold": True, **options})  # type: ignore[typeddict-item]
        [line] = [line for line in drawn.merged_edges if line.target == cat]
        assert edge_label(drawn, line) == "f32[2…5, 4] \N{MULTIPLICATION SIGN}3"


class Twice(nn.Module):
    """A block of two equal parts."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(MLP(4, 4, 4) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in self.parts:
            x = x + part(x)
        return x


@pytest.mark.parametrize(
    ("depth", "times", "modules"),
    [
        (0, 4, [r"\d.*"]),
        (1, 4, [r"\d\.parts\.0.*", r"\d\.parts\.1.*"]),
        (2, 4, [rf"\d\.parts\.{part}\.fc{layer}" for part in (0, 1) for layer in (1, 2)]),
    ],
)
def test_all_figures_of_a_folded_block_are_those_of_all_its_repeats(
    depth: int, times: int, modules: list[str]
) -> None:
    torch.manual_seed(0)
    graph = trained(nn.Sequential(*(Twice() for _ in range(4))), torch.ones(2, 4))
    graph = graph.annotate(seconds={node.id: float(1 << node.id % 50) for node in graph.nodes})
    drawing = visible(graph, depth=depth, fold=True)
    closed = [drawing.contents[number] for number in drawing.boxes]
    expected = set()
    for pattern in modules:
        inside = [node for node in graph.nodes if re.fullmatch(pattern, node.module)]
        norms = [g.norm for node in inside for g in node.grad_outputs if g is not None]
        expected.add(
            (
                times,
                len(inside),
                sum(math.prod(n.outputs[0].shape) for n in inside if n.leaf == "parameter"),
                (min(norms), max(norms)),
                sum(node.saved_bytes for node in inside),
                sum(node.seconds for node in inside),
            )
        )
    assert {(each.times, len(each.inside), *each.totals) for each in closed} == expected


def test_a_folded_block_is_coloured_by_the_gradients_of_all_its_repeats() -> None:
    graph = trained(nn.Sequential(*(Twice() for _ in range(4))), torch.ones(2, 4))
    last = next(node.id for node in graph.nodes if node.module == "3.parts.1.fc2")
    spoilt = graph.annotate(grad_outputs={last: (GradientStats(1.0, 1.0, 0.0, 0.0, nan=1),)})
    for depth in range(3):
        assert NONFINITE[0] not in to_dot(graph, depth=depth, fold=True, color_by="gradient")
        dot = to_dot(spoilt, depth=depth, fold=True, color_by="gradient")
        assert dot.count(f'fillcolor="{NONFINITE[0]}"') == 1


class Fan(nn.Module):
    """Four modules side by side; the input of the third is read outside too."""

    def __init__(self) -> None:
        super().__init__()
        self.arms = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

    def forward(self, *xs: torch.Tensor) -> torch.Tensor:
        ys = [arm(x) for arm, x in zip(self.arms, xs, strict=True)]
        return torch.stack(ys).sum() + (xs[2] * 3).sum()


def test_an_input_of_a_block_that_is_not_drawn_is_named_where_else_it_is_read() -> None:
    a, b, c, d = (torch.ones(2, 4, requires_grad=True) for _ in range(4))
    with record(model := Fan()) as recording:
        model(a, b, c, d).backward()
    graph = recording.graph
    (leaf,) = [node.id for node in graph.nodes if node.label == "c"]
    dot = to_dot(graph, fold=True, findings=[Finding("rule-of-c", "error", "", nodes=(leaf,))])
    assert f"from_{named(graph, 'mul')[0]} [label=<" in dot
    assert "from c #" in dot
    assert "rule-of-c" in lines(dot, named(graph, "addmm")[0])


@pytest.mark.parametrize("chain", [True, False])
def test_blocks_drawn_as_one_say_where_they_are_not_linked_in_sequence(chain: bool) -> None:
    class Linked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            ys = [self.parts[0](x.relu())]
            for part in self.parts[1:]:
                ys.append(part(ys[-1 if chain else 0]))
            return torch.stack(ys)

    graph = trained(Linked(), torch.ones(2, 4, requires_grad=True))
    dot = to_dot(graph, fold=True, depth=1)
    assert "parts.0 … 3  \N{MULTIPLICATION SIGN}4" in dot
    assert (", with edges between them" in dot) is not chain


def test_an_open_block_that_is_drawn_for_others_says_the_figures_of_all() -> None:
    graph = blocks(12)
    norms = [s.norm for n in graph.nodes if n.scope for s in n.grad_outputs if s is not None]
    drawing = draw(graph, {"fold": True})
    (fold,) = [n for n in drawing.tree.framed_groups if n in drawing.tree.represented_groups]
    total = drawing.contents[fold]
    inside = [node for node in graph.nodes if node.module]
    assert (len(total.inside), total.totals.elements) == (len(inside), 12 * 2 * (16 + 4))
    assert total.totals.gradients == (min(norms), max(norms))
    assert total.totals.saved_bytes == sum(node.saved_bytes for node in inside)
    said = f"all 12: {len(inside)} nodes, 480 parameters"
    options = {"fold": True, "detail": "gradients"}
    assert said in to_dot(graph, **options)
    assert said in to_mermaid(graph, **options).replace("#58;", ":")


def test_a_closed_block_that_is_drawn_for_others_says_the_figures_of_all() -> None:
    graph = blocks(12)
    inside = [node for node in graph.nodes if node.module]
    norms = [s.norm for n in inside for s in n.grad_outputs if s is not None]
    options = {"fold": True, "depth": 0, "detail": "gradients"}
    said = to_dot(graph, **options)
    assert f"all 12: {len(inside)} nodes, 480 parameters" in said
    assert f"grad norm {labels.number(min(norms))} to {labels.number(max(norms))}" in said
    saved = bytes_text(sum(node.saved_bytes for node in inside))
    assert f"saved {saved}" in said
    drawing = draw(graph, {**options, "color_by": "saved"})
    (box,) = drawing.boxes
    assert drawing.shading.values[~box] == f"saved {saved}"


def test_a_closed_box_in_a_block_drawn_for_others_says_that_its_figures_are_those_of_all() -> None:
    graph = trained(nn.Sequential(*(MLP(4, 4, 4) for _ in range(4))), torch.ones(2, 4))
    drawing = visible(graph, fold=True, depth=1)
    (frame,) = drawing.tree.represented_groups
    inside = [box for box in drawing.boxes if drawing.tree.paths[~box] == (frame,)]
    assert inside
    options = {"fold": True, "depth": 1, "detail": "gradients"}
    for text in (to_dot(graph, **options), to_mermaid(graph, **options)):
        said = re.findall(r"all 4(?::|#58;) (\d+) nodes", text)
        counts = [len(drawing.contents[key].nodes) for key in (frame, *inside)]
        assert sorted(map(int, said)) == sorted(counts)
    colored = visible(graph, fold=True, depth=1, color_by="saved")
    for box in inside:
        nodes = [
            n for n in graph.nodes if re.fullmatch(rf"\d\.fc{colored.title(box)[-1]}", n.module)
        ]
        saved = sum(node.saved_bytes for node in nodes)
        assert colored.shading.values[~box] == f"saved {bytes_text(saved)}"


def test_a_loop_says_the_range_over_its_steps_and_what_goes_from_one_to_the_next() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = nn.RNNCell(3, 4), nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            state, made = torch.zeros(2, 4), []
            self.states = []
            for at in x:
                state = self.cell(at, state)
                state.retain_grad()
                self.states.append(state)
                made.append(self.head(state))
            return torch.stack(made)

    torch.manual_seed(0)
    net = Net()
    with record(net) as recording:
        net(torch.randn(20, 2, 3)).square().sum().backward()
    norms = [state.grad.norm().item() for state in net.states]
    span = f"grad norm {labels.number(min(norms))} to {labels.number(max(norms))}"
    dot = to_dot(recording, detail="gradients")
    [tanh] = [line for line in dot.splitlines() if "↓ goes on to the next step" in line]
    assert "cell · RNNCell(3, 4)" in tanh
    assert span in tanh
    assert dot.count("↓ goes on") == 1
    [reader] = [line for line in dot.splitlines() if "↑ reads the step before" in line]
    assert "weight_hh" in reader


def test_the_loss_that_the_last_step_of_a_loop_makes_is_drawn_as_an_output() -> None:
    layer = nn.Linear(4, 4)
    with record(layer) as recording:
        h, loss = torch.ones(2, 4), torch.zeros(())
        for _ in range(9):
            h = layer(h).tanh()
            loss = loss + h.square().mean()
        loss.backward()
    drawing = draw(recording.graph, {"fold": True})
    ((output, _),) = recording.graph.outputs
    assert output not in drawing.nodes  # its like in another step is drawn
    written = to_dot(recording.graph, fold=True)
    said = [line for line in written.splitlines() if "<B>loss</B>" in line]
    (line,) = [line for line in said if "untracked" not in line]  # the sum begins as data
    assert COLORS["output_line"][0] in line


def test_blocks_with_parameters_of_their_own_have_the_figures_of_the_first() -> None:
    dot = to_dot(blocks(30))
    assert labels.TIMES in dot
    assert "goes on to the next step" not in dot
