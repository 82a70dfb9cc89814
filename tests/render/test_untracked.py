"""Test pictures of data and of calls without a node, on graphs made by hand."""

from __future__ import annotations

import re
from dataclasses import replace

import torch
from torch import nn
from torch.nn import functional as F

from graphviz_torch import Recording, draw_graph, record, to_text
from graphviz_torch.export import to_dot, to_mermaid
from graphviz_torch.graph import Edge, Graph, Node, TensorMeta, Transfer, Untracked
from graphviz_torch.render.dot.layout import layout
from graphviz_torch.render.labels import TIMES
from tests.support.drawn import Drawn

F32 = TensorMeta((2, 3), "float32", "cpu")
SCALAR = TensorMeta((), "float32", "cpu")
HOSTILE = 'a"b\\<b>&☃'


def model(**changes: str) -> Graph:
    """Image -> frozen backbone -> head -> loss <- target."""
    nodes = (
        Node(0, "AddmmBackward0", (F32,), operation="addmm", module="head", scope="head"),
        Node(1, "MseLossBackward0", (F32,), "loss", "mse_loss"),
    )
    backbone = Untracked(
        "module", "backbone", (F32,), "frozen", "backbone", "Net/ResNet", inputs=(0,), targets=(0,)
    )
    untracked = (
        Untracked("data", "image", (F32,)),
        replace(backbone, **changes),  # type: ignore[arg-type]
        Untracked(
            "data", "target", (TensorMeta((), "float32", "cpu"),), targets=(1,), values=(0.5,)
        ),
    )
    return Graph(nodes, (Edge(0, 1),), ((1, 0),), untracked=untracked)


def test_each_is_a_box_and_the_edges_go_in_the_direction_of_the_data() -> None:
    drawn = Drawn(to_dot(model()))
    assert {*drawn.edges} >= {
        ("untracked_0", "untracked_1"),
        ("untracked_1", "0"),
        ("untracked_2", "1"),
    }
    text = to_dot(model())
    assert "backbone · ResNet" in text
    assert "frozen" in text
    assert re.search(r"untracked_2 .*<B>target</B>.*f32\[\].*0\.5", text)


def test_mermaid_and_the_text_say_the_same() -> None:
    text = to_mermaid(model())
    assert {"u0 -.-> u1", "u1 -.-> n0", "u2 -.-> n1"} <= set(text.splitlines())
    lines = to_text(model(), wide=True).splitlines()
    [row] = [line.split() for line in lines if line.startswith("u1")]
    assert row == ["u1", "backbone", "·", "ResNet", "f32[2,", "3]", "frozen", "u0", "0"]


def test_what_leads_to_nothing_that_is_drawn_is_left_out() -> None:
    graph = model()
    alone = Untracked("module", "metric", (F32,), "no_grad at a.py:1", "metric", inputs=(0,))
    text = to_dot(replace(graph, untracked=(*graph.untracked, alone)))
    assert "metric" not in text


def test_a_hostile_name_is_escaped_and_the_picture_can_be_drawn() -> None:
    graph = model(label=HOSTILE, reason=HOSTILE)
    assert b"a&quot;b\\&lt;b&gt;&amp;\xe2\x98\x83" in draw_graph(graph).pipe("svg")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(3, 3).requires_grad_(False)
        self.linear = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = torch.tanh(self.linear(self.frozen(x)))
        return out


def test_a_call_in_a_closed_group_is_a_part_of_it() -> None:
    model = nn.Sequential(nn.Sequential(*(Block() for _ in range(4))), nn.Linear(3, 1))
    with record(model) as recording:
        model(torch.ones(2, 3)).sum().backward()
    boxes = [each.module for each in recording.graph.untracked if each.kind == "module"]
    assert boxes == ["0.0.frozen"]  # the others are nodes: what they take needs a gradient
    whole, closed = to_dot(recording, limit=100), to_dot(recording, depth=1)
    assert "frozen · Linear(3, 3)" in whole
    assert "frozen · Linear(3, 3)" not in closed
    [number] = re.findall(r"untracked_0 -> (g\d+)", closed)
    assert re.search(rf"\t{number} \[label=", closed)


class Cell(nn.Module):
    """Six steps, each with a sum of data."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 3))

    def forward(self, h: torch.Tensor, decay: torch.Tensor) -> torch.Tensor:
        for _ in range(6):
            h = torch.tanh(h @ self.weight) * torch.add(decay, torch.ones(2, 3))
        return h


def test_a_call_that_each_step_of_a_folded_loop_repeats_is_one_box() -> None:
    model = Cell()
    with record(model) as recording:
        model(torch.ones(2, 3), torch.full((2, 3), 0.5)).sum().backward()
    graph = recording.graph
    assert [each.label for each in graph.untracked].count("add") == 6
    boxes = re.findall(r"(?m)^\tuntracked_\d+ \[.*<B>(.*?)</B>", to_dot(graph))
    assert sorted(boxes) == [
        *("add  \N{MULTIPLICATION SIGN}6", "decay", "h", "ones  \N{MULTIPLICATION SIGN}6")
    ]
    boxes = re.findall(r"(?m)untracked_\d+ \[.*<B>(.*?)</B>", to_dot(graph, fold=False))
    assert boxes.count("add") == 6


class Positions(nn.Module):
    """A linear layer on an encoding of positions that thirty functions compute of data."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 1)

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        for _ in range(15):
            x = torch.sin(torch.mul(x, scale))
        out: torch.Tensor = self.head(x)
        return out


def test_a_long_preparation_of_data_is_one_box_between_the_data_and_the_nodes() -> None:
    model = Positions()
    with record(model) as recording:
        model(torch.ones(2, 3), torch.ones(3)).sum().backward()
    text = to_dot(recording)
    [name] = re.findall(r"(untracked_\d+) \[.*<B>mul, sin</B>.*>30 operations<", text)
    [data] = re.findall(r"(untracked_\d+) \[.*<B>x</B>", text)
    edges = {*Drawn(text).edges}
    assert (data, name) in edges
    assert {target for source, target in edges if source == name} <= {*Drawn(text).nodes}
    assert [source for source, _ in edges].count(name) == 1


class Codebook(nn.Module):
    """A layer whose result is divided by an entry of a table: seven functions find the entry."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 4)
        self.register_buffer("table", torch.ones(5, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h: torch.Tensor = self.head(x)
        found = F.one_hot((h.detach() @ self.table.T).argmax(-1), 5).float() @ self.table
        for _ in range(2):
            found = torch.abs(torch.mul(found, 3))
        return h / found


class Axes(nn.Module):
    """A layer whose result is beside a code of the position on each of three axes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        def code(position: torch.Tensor) -> torch.Tensor:
            return position.mul(2).sin().cos().tanh().abs().neg().exp()

        return torch.cat([self.layer(x), *[code(x[i : i + 1]) for i in range(3)], code(y)])


def test_equal_preparations_for_the_same_node_are_one_box_with_their_number() -> None:
    model = Axes()
    with record(model) as recording:
        model(torch.randn(3), torch.randn(3)).sum().backward()
    titles = re.findall(r"untracked_\d+ \[.*<B>(mul, sin.*?)</B>", to_dot(recording))
    assert titles == [f"mul, sin, cos, …  {TIMES}3", "mul, sin, cos, …"]


def test_a_box_of_many_functions_that_follow_a_cut_has_a_title_in_the_picture() -> None:
    model = Codebook()
    with record(model) as recording:
        model(torch.ones(2, 3)).sum().backward()
    text = to_dot(recording)
    [title] = re.findall(r"untracked_\d+ \[.*<B>(.*?)</B>.*>\d operations<", text)
    assert title.split(", ")[0] in layout(text, "svg").decode()


def test_the_name_and_the_class_of_a_long_title_are_whole_or_begin_with_an_ellipsis() -> None:
    kind, path = "TextRotaryEmbeddingOfALanguage", "a_module." * 6 + "rotary"
    for name, shown in (("rotary_embedding", "rotary_embedding"), (path, f"…{path[-39:]}")):
        row = Untracked("module", name, (F32,), module_class=kind, targets=(1,))
        nodes = (Node(0, "AddmmBackward0", (F32,)), Node(1, "MulBackward0", (F32,)))
        graph = Graph(nodes, (Edge(0, 1),), ((1, 0),), untracked=(row,))
        assert f"{shown} · {kind}" in " ".join(to_mermaid(graph).replace("<br/>", " ").split())


def test_a_box_in_a_frame_has_the_name_of_its_module_and_its_whole_class() -> None:
    block = nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 2), nn.ReLU())
    model = nn.Sequential(block, nn.Linear(2, 1))
    with record(model) as recording:
        model(torch.ones(2, 3)).sum().backward()
    assert "<B>0.0 · Dropout(0.5)</B>" in to_dot(recording)


def test_the_boxes_nearest_to_the_nodes_are_drawn_where_there_are_too_many() -> None:
    rows = [
        Untracked("function", f"f{i}", (F32,), "frozen", sources=(0,), inputs=(i - 1,) if i else ())
        for i in range(40)
    ]
    rows[-1] = replace(rows[-1], targets=(1,))
    nodes = (Node(0, "AddmmBackward0", (F32,)), Node(1, "MulBackward0", (F32,)))
    drawn = Drawn(to_dot(Graph(nodes, (Edge(0, 1),), ((1, 0),), untracked=tuple(rows))))
    boxes = [name for name in drawn.nodes if name.startswith("untracked")]
    assert boxes
    for box in boxes:  # each leads on
        assert any(source == box for source, _ in drawn.edges)


def copied(*data: int | None) -> Graph:
    """The model, whose image has the data number 7, and copies with these numbers."""
    graph = model()
    image = replace(graph.untracked[0], copies=(7,))
    copies = [
        Transfer(
            "HtoD", "cpu", "cuda:0", F32, "forward", where=f"a.py:{at}", label=f"t{at}", data=n
        )
        for at, n in enumerate(data)
    ]
    return replace(graph, untracked=(image, *graph.untracked[1:]), transfers=tuple(copies))


def test_a_box_of_data_says_between_which_devices_the_data_was_copied() -> None:
    text = to_dot(copied(7, 7))
    assert re.search(r"untracked_0 .*<B>image</B>.*cpu → cuda:0, 2 copies, 48 B", text)
    assert text.count("cpu → cuda:0") == 1
    assert "outside the graph" not in text
    assert "cuda:0, 2 copies, 48 B" in to_mermaid(copied(7, 7)).replace("#58;", ":")


def test_copies_that_neither_a_node_nor_data_shows_are_named_below_the_picture() -> None:
    told = "graph: t1 cpu → cuda:0, 24 B (a.py:1); t2 cpu → cuda:0, 24 B (a.py:2)"
    assert told in to_dot(copied(7, 1, None))
    assert "copied outside the graph" in to_mermaid(copied(7, 1, None)).replace("#58;", ":")
    assert told not in to_dot(copied(7, 1, None), explain=False)
    many = to_dot(copied(*range(6)))
    assert "t2 cpu → cuda:0, 24 B (a.py:2); and 3 more" in many.replace('<BR ALIGN="LEFT"/>', " ")


def distilled(detached: bool) -> Recording:
    """Return a step of a student; its teacher's result passes a division before the loss."""
    teacher, student = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2)), nn.Linear(3, 2)
    x = torch.randn(4, 3)
    with record() as recording:
        if detached:
            soft = teacher(x).detach()
        else:
            with torch.no_grad():
                soft = teacher(x)
        F.mse_loss(student(x), soft / 4).backward()
    return recording


def test_a_module_under_no_grad_is_one_box_between_its_data_and_its_users() -> None:
    dot = to_dot(distilled(detached=False))
    (box,) = re.findall(r"^\t(\w+) \[label=<<B>teacher · Sequential</B>.*", dot, re.MULTILINE)
    assert "f32[4, 2]" in next(line for line in dot.splitlines() if line.startswith(f"\t{box} ["))
    drawn = Drawn(dot)
    (x,) = [name for name, node in drawn.nodes.items() if "<B>x</B>" in node["label"]]
    (div,) = [name for name, node in drawn.nodes.items() if "<B>div</B>" in node["label"]]
    (loss,) = [name for name, node in drawn.nodes.items() if "mse_loss" in node["label"]]
    assert {(x, box), (box, div), (div, loss)} <= {*drawn.edges}
    assert (box, loss) not in drawn.edges
    assert re.search(rf"{box} -> {div} .*no_grad", dot)


def test_a_cut_is_on_the_way_that_its_result_takes_through_calls_without_a_node() -> None:
    recording = distilled(detached=True)
    dot = to_dot(recording)
    (line,) = [line for line in dot.splitlines() if "detach()" in line and "->" in line]
    source, target = line.split()[0], line.split()[2]
    assert target.startswith("untracked_")
    assert [edge for edge in Drawn(dot).edges if edge[0] == source] == [(source, target)]
    (line,) = [line for line in to_mermaid(recording).splitlines() if "-.-|" in line]
    assert line.split()[-1].startswith("u")


def test_a_named_view_of_a_block_that_is_not_drawn_leaves_no_text_at_its_user() -> None:
    layer = nn.Linear(3, 1)
    with record() as recording:
        values = []
        for _ in range(4):
            value = layer(torch.randn(2, 3).tanh()).squeeze(1)
            values.append(value.exp())
        torch.stack(values).sum().backward()
    assert "from value" not in to_dot(recording)


def test_a_detached_result_has_its_shape_in_the_box_of_its_module() -> None:
    generator = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    critic = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1))
    with record() as recording:
        critic(generator(torch.randn(6, 3)).detach()).mean().backward()
    dot = to_dot(recording, depth=0)
    (line,) = [line for line in dot.splitlines() if "generator · Sequential" in line]
    assert "f32[6, 2]" in line


def test_data_without_a_name_inside_a_closed_module_is_not_drawn() -> None:
    layer = nn.utils.spectral_norm(nn.Linear(3, 2))
    with record() as recording:
        nn.Sequential(layer, nn.Linear(2, 1))(torch.randn(4, 3)).mean().backward()
    assert any(not row.label for row in recording.graph.untracked)
    assert "<B>data</B>" not in to_dot(recording, depth=0)
