"""Test the drawing of a whole recording: each graph in a frame with its title."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from docs.sixteen import size_and_text
from graphviz_torch import Recording, draw_graph, find, record, to_html, to_text, trace
from graphviz_torch.export import to_dot, to_mermaid
from graphviz_torch.graph import Edge, Finding, Graph, Node, TensorMeta
from graphviz_torch.render.drawing.steps import draw
from graphviz_torch.render.groups.groups import group
from tests.support.drawn import HOSTILE
from tests.support.zoo import gan

F32 = (TensorMeta((3,), "float32", "cpu"),)


@pytest.fixture(scope="module")
def step() -> Recording:
    torch.manual_seed(0)
    return gan()


def named(label: str, length: int = 1) -> Graph:
    """A row of operations, the last of them with this label."""
    nodes = [Node(0, "AccumulateGrad", F32, "x", leaf="tensor")]
    nodes += [Node(i, "SinBackward0", F32, operation="sin") for i in range(1, length)]
    nodes.append(Node(length, "MulBackward0", F32, label, "mul", where="a.py:1"))
    return Graph(tuple(nodes), tuple(Edge(i, i + 1) for i in range(length)), ((length, 0),))


def recorded(*graphs: Graph) -> Any:
    return SimpleNamespace(graphs=list(graphs), graph=graphs[-1])


def test_of_backwards_from_one_line_the_last_is_drawn_and_the_footer_says_so() -> None:
    first, last = named("loss", 1), named("loss", 2)
    source = draw_graph(recorded(first, first, last)).source
    assert "This is the last of 3 backwards from one output; recording.graphs has all." in source
    assert "the last of" not in draw_graph(recorded(last)).source


def inner_steps(*, second_order: bool) -> tuple[Recording, Tensor]:
    """Three steps of plain gradient descent, and the backward of an outer loss behind them."""
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    x = torch.randn(4, 3)
    with record(model) as recording:
        fast = dict(model.named_parameters())
        for _ in range(3):
            inner = functional_call(model, fast, (x,)).square().mean()
            made = torch.autograd.grad(inner, list(fast.values()), create_graph=second_order)
            fast = {name: w - 0.1 * g for (name, w), g in zip(fast.items(), made, strict=True)}
        loss = functional_call(model, fast, (x,)).square().mean()
        loss.backward()
    return recording, loss


def test_inner_steps_that_a_later_backward_goes_on_with_are_drawn_in_it_alone() -> None:
    recording, loss = inner_steps(second_order=True)
    assert [graph.step.is_inner_step for graph in recording.graphs] == [True] * 3 + [False]
    source = draw_graph(recording).source
    assert "3 calls of autograd.grad are part of this graph." in source
    assert "the last of" not in source
    shown = draw_graph(recording).graph
    assert len(shown.nodes) == len(trace(loss).nodes)
    # Each call of the model is a group of its own: no arrow goes up.
    calls = {node.scope.partition(".")[0] for node in shown.nodes if node.title == "addmm"}
    assert calls == {"", "#2", "#3", "#4"}
    drawing = draw(shown, {})
    assert all(drawing.place(source) < drawing.place(target) for source, target in drawing.ends)


def test_inner_steps_of_first_order_are_graphs_of_their_own() -> None:
    recording, _ = inner_steps(second_order=False)
    assert not any(graph.step.is_inner_step for graph in recording.graphs)
    for graph in recording.graphs:
        assert {node.scope for node in graph.nodes if node.title == "addmm"} == {""}
    assert "autograd.grad" not in draw_graph(recording).source


def test_a_gan_has_a_frame_for_each_loss_with_its_nodes_inside(step: Recording) -> None:
    shown = draw_graph(step).graph
    drawing = draw(shown, {})
    titles = [title for _, title in shown.segments]
    frames = {drawing.title(n): n for n in drawing.tree.framed_groups}
    assert set(titles) <= frames.keys()
    for i, key in ((i, drawing.key(i)) for i in range(len(shown.nodes))):
        part = titles[i >= shown.segments[1][0]]
        assert drawing.tree.paths[key][0] == frames[part]
    svg = draw_graph(step).pipe("svg")
    assert max(size_and_text(svg.decode())[:2]) <= 3200
    assert set(titles) <= set(ET.fromstring(svg.replace(b"&#160;", b" ")).itertext())


def test_a_loss_that_a_library_made_is_called_by_the_users_line() -> None:
    graph, source = named("loss"), "modeling.py:2, called at a.py:1"
    nodes = tuple(node._replace(where=node.where and source) for node in graph.nodes)
    whole = draw_graph(recorded(replace(graph, nodes=nodes), named("b"))).graph
    assert [title for _, title in whole.segments] == ["loss · a.py:1", "b · a.py:1"]


def test_a_line_of_a_library_stands_before_the_line_that_called_it_in_picture_and_text() -> None:
    said = "modeling_gpt2.py:567, called at train.py:41"
    graph = named("loss").annotate(where={1: said})
    assert said in to_dot(graph)
    assert said in to_text(graph)


def test_every_format_shows_both_losses(step: Recording) -> None:
    for text in (to_dot(step), to_mermaid(step).replace("#58;", ":")):
        assert all(title in text for _, title in draw_graph(step).graph.segments)
    assert "Autograd graph of critic_loss, generator_loss" in to_html(step)


def test_modules_inside_a_part_keep_their_names_and_classes(step: Recording) -> None:
    drawing = draw(draw_graph(step).graph, {})
    described = [drawing.title_with_class(n) for n in sorted(drawing.tree.framed_groups)]
    assert described.count("generator · Sequential") == 2
    assert "critic(fake.detach()) · Sequential" in described


def test_depth_counts_modules_and_not_the_parts_around_them(step: Recording) -> None:
    whole = draw_graph(step).graph
    closed = draw(whole, {"depth": 0})
    assert sorted(closed.title(n) for n in closed.boxes) == sorted(
        ["generator", "critic(real)", "critic(fake.detach())", "generator", "critic"]
    )
    assert len(closed.tree.framed_groups) == 2


def test_a_module_is_that_of_the_first_graph_that_has_it(step: Recording) -> None:
    drawing = draw(draw_graph(step).graph, {"module": "critic"})
    first = draw(step.graphs[0], {"module": "critic"})
    assert drawing.nodes == first.nodes


def test_losses_alike_are_not_drawn_as_one() -> None:
    whole = draw_graph(recorded(named("a", 80), named("b", 80))).graph
    drawing = draw(whole, {"fold": True})
    roots = [group(whole).groups[n] for n in group(whole).roots]
    assert roots[0].like == roots[1].like
    assert {drawing.title(n) for n in (*drawing.tree.framed_groups, *drawing.boxes)} >= {
        "a · a.py:1",
        "b · a.py:1",
    }


def test_a_recording_of_one_backward_looks_as_its_graph() -> None:
    with record() as recording:
        (torch.ones(3, requires_grad=True) * 2).sum().backward()
    found = find(recording)
    assert to_dot(recording, findings=found) == to_dot(recording.graph, findings=found)
    assert to_mermaid(recording) == to_mermaid(recording.graph)
    assert draw_graph(recording).graph is recording.graph


def test_a_finding_marks_the_node_of_its_own_graph(step: Recording) -> None:
    last = len(step.graphs[0].nodes) - 1
    about = [
        Finding("made-up", "warning", "x", nodes=(last,), steps=(0,)),
        Finding("invented", "warning", "y", nodes=(len(step.graph.nodes) - 1,), steps=(1,)),
    ]
    dot = to_dot(step, findings=about)
    lines = [re.match(r"\s*(\d+) ", line) for line in dot.splitlines() if "⚠" in line]
    assert [int(line[1]) for line in lines if line] == [last, last + len(step.graph.nodes)]


@pytest.mark.parametrize("label", HOSTILE)
def test_a_hostile_title_comes_out_as_it_went_in(label: str) -> None:
    svg = draw_graph(recorded(named(label), named("other"))).pipe("svg")
    shown = "".join(ET.fromstring(svg.replace(b"&#160;", b" ")).itertext())
    assert label.split("\n")[0][:39] in shown
    assert "other · a.py:1" in shown


def test_many_losses_fit_a_page() -> None:
    drawn = draw_graph(recorded(*(named(f"loss_{i}", 30) for i in range(12)))).pipe("svg")
    width, height, _ = size_and_text(drawn.decode())
    assert max(width, height) <= 3200
    assert max(width / height, height / width) <= 4


def test_a_graph_without_nodes_has_a_part_of_its_own() -> None:
    whole = draw_graph(recorded(Graph(()), named("a"))).graph
    assert [title for _, title in whole.segments] == ["no output", "a · a.py:1"]
    assert "a · a.py:1" in to_dot(whole)
