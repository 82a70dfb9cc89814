"""A default picture fits a page: its size as Graphviz itself says it, on steps of real models."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from graphviz_torch import Graph, draw_graph, record, trace
from graphviz_torch.export import to_dot
from graphviz_torch.graph import Cut, Edge, Finding, Node, TensorMeta
from graphviz_torch.render.dot.legend import SIGNS
from graphviz_torch.render.drawing.drawing import Drawing
from graphviz_torch.render.drawing.steps import draw
from graphviz_torch.render.drawing.tree import Open
from graphviz_torch.render.page.sizes import sizes
from graphviz_torch.render.wording import omissions
from tests.support.drawn import Drawn
from tests.support.models import Transformer, tokens
from tests.support.recorded import trained
from tests.support.zoo import ZOO, DenseNet121, DoubleConv, UNet

F32 = (TensorMeta((2, 8), "float32", "cpu"),)
_TRANSFORMERS = ("GPT-2", "BERT", "T5", "Llama", "ViT", "CLIP")


@pytest.fixture(scope="module")
def graphs() -> dict[str, Graph]:
    return {}


def step(name: str, graphs: dict[str, Graph]) -> Graph:
    if name in _TRANSFORMERS:
        pytest.importorskip("transformers")
    if name not in graphs:
        torch.manual_seed(0)
        graphs[name] = ZOO[name]().graph
    return graphs[name]


def test_the_height_of_a_node_is_nearly_that_which_graphviz_gives_it() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    with record(model) as recording:
        (model(torch.ones(2, 4)).sum() ** 2).sin().backward()
    drawn = draw(recording.graph, {})
    laid_out = Drawn(to_dot(recording.graph)).nodes
    assert len(drawn.nodes) == 6
    for node in drawn.nodes[:-1]:  # the output has a second line around it
        assert sizes(drawn)[node][1] == pytest.approx(
            72 * float(laid_out[str(node)]["height"]), abs=3
        )


def size(svg: bytes) -> tuple[int, int]:
    found = re.search(rb'<svg width="(\d+)pt" height="(\d+)pt"', svg)
    assert found is not None
    return int(found[1]), int(found[2])


@pytest.mark.parametrize("name", ZOO)
def test_a_default_picture_fits_a_page(name: str, graphs: dict[str, Graph]) -> None:
    graph = step(name, graphs)
    drawn = draw_graph(graph).pipe("svg")
    assert isinstance(drawn, bytes)
    width, height = size(drawn)
    assert max(width, height) <= 2400
    assert max(width / height, height / width) <= 4


@pytest.mark.parametrize("name", ["ResNet-18", "GPT-2", "DenseNet-121"])
def test_every_edge_between_columns_is_drawn_in_two_parts(
    name: str, graphs: dict[str, Graph]
) -> None:
    graph = step(name, graphs)
    shown = draw(graph, {})
    found = shown.columns
    assert len(found.parts) > 1
    assert sorted(key for part in found.parts for key in part) == sorted(
        [*shown.nodes, *(~box for box in shown.boxes)]
    )
    names = {(f"g{~k}" if k < 0 else str(k)): k for part in found.parts for k in part}
    edges = {(names[a], names[b]) for a, b in Drawn(to_dot(graph)).edges if {a, b} <= names.keys()}
    assert edges == set(shown.ends)
    at = {key: i for i, part in enumerate(found.parts) for key in part}
    between: dict[tuple[int, int], set[int]] = {}
    for source, target in shown.ends:
        if at[source] != at[target]:
            between.setdefault((at[source], at[target]), set()).add(source)
    dot = to_dot(graph)
    # What alone goes on in another column has an arrow to a point there.
    points = re.findall(r"^\t(\w+) -> turn_(\w+)_(\d+):n", dot, re.M)
    assert {(names[a], int(column)) for a, _, column in points} == {
        (source, column)
        for (_, column), some in between.items()
        if len(some) == 1
        for source in some
    }
    assert {(a, column) for _, a, column in points} == {(a, column) for a, _, column in points}
    # Others have one circle, whatever they go on to; each end of such an edge has its own.
    circles = re.findall(r"^\t(\w+) -> out_(\w+)", dot, re.M)
    ends = re.findall(r"^\tin_([a-z0-9]+)_(\w+) -> (\w+)", dot, re.M)
    assert sorted(circles) == sorted({(source, source) for source, _, _ in ends})
    assert all(target == named for _, named, target in ends)
    assert points or circles


def test_a_coarser_drawing_in_one_column_is_taken_for_one_whose_road_is_cut(
    graphs: dict[str, Graph],
) -> None:
    shown = draw(step("BERT", graphs), {})
    assert len(shown.columns.parts) == 1
    assert len(shown.nodes) + len(shown.boxes) > 15


def test_a_changed_drawing_tells_anew_what_follows_from_what_was_changed() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    with record(model) as recording:
        model(torch.ones(1, 2)).sum().backward()
    drawn = draw(recording.graph, {})
    assert (len(drawn.ends), [*drawn.alone.values()]) == (2, ["0", "1"])
    changed = drawn.having(edges=(), lines=(), tree=Open(None))
    assert (changed.ends, changed.alone) == ([], {})


def test_a_group_with_a_finding_is_opened_before_others() -> None:
    with record(model := Transformer(8)) as recording:
        model(tokens()).sum().backward()
    graph = recording.graph
    inside = [n.id for n in graph.nodes if n.scope.startswith("layers.5.mlp") and not n.leaf]
    about = Finding("made-up", "warning", "look here", nodes=(inside[0],))
    plain = draw(graph, {"fold": False, "limit": 30})
    pointed = draw(graph, {"fold": False, "limit": 30, "findings": [about]})
    assert inside[0] not in plain.nodes
    assert inside[0] in pointed.nodes


def test_an_operation_alone_in_its_module_has_its_name_and_no_frame() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4)), nn.ReLU())
    with record(model) as recording:
        model(torch.ones(2, 4)).sum().backward()
    drawn = Drawn(to_dot(recording.graph))
    assert not drawn.clusters
    labels = [node["label"] for node in drawn.nodes.values()]
    assert any("<B>0.0" in label and "addmm" in label for label in labels)
    assert any("<B>1" in label and "relu" in label for label in labels)


def test_more_is_drawn_on_demand(graphs: dict[str, Graph]) -> None:
    graph = step("ResNet-50", graphs)
    usual = draw(graph, {})
    for options in ({"fold": False}, {"limit": 1000}, {"depth": 9}):
        more = draw(graph, options)  # type: ignore[arg-type]
        assert len(more.nodes) > len(usual.nodes)


def test_blocks_alike_are_drawn_once_before_they_are_drawn_closed() -> None:
    class Block(nn.Sequential):
        pass

    def drawn(count: int) -> Drawing:
        model = nn.Sequential(*(Block(nn.Linear(4, 4), nn.Tanh()) for _ in range(count)))
        with record(model) as recording:
            model(torch.ones(2, 4)).sum().backward()
        return draw(recording.graph, {})

    few, many = drawn(6), drawn(40)
    operations = sum(not node.leaf and node.title != "t" for node in many.graph.nodes)
    assert operations == 2 * 40 + 1 < 100  # not so many that they are folded in any case
    assert (len(few.nodes), few.boxes, few.tree.repeated) == (13, [], {})
    assert (len(many.nodes), many.boxes) == (3, [])
    assert [len(family) for family in many.tree.repeated.values()] == [40]


@pytest.mark.parametrize("count", [60, 100, 101, 150, 300, 1000])
def test_however_many_blocks_there_are_a_page_has_many_boxes_with_their_names(count: int) -> None:
    nodes, edges = [], []
    for i in range(9 * count):
        operation = "norm" if i % 9 else f"op{i}"  # each block differs from the others
        scope = f"{i // 9}.{i % 9 // 3}"
        nodes.append(Node(i, operation, F32, operation=operation, module=scope, scope=scope))
        edges += [Edge(i - 1, i)] if i else []
    nodes.append(Node(9 * count, "sum", F32, operation="sum"))
    edges.append(Edge(9 * count - 1, 9 * count))
    graph = Graph(tuple(nodes), tuple(edges), ((9 * count, 0),))
    drawn = draw(graph, {})
    assert drawn.groups is not None
    assert drawn.columns.fits
    assert 35 <= len(drawn.nodes) + len(drawn.boxes) <= 250
    assert 9 * count in drawn.nodes  # the output is not in one of the boxes
    blocks: list[int] = []
    for box in drawn.boxes:
        title, part = drawn.title(box), drawn.groups.groups[box]
        assert re.fullmatch(r"(\d+-\d+|\d+(\.\d)?)", title)
        inside = {int(graph.nodes[i].scope.partition(".")[0]) for i in drawn.contents[box].nodes}
        first, last = (title.partition(".")[0].split("-") * 2)[:2]
        assert part.kind == "module" or inside == {*range(int(first), int(last) + 1)}
        blocks += inside
    blocks += [int(graph.nodes[i].scope.partition(".")[0]) for i in drawn.nodes[:-1]]
    assert {*blocks} == {*range(count)}
    path = re.search(r"module='(.*?)'", omissions(drawn))
    assert path is not None
    assert draw(graph, {"module": path[1]}).nodes


@pytest.mark.parametrize("limit", [20, 30])
def test_a_closed_run_of_operations_opens_by_the_name_that_the_picture_says(limit: int) -> None:
    names = [f"op{i}" for i in range(120)]
    nodes = [Node(i, name, F32, operation=name) for i, name in enumerate(names)]
    edges = [Edge(i - 1, i) for i in range(1, 120)]
    graph = Graph(tuple(nodes), tuple(edges), ((119, 0),))
    path = re.search(r"module='(operations (\d+)-(\d+))'", omissions(draw(graph, {"limit": limit})))
    assert path is not None
    inside = draw(graph, {"module": path[1]})
    assert inside.nodes == [*range(int(path[2]) - 1, int(path[3]))]  # op0 is the first
    with pytest.raises(ValueError, match="module='operations 5-6' is not in the graph"):
        draw(graph, {"module": "operations 5-6"})


def test_a_loss_without_modules_is_more_than_a_few_closed_groups() -> None:
    loss = nn.functional.cross_entropy(
        DenseNet121()(torch.randn(2, 3, 64, 64)), torch.tensor([1, 2])
    )
    drawn = draw(trace(loss), {})
    assert drawn.columns.fits
    assert len(drawn.nodes) + len(drawn.boxes) > 20


@pytest.mark.parametrize("limit", [90, 60, 20])
def test_a_picture_of_fewer_things_fits_a_page_too(limit: int) -> None:
    images = torch.randn(2, 3, 64, 64)
    graph = trace(DenseNet121()(images))  # without modules: 913 nodes that read each other
    shown = draw(graph, {"limit": limit})
    assert shown.columns.fits
    assert len(shown.nodes) + len(shown.boxes) <= limit


def test_the_legend_explains_the_numbers_and_the_scissors_of_a_picture_that_has_them() -> None:
    rows = [Node(i, "SinBackward0", F32, operation="sin") for i in range(61)]
    graph = Graph(tuple(rows), tuple(Edge(i, i + 1) for i in range(60)), ((60, 0),))
    detached = Graph(graph.nodes, graph.edges, graph.outputs, cuts=(Cut("detach", None, 0, (5,)),))
    chains = [Edge(i, i + 2) for i in range(59)]  # two, that are added up at the end
    both = Graph(tuple(rows), (*chains, Edge(59, 60)), ((60, 0),))
    for drawn, numbered, cut in (
        (graph, False, False),
        (detached, False, True),
        (both, True, False),
    ):
        dot = to_dot(drawn, fold=False)
        assert ("\tout_" in dot) == (SIGNS["jump"] in dot) == numbered
        assert ("style=dashed arrowhead=none" in dot) == (SIGNS["cut"] in dot) == cut
    small = to_dot(Graph(graph.nodes[:3], graph.edges[:2], ((2, 0),)))
    assert not any(text in small for text in SIGNS.values())


class SmallUNet(nn.Module):
    """Two levels, each with a skip."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.mid = DoubleConv(3, 4), DoubleConv(4, 8), DoubleConv(8, 16)
        self.pool = nn.MaxPool2d(2)
        self.up_two, self.back_two = nn.ConvTranspose2d(16, 8, 2, 2), DoubleConv(16, 8)
        self.up_one, self.back_one = nn.ConvTranspose2d(8, 4, 2, 2), DoubleConv(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one = self.one(x)
        two = self.two(self.pool(one))
        mid = self.mid(self.pool(two))
        two = self.back_two(torch.cat([two, self.up_two(mid)], 1))
        return self.back_one(torch.cat([one, self.up_one(two)], 1))


def test_the_skips_of_a_unet_are_arrows_in_one_column() -> None:
    drawn = draw(trained(SmallUNet(), torch.randn(2, 3, 16, 16)), {})
    assert drawn.columns.fits
    assert len(drawn.columns.parts) == 1
    long = [ends for ends in drawn.ends if len(_road(drawn, *ends)) > 3]
    assert len(long) == 2


def test_the_skips_of_a_unet_of_four_levels_in_module_lists_are_arrows_in_one_column() -> None:
    drawn = draw(trained(UNet(), torch.randn(2, 3, 32, 32)), {})
    assert drawn.columns.fits
    assert len(drawn.columns.parts) == 1
    long = [ends for ends in drawn.ends if len(_road(drawn, *ends)) > 2]
    assert len(long) == 3  # the innermost one lies in a box with what it joins


def _road(drawn: Drawing, start: int, end: int) -> list[int]:
    """The longest way from one thing to another, which an arrow between them passes."""
    ways = [_road(drawn, target, end) for one, target in drawn.ends if one == start != end]
    return [start, *max(ways, key=len, default=[])] if start == end or any(ways) else []
