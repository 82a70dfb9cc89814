"""Test groups that are drawn as one operation, and loops that are drawn once."""

from __future__ import annotations

import math
from graphlib import TopologicalSorter

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphviz_torch import find, record
from graphviz_torch.export import to_dot
from graphviz_torch.graph import Finding
from graphviz_torch.render import labels
from graphviz_torch.render.drawing.drawing import Drawing
from graphviz_torch.render.drawing.fused import fused_text
from tests.render.drawing.test_visible import Interleaved
from tests.support.drawn import lines, named, visible
from tests.support.recorded import trained


class GELU(nn.Module):
    """The approximation by tanh, written with operators."""

    def forward(self, x: Tensor) -> Tensor:
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
        return 0.5 * x * (1 + torch.tanh(inner))


class Cells(nn.Module):
    """A model that alternates a cell and a layer."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps
        self.cell, self.shared = nn.GRUCell(4, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        h, found = torch.zeros(2, 8), []
        for _ in range(self.steps):
            h = self.cell(x, h)
            x = torch.tanh(self.shared(h))
            found.append(x)
        return torch.stack(found)


def titles(drawing: Drawing) -> list[str]:
    """The titles of the units."""
    return [drawing.title(number) for number in drawing.boxes if drawing.fused_node(~number)]


def in_circles(drawing: Drawing) -> bool:
    """Return True if a path leads from a drawn element back to itself."""
    users = TopologicalSorter[int]()
    for source, target in drawing.ends:
        users.add(target, source)
    try:
        users.prepare()
    except ValueError:  # a CycleError
        return True
    return False


def test_an_activation_of_eight_operations_is_one_box_that_names_them() -> None:
    graph = trained(nn.Sequential(nn.Linear(4, 4), GELU(), nn.Linear(4, 2)), torch.ones(3, 4))
    drawing = visible(graph)
    (number,) = drawing.boxes
    unit = drawing.fused_node(~number)
    assert unit is not None
    assert len(unit.nodes) == 8
    assert fused_text(drawing, unit) == "8 operations: pow, mul, add, tanh"
    inside = [i for i, node in enumerate(graph.nodes) if node.module == "1"]
    assert not set(inside) & set(drawing.nodes)
    assert set(inside) <= set(visible(graph, fold=False).nodes)
    assert set(inside) <= set(visible(graph, depth=9).nodes)


def test_a_linear_layer_over_a_batch_of_sequences_is_one_box_with_its_weights() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh())
    graph = trained(model, torch.ones(2, 3, 4))
    (layer,) = named(graph, "addmm")
    norm = labels.number(model[0].weight.grad.norm().item())  # type: ignore[union-attr]
    short, long = (lines(to_dot(graph, detail=d), layer) for d in ("short", "gradients"))
    assert "0 · Linear(4, 5)" in short
    assert "addmm<" not in short
    assert "f32[2, 3, 5]<" in short  # the layer's output, not that of addmm, which has 6 rows
    assert "weight" not in short
    assert f"weight f32[5, 4] grad {norm}" in long


def test_views_between_two_operations_are_left_out_except_in_full() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.Unflatten(1, (2, 3)), nn.Flatten(), nn.Tanh())
    with record(model) as recording:
        model(torch.ones(4, 6)).view(4, 2, 3).transpose(1, 2).exp().sum().backward()
    graph = recording.graph
    (tanh,), (exp,) = named(graph, "tanh"), named(graph, "exp")
    drawing = visible(graph)
    shown = [graph.nodes[i].title for i in drawing.nodes]
    # Those that are all that a module computes are drawn, under the names of these.
    assert shown == ["addmm", "view", "view", "tanh", "exp", "sum"]
    assert (tanh, exp) in drawing.ends
    hidden = [i for i in range(len(graph.nodes)) if i not in drawing.nodes]
    assert {drawing.key(i) for i in hidden} <= {*drawing.nodes}
    full = visible(graph, detail="full")
    assert not [node.title for node in graph.nodes if full.key(node.id) < 0]
    assert full.nodes == [i.id for i in graph.nodes if not i.leaf and i.title != "t"]


def test_a_view_that_a_reader_must_see_stays() -> None:
    x = torch.ones(4, 6, requires_grad=True)
    with record() as recording:
        turned = (x * 2).T
        turned.exp().sum().backward()
    (view,) = named(recording.graph, "permute") or named(recording.graph, "t")
    assert view in visible(recording.graph).nodes  # it has a name
    graph = recording.graph.annotate(label={view: ""})
    assert view not in visible(graph).nodes
    about = Finding("made-up", "warning", "look here", nodes=(view,))
    assert view in visible(graph, findings=[about]).nodes


def test_a_unit_that_a_finding_points_into_is_open() -> None:
    graph = trained(nn.Sequential(nn.Linear(4, 4), GELU(), nn.Linear(4, 2)), torch.ones(3, 4))
    tanh = next(node.id for node in graph.nodes if node.title == "tanh")
    finding = Finding("nonfinite", "error", "It is NaN.", nodes=(tanh,))
    assert tanh in visible(graph, findings=[finding]).nodes


def test_a_loop_is_drawn_once_under_the_names_of_its_modules() -> None:
    drawing = visible(trained(Cells(60), torch.ones(2, 4)))
    ((number, steps),) = drawing.tree.represented_groups.items()
    assert len(steps) == 60
    assert drawing.title(number) == f"cell, shared  {labels.TIMES}60"
    assert len(drawing.nodes) + len(drawing.boxes) < 30
    assert not in_circles(drawing)


def test_a_short_loop_is_drawn_step_by_step() -> None:
    drawing = visible(trained(Cells(2), torch.ones(2, 4)))
    assert drawing.tree.represented_groups == {}


def test_calls_of_a_model_in_a_loop_are_one_block_with_its_class() -> None:
    class Policy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(4, 8), nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            return F.softmax(self.two(F.relu(self.one(x))), dim=1)

    model = Policy()
    with record(model) as recording:
        found = [model(torch.randn(1, 4)).log()[0, 0] * 2 for _ in range(18)]
        torch.stack(found).sum().backward()
    drawing = visible(recording.graph)
    ((number, steps),) = drawing.tree.represented_groups.items()
    assert (drawing.title(number), len(steps)) == (f"Policy  {labels.TIMES}18", 18)
    assert not in_circles(drawing)


def test_branches_stand_beside_each_other_each_with_its_name() -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Linear(8, 8)
            self.rows = nn.ModuleList(
                nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU())
                for _ in range(3)
            )

        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x)
            return torch.cat([row(x) for row in self.rows])

    drawing = visible(trained(Branches(), torch.ones(3, 8)))
    assert drawing.tree.represented_groups == {}
    assert drawing.boxes == []


def test_modules_of_a_class_at_one_depth_are_all_open_or_all_closed() -> None:
    class Block(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(8, width), nn.Linear(width, 8)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.two(torch.tanh(self.one(x)).exp().sin().sigmoid())

    model = nn.Sequential(*(Block(9 + i) for i in range(40)))  # no two are alike
    for limit in (60, 100, 200, 400):
        drawing = visible(trained(model, torch.ones(2, 8)), limit=limit)
        assert drawing.groups is not None
        groups = drawing.groups.groups
        closed = [n for n in drawing.boxes if groups[n].module_class == "Block"]
        opened = [n for n in drawing.tree.framed_groups if groups[n].module_class == "Block"]
        assert not (closed and opened)


def test_a_list_of_modules_that_the_flow_leaves_is_never_a_box_in_a_circle() -> None:
    graph = trained(Interleaved(), torch.ones(2, 4))
    for depth in range(3):
        assert not in_circles(visible(graph, depth=depth))


def test_what_is_only_worth_knowing_opens_no_unit_and_marks_nothing() -> None:
    graph = trained(nn.Sequential(nn.Linear(4, 4), GELU(), nn.Linear(4, 2)), torch.ones(3, 4))
    tanh = next(node.id for node in graph.nodes if node.title == "tanh")
    finding = Finding("most-memory", "info", "It keeps most.", nodes=(tanh,))
    assert tanh not in visible(graph, findings=[finding]).nodes
    dot = to_dot(graph, findings=[finding])
    assert "It keeps most." in dot
    assert "most-memory" in dot  # who asks for it has it marked
    with record(model := nn.Linear(4, 4)) as recording:
        model(torch.ones(3, 4)).double().sum().backward()
    (found,) = find(recording)
    assert (found.severity, len(found.nodes)) == ("info", 1)
    dot = to_dot(recording)
    assert found.message.partition(" ")[0] not in dot
    assert found.rule not in dot
    assert "penwidth=2.5" not in dot


def test_an_input_that_requires_grad_keeps_its_box_beside_a_module_of_one_call() -> None:
    x = torch.randn(2, 4, requires_grad=True)
    for model in (nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Sequential(nn.Tanh())):
        with record(model) as recording:
            model(x).sum().backward()
        assert "<B>x</B>" in to_dot(recording)
