"""Compare what a drawing shows with the graph, by slow and simple counting."""

from __future__ import annotations

import re
from collections import Counter

import pytest
import torch
from torch import nn

from graphviz_torch import Graph, record, simulate_accelerator, trace
from graphviz_torch.export import to_dot
from graphviz_torch.graph import Edge, Finding, Node, SavedTensor, TensorMeta
from graphviz_torch.render.dot.layout import dot_id
from graphviz_torch.render.dot.legend import omissions
from graphviz_torch.render.drawing.level import LIMITS
from graphviz_torch.render.drawing.steps import draw
from graphviz_torch.render.group_wording import group_details
from tests.support.drawn import lines, named, visible
from tests.support.models import MLP, Transformer, chain, tokens
from tests.support.recorded import blocks, trained

F32 = TensorMeta((3,), "float32", "cpu")


def test_a_transposed_weight_is_written_in_the_operation_that_multiplies_with_it() -> None:
    graph = trained(MLP(), torch.ones(2, 4))
    drawn = visible(graph)
    operations = [node.id for node in graph.nodes if not node.leaf and node.title != "t"]
    assert drawn.nodes == operations
    assert {(e.source, e.target) for e in drawn.edges} == {
        (e.source, e.target)
        for e in graph.edges
        if e.source in operations and e.target in operations
    }
    first = named(graph, "addmm")[0]
    text = lines(to_dot(graph, detail="gradients"), first)
    assert text.index("bias f32[8]") < text.index("weight f32[8, 4]")
    assert set(visible(graph, parameters="nodes").nodes) == {node.id for node in graph.nodes}


def carried(*names: str, users: int = 1, **fields: object) -> Graph:
    """A parameter, operations that carry it one after the other, and `users` of the last."""
    nodes = [Node(0, "AccumulateGrad", (F32,), "w", leaf="parameter")]
    for name in names:
        i = len(nodes)
        nodes.append(Node(i, f"{name}Backward0", (F32,), operation=name.lower()))
    last = len(nodes) - 1
    nodes[last] = nodes[last]._replace(**fields)
    edges = [Edge(i, i + 1) for i in range(last)]
    for _ in range(users):
        edges.append(Edge(last, len(nodes)))
        nodes.append(Node(len(nodes), "MulBackward0", (F32,), operation="mul"))
    return Graph(tuple(nodes), tuple(edges), ((len(nodes) - 1, 0),))


def test_a_leaf_behind_carriers_in_a_row_is_written_with_its_own_name_and_shape() -> None:
    graph = carried("View", "Expand", "T")
    assert visible(graph, parameters="fold").nodes == [4]
    assert ">w f32[3]<" in to_dot(graph, parameters="fold", detail="gradients")


@pytest.mark.parametrize(
    "graph",
    [
        carried("T", users=2),
        carried("T", label="wt"),
        carried("T", note="seen"),
        carried("Mul"),
        carried("To_copy", outputs=(F32._replace(device="sim:0"),)),
        carried("T", outputs=(F32, F32)),
        carried("T", users=0),
    ],
    ids=["two users", "a label", "a note", "a product", "a copy", "two outputs", "an output"],
)
def test_what_a_reader_must_see_stays_a_node(graph: Graph) -> None:
    assert 1 in visible(graph, parameters="fold").nodes


def test_a_copy_of_a_parameter_between_devices_stays_a_node() -> None:
    with simulate_accelerator() as (device,), record() as recording:
        weight = nn.Parameter(torch.ones(3))
        (weight.to(device) * 2).sum().backward()
    (copy,) = named(recording.graph, "to_copy")
    assert copy in visible(recording.graph, parameters="fold").nodes


def test_the_edges_of_a_graph_made_by_hand_may_come_in_any_order() -> None:
    graph = carried("View", "T")
    turned = Graph(graph.nodes, graph.edges[::-1], graph.outputs)
    assert to_dot(turned, parameters="fold") == to_dot(graph, parameters="fold")


def test_findings_on_what_is_not_drawn_itself_mark_what_stands_for_it() -> None:
    graph = trained(Transformer(8), tokens())
    drawn = visible(graph)
    hidden = [i for i in range(len(graph.nodes)) if i not in drawn.nodes]
    assert drawn.tree.represented_groups  # blocks are folded
    assert {drawn.key(i) for i in hidden} <= {*drawn.nodes, *(~box for box in drawn.boxes)}
    for i in hidden:
        unit = drawn.fused_node(drawn.key(i))
        key = graph.nodes[drawn.key(i) if unit is None else unit.node]
        assert key.scope.split(".")[2:] == graph.nodes[_user(graph, i)].scope.split(".")[2:]
    # The weight of the last block, its transpose and their user are all drawn in the first.
    weight = next(i for i in hidden if graph.nodes[i].label == "layers.7.mlp.2.weight")
    finding = Finding("frozen", "error", "It is frozen.", nodes=(weight,))
    dot = to_dot(graph, findings=[finding])
    assert "✖ frozen" in lines(dot, dot_id(drawn.key(weight)))
    assert graph.nodes[drawn.key(weight)].module == "layers.0.mlp.2"


def _user(graph: Graph, node: int) -> int:
    """The operation behind a parameter and what carries it; any other node itself."""
    while graph.nodes[node].leaf or graph.nodes[node].title == "t":
        node = next(edge.target for edge in graph.edges if edge.source == node)
    return node


def test_a_difference_of_a_parameter_is_named_where_it_is_written() -> None:
    graph = trained(MLP(), torch.ones(2, 4))
    weight = next(node.id for node in graph.nodes if node.label == "fc1.weight")
    addmm = named(graph, "addmm")[0]
    assert "≠ changed: fc1.weight" in lines(to_dot(graph, marks={weight: "changed"}), addmm)
    both = lines(to_dot(graph, marks={weight: "added", addmm: "added"}), addmm)
    assert both.count("+ added") == 1


def test_the_values_of_a_picture_are_in_sum_those_of_the_graph() -> None:
    graph = trained(MLP(), torch.ones(2, 4))
    saved = {node.id: (SavedTensor("self", F32, 1 << node.id),) for node in graph.nodes}
    graph = graph.annotate(saved=saved, seconds={i: float(1 << i) for i in saved})
    for options in ({}, {"depth": 0}):
        dot = to_dot(graph, color_by="time", **options)
        drawn = visible(graph, **options)
        keys = Counter(drawn.key(node.id) for node in graph.nodes)
        for key in keys:
            inside = [i for i in saved if drawn.key(i) == key]
            value = sum(1 << i for i in inside)
            assert f"backward {value:.3g} s" in lines(dot, key if key >= 0 else f"g{~key}")


def test_what_is_written_inside_is_not_counted_as_shown() -> None:
    model = nn.Sequential(*(nn.Linear(4, 4 + i % 2) for i in range(1)))
    graph = trained(model, torch.ones(1, 4))
    assert len(graph.nodes) == 5  # weight, bias, t, addmm, sum
    assert visible(graph, limit=2).boxes == []
    assert len(visible(graph, limit=1).boxes) == 1


def test_never_more_than_the_limit_is_shown_unless_asked_for() -> None:
    flat = trace(chain(3000), names={})
    deep = trained(Transformer(40), tokens())
    for graph in (flat, deep):
        drawn = visible(graph)
        assert len(drawn.nodes) + len(drawn.boxes) <= LIMITS[0]
        whole = visible(graph, fold=False, limit=10_000)
        assert not whole.boxes
        assert len(whole.nodes) > LIMITS[0]


class Interleaved(nn.Module):
    """A model that alternates the modules of two lists."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(4) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = norm(conv(x))
        return x


def test_a_list_of_modules_that_data_leaves_and_enters_again_is_no_cluster() -> None:
    dot = to_dot(trained(Interleaved(), torch.ones(2, 4)))
    assert "<B>convs.0 · Linear(4, 4)</B>" in dot
    assert "<B>norms.2 · LayerNorm(4)</B>" in dot
    assert "<B>convs ·" not in dot
    assert "<B>norms ·" not in dot
    straight = to_dot(trained(Transformer(2), tokens()), fold=False)
    assert "ModuleList" not in straight
    assert "<B>layers.1 · TransformerBlock</B>" in straight


def test_a_closed_group_counts_all_that_is_in_it() -> None:
    graph = trained(MLP(), torch.ones(2, 4))
    drawn = visible(graph, depth=0)
    assert drawn.groups is not None
    for box, figures in drawn.contents.items():
        assert figures.nodes == tuple(i for i in range(len(graph.nodes)) if drawn.key(i) == ~box)


def test_tensors_of_several_shapes_that_pass_together_are_only_counted() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.narrow, self.wide = nn.Linear(4, 4), nn.Linear(4, 6)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.narrow(x), self.wide(x)

    class Join(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return torch.cat([a * 2, b * 2], dim=1)

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.two, self.join = Two(), Join()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            joined: torch.Tensor = self.join(*self.two(x))
            return joined

    graph = trained(Both(), torch.ones(2, 4, requires_grad=True))
    assert 'label=" 2 tensors "' in to_dot(graph, depth=0, fold=False)


def test_the_footer_names_what_is_closed_and_how_to_open_it() -> None:
    graph = blocks(12)
    few = omissions(draw(graph, {"fold": False, "depth": 0}))
    assert few == (f"{len(graph.nodes)} nodes: 12 boxes are closed (module='0' opens one)")
    path = re.search(r"module='(.*?)'", few)
    assert path is not None
    assert draw(graph, {"module": path[1]}).nodes
    assert omissions(draw(blocks(1), {"fold": False, "depth": 1})) == (
        "11 nodes: 2 boxes are closed (module='0.fc' opens one)"
    )


class Shared(nn.Module):
    """Two modules that share a weight, each with a bias of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)
        self.b.weight = self.a.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x).tanh())


def test_a_closed_group_names_the_inputs_and_results_in_it() -> None:
    x = torch.ones(3, requires_grad=True)
    with record() as recording:
        h = x
        for _ in range(60):
            h = (h.sin() * h.exp()).tanh()
        penalty = (h * h).sum()
        loss = h.mean() + penalty
        loss.backward()
    drawing = draw(recording.graph, {"limit": 4, "fold": False})
    said = [line for number in drawing.boxes for line in group_details(drawing, number)]
    inside = " ".join(line for line in said if line.endswith(" inside"))
    shown = " ".join(recording.graph.nodes[i].label for i in drawing.nodes)
    for name in ("x", "h", "penalty", "loss"):
        assert re.search(rf"\b{name}\b", f"{inside} {shown}"), name
    assert inside


def test_a_module_of_which_the_graph_has_the_parameters_alone_is_one_box() -> None:
    teacher, student = (nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)) for _ in range(2))
    x = torch.rand(5, 3)
    with record(student) as recording:
        with torch.no_grad():
            target = teacher(x)
        ((student(x) - target) ** 2).mean().backward()
    graph = recording.graph
    assert sum(node.label.startswith("teacher.") for node in graph.nodes) == 4
    drawing = draw(graph, {})
    assert drawing.groups is not None
    (box,) = [drawing.groups.groups[number] for number in drawing.boxes]
    assert (box.name, box.size) == ("teacher", 4)
    assert sum("no_grad" in line for line in to_dot(graph).splitlines() if "->" in line) == 1
    assert not draw(graph, {"depth": 9}).boxes


def test_a_shared_weight_is_drawn_once_and_what_is_not_shared_stays_where_it_is() -> None:
    graph = trained(nn.Sequential(Shared(), nn.Linear(3, 3)), torch.ones(2, 3))
    drawn = visible(graph, parameters="nodes", detail="full")
    assert drawn.nodes == [node.id for node in graph.nodes]


class Reader(nn.Module):
    """A module that reads all earlier results."""

    def forward(self, made: list[torch.Tensor]) -> torch.Tensor:
        return torch.stack(made).sum(0).tanh()


class Readers(nn.Module):
    """A model whose modules each read all earlier results."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.readers = nn.ModuleList(Reader() for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = [x]
        for reader in self.readers:
            made.append(reader(made))
        return made[-1]


def test_of_the_lines_between_closed_modules_the_longest_are_named_at_both_ends() -> None:
    graph = trained(Readers(20), torch.ones(3, requires_grad=True))
    drawn = visible(graph, depth=0, fold=False)
    ends = {(line.source, line.target) for line in drawn.merged_edges}
    readers = sorted(drawn.boxes, key=lambda number: drawn.boxes.index(number))
    every = {(~a, ~b) for i, a in enumerate(readers) for b in readers[i + 1 :]}
    named = {
        (source, target) for target, sources in drawn.named_sources.items() for source in sources
    }
    assert every <= ends | named
    assert named
    assert (~readers[0], ~readers[-1]) in named
