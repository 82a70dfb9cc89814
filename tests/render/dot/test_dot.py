"""Test DOT text by reading it back with Graphviz and an XML parser."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from graphviz_torch import Recording, record, simulate_accelerator, trace
from graphviz_torch.export import to_dot
from graphviz_torch.graph import (
    Edge,
    Finding,
    GradientStats,
    Graph,
    Node,
    TensorMeta,
)
from graphviz_torch.render.dot.layout import layout
from graphviz_torch.render.style import CATEGORIES, COLORS, GROUNDS, NONFINITE, ON_STRONG, SCALE
from tests.support.drawn import F32, HOSTILE, Drawn, colors, repeated, texts, two
from tests.support.models import MLP, TransformerBlock, chain, dense_block, worked_example
from tests.support.recorded import trained


def test_a_closed_block_has_its_path_for_a_tooltip() -> None:
    model = torch.nn.Sequential(torch.nn.Sequential(*[torch.nn.Tanh() for _ in range(4)]))
    with record(model) as recording:
        model(torch.ones(2, requires_grad=True)).sum().backward()
    closed = [
        line for line in to_dot(recording, depth=1).splitlines() if re.match(r"\tg\d+ \[", line)
    ]
    assert [line.rpartition(" tooltip=")[2] for line in closed] == ['"0.0"]', '"0.1"]']


def test_the_worked_example_has_a_node_for_every_autograd_node_and_arrows_to_the_output() -> None:
    example = worked_example()
    graph = trace(example["y"], names=example)
    drawn = Drawn(to_dot(graph))
    assert sorted(map(int, drawn.nodes)) == [node.id for node in graph.nodes]
    assert {(int(a), int(b)) for a, b in drawn.edges} == {(0, 1), (1, 2), (2, 3), (3, 4)}
    svg = layout(to_dot(graph))
    assert texts(svg, "0") == ["x", "f32[3]", "value [1, 2, 3]"]
    assert texts(svg, "2") == ["b", "pow 2", "f32[3]"]
    assert texts(svg, "4") == ["y", "mean", "f32[]", "value 19.67"]
    full = layout(to_dot(graph, detail="full"))
    assert texts(full, "0") == ["x", "AccumulateGrad", "f32[3] cpu", "value [1, 2, 3]"]


@pytest.mark.parametrize("label", HOSTILE)
def test_a_hostile_label_or_module_path_comes_out_as_it_went_in(label: str) -> None:
    scope = label.replace(".", "")
    shown = texts(layout(to_dot(two(label=label))).replace(b"&#160;", b" "), "1")
    assert "".join(shown).startswith(label.replace("\n", ""))
    svg = layout(to_dot(two(scope=scope, module=scope, where="a.py:1"))).replace(b"&#160;", b" ")
    assert scope.split("\n")[0] in "".join(ET.fromstring(svg).itertext()).replace("\n", "")


def test_a_long_name_takes_several_lines_so_that_the_picture_keeps_its_form() -> None:
    name = "a_very_long_name_" * 10
    for graph in (two(label=name), two(scope=name, module=name, where="a.py:1")):
        root = ET.fromstring(layout(to_dot(graph)))
        width, height = (
            float(root.attrib[side].removesuffix("pt")) for side in ("width", "height")
        )
        assert width / height < 4
        assert name in "".join(root.itertext()).replace("\n", "")


@pytest.mark.parametrize("text", ["\x00\x1b", "\ud800", "\uffff"])
def test_what_xml_cannot_hold_is_drawn_as_a_sign(text: str) -> None:
    svg = layout(to_dot(two(label=f"a{text}b", where=text)))
    assert re.fullmatch("a.+b", texts(svg, "1")[0])


def test_every_form_is_told_apart_without_colour() -> None:
    with simulate_accelerator() as (device,), record() as recording:
        weight = torch.nn.Parameter(torch.ones(3))
        x = torch.ones(3, requires_grad=True)
        (x.to(device) * weight.to(device)).cpu().sum().backward()
    drawn = Drawn(to_dot(recording.graph, parameters="nodes"))
    forms = {
        (node["shape"], node.get("peripheries", "1"), node["style"])
        for node in drawn.nodes.values()
    }
    assert len(forms) == 5  # input, parameter, transfer, operation, output


def test_a_transfer_says_from_where_to_where_and_how_many_bytes() -> None:
    with simulate_accelerator() as (device,), record() as recording:
        x = torch.ones(3, requires_grad=True)
        (x.to(device) * 2).sum().backward()
    graph = recording.graph
    copy = next(node for node in graph.nodes if "copy" in node.operation)
    assert "cpu → sim:0, 12 B" in texts(layout(to_dot(graph)), str(copy.id))
    drawn = Drawn(to_dot(graph))
    assert set(drawn.clusters) == {"<B>cpu</B>", "<B>sim:0</B>"}
    assert not any(str(copy.id) in inside for inside in drawn.inside.values())


def test_what_flows_together_on_a_device_stands_in_one_region() -> None:
    there = F32._replace(device="sim:0")
    nodes = [Node(i, "AddBackward0", (F32,), operation="add") for i in range(3)]
    nodes.append(Node(3, "AddBackward0", (there,), operation="add"))
    edges = Edge(0, 2), Edge(1, 2, 0, 1), Edge(2, 3)
    dot = to_dot(Graph(tuple(nodes), edges, ((3, 0),)))
    assert (dot.count("<B>cpu</B>"), dot.count("<B>sim:0</B>")) == (1, 1)


def test_a_closed_module_stands_in_the_region_of_its_device() -> None:
    with simulate_accelerator() as (device,):
        here, there = (torch.nn.Sequential(torch.nn.Tanh(), torch.nn.ReLU()) for _ in range(2))
        with record(torch.nn.ModuleList([here, there])) as recording:
            x = torch.ones(3, requires_grad=True)
            there(here(x).to(device)).sum().backward()
    boxes = re.compile(r"<B>(cpu|sim:0)</B>.*\n\t\tg\d")  # right below the region's first line
    assert boxes.findall(to_dot(recording, depth=0)) == ["cpu", "sim:0"]


def test_a_recorded_gradient_is_written_with_its_values_where_they_are_few() -> None:
    with record() as recording:
        y = worked_example()["y"]
        y.backward()
    svg = layout(to_dot(recording.graph))
    assert "grad [2, 2.667, 3.333]" in texts(svg, "0")
    large = two(grad_outputs=(GradientStats(1.5, 1.0, 0.1, 0.0, nan=3),))
    assert "grad norm 1.5, 3 NaN" in texts(layout(to_dot(large, detail="gradients")), "1")
    assert "norm" not in to_dot(large)


def test_one_output_of_several_is_named_on_its_edge_and_a_single_one_is_not() -> None:
    meta = TensorMeta((2, 4), "float32", "cpu")
    split = Node(0, "SplitBackward0", (meta, meta), operation="split")
    user = Node(1, "MulBackward0", (meta,), operation="mul")
    graph = Graph((split, user), (Edge(0, 1, 1, 0),), ((1, 0),))
    assert 'label=" [1] "' in to_dot(graph)  # the node says the shape that its outputs share
    mixed = graph.annotate(outputs={0: (meta, TensorMeta((2, 6), "float32", "cpu"))})
    assert 'label=" [1] f32[2, 6] "' in to_dot(mixed)
    assert "->" in to_dot(two())
    assert "[label=" not in to_dot(two()).split("->")[1]


def test_a_first_output_is_shown_alone_if_no_other_output_is_used() -> None:
    x = torch.randn(2, 4, 3, requires_grad=True)
    graph = trace(torch.nn.functional.group_norm(x, 2).tanh())
    outputs = {node.operation: node.outputs for node in graph.nodes}["native_group_norm"]
    assert [meta.shape for meta in outputs if meta] == [(2, 4, 3), (2, 2), (2, 2)]
    dot = to_dot(graph)
    assert "f32[2, 2]" not in dot
    assert "outputs" not in dot
    assert "3 outputs, f32[2, 4, 3], f32[2, 2]" in to_dot(graph, detail="full")


def test_modules_are_nested_clusters_with_their_parameters_inside_the_operations() -> None:
    graph = trained(TransformerBlock(), torch.randn(1, 4, 8))
    dot = to_dot(graph, detail="gradients")
    drawn = Drawn(dot)
    attn, mlp = "<B>attn · MultiheadAttention</B>", "<B>mlp · Sequential</B>"
    assert not drawn.clusters  # the titles inside a Sequential name it
    assert {attn, mlp} <= set(Drawn(to_dot(graph, detail="full")).clusters)
    assert any(attn in node["label"] for node in drawn.nodes.values())  # one call of torch's
    assert any("mlp.0 · Linear(8, 32)" in node["label"] for node in drawn.nodes.values())
    leaves = {str(node.id) for node in graph.nodes if node.leaf == "parameter"}
    assert not leaves & set(drawn.nodes)
    assert "in_proj_weight f32[24, 8]" in dot
    assert "mlp.0.weight" not in dot
    assert leaves <= set(Drawn(to_dot(graph, parameters="nodes")).nodes)


def test_a_leaf_with_many_users_is_written_inside_them_and_keeps_one_node() -> None:
    x = torch.ones(3, requires_grad=True)
    y = torch.stack([x * i for i in range(50)]).sum()
    drawn = Drawn(to_dot(trace(y, names={"x": x}), limit=100))
    assert not any(source == "0" for source, _ in drawn.edges)
    assert "written inside its 50 users" in drawn.nodes["0"]["label"]
    inside = [n for n in drawn.nodes.values() if "x (50\u00d7) f32[3]" in n["label"]]
    assert len(inside) == 50


def test_long_edges_become_named_stubs_only_where_the_layout_would_be_hard() -> None:
    easy, hard = (trace(dense_block(n), names={}) for n in (4, 40))
    assert "shape=plain" not in to_dot(easy)
    drawn = Drawn(to_dot(hard, fold=False))
    stubs = [name for name in drawn.nodes if name.startswith(("from_", "to_"))]
    for edge in drawn.edges:
        for stub, end in (edge, edge[::-1]):
            if stub in stubs:
                assert f"#{end}" in drawn.nodes[end]["label"]  # what the other stub calls it
    # Each edge is drawn, or named at its source.
    named = 0
    for stub in stubs:
        if stub.startswith("to_"):
            label = re.sub("<.*?>", "", drawn.nodes[stub]["label"])
            more = re.search(r"and (\d+) more", label)
            named += label.count("#") + (int(more[1]) if more else 0)
    assert named == len(_ends(hard)) - (len(drawn.edges) - len(stubs)) > 100


@pytest.mark.parametrize("layers", [10, 12, 14])
def test_where_the_layout_is_easy_enough_edges_of_eight_ranks_stay(layers: int) -> None:
    graph = trace(dense_block(layers), names={})
    rank = dict.fromkeys(range(len(graph.nodes)), 0)  # the longest way to a node
    for source, target in sorted(_ends(graph), key=lambda ends: ends[1]):
        rank[target] = max(rank[target], rank[source] + 1)
    pairs = Drawn(to_dot(graph, fold=False)).edges
    drawn = {(int(a), int(b)) for a, b in pairs if a.isdigit() and b.isdigit()}
    named = _ends(graph) - drawn
    assert named
    assert min(rank[target] - rank[source] for source, target in named) > 8


def _ends(graph: Graph) -> set[tuple[int, int]]:
    """Return the edges between operations; leaves are written inside operations."""
    return {(e.source, e.target) for e in graph.edges if not graph.nodes[e.source].leaf}


def test_a_large_graph_is_drawn_as_one_of_its_blocks() -> None:
    dot = to_dot(trace(chain(2000), names={}))
    assert len(Drawn(dot).nodes) <= 250
    assert "\u00d7" in dot
    assert "2,001 nodes" in dot


def test_blocks_of_one_structure_are_folded_on_demand() -> None:
    graph = repeated(4)
    assert len(Drawn(to_dot(graph, fold=False)).nodes) == 8
    dot = to_dot(graph, fold=True)
    assert len(Drawn(dot).nodes) == 2
    assert "net.0 … 3  \u00d74" in dot


def test_depth_closes_modules_and_says_what_is_inside() -> None:
    graph = trained(MLP(), torch.randn(2, 4))
    drawn = Drawn(to_dot(graph, depth=0, detail="gradients"))
    boxes = [node["label"] for name, node in drawn.nodes.items() if name.startswith("g")]
    assert len(boxes) == 2
    assert "4 nodes, 40 parameters" in boxes[0]
    assert "f32[2, 8]" in boxes[0]  # what it makes, which its edge need not repeat
    short = Drawn(to_dot(graph, depth=0)).nodes.values()
    assert not any("parameters" in node["label"] for node in short)
    assert not any(node["shape"] == "box3d" for node in short)  # for blocks that are alike


def test_a_module_is_drawn_alone_with_its_surroundings_named() -> None:
    graph = trained(MLP(), torch.randn(2, 4))
    dot = to_dot(graph, module="fc2")
    shown = {name for name in Drawn(dot).nodes if name.isdigit()}
    operations = {n.id: n.title for n in graph.nodes if n.module == "fc2" and not n.leaf}
    assert set(operations.values()) == {"t", "addmm"}
    assert shown == {str(i) for i, title in operations.items() if title == "addmm"}
    assert "from relu #" in dot
    assert "to sum #" in dot
    # The same number stands nowhere else: at a node, for one, that nothing names.
    named = {str(n.id) for n in graph.nodes if n.title in ("relu", "sum")}
    assert {*re.findall(r"#(\d{1,2})\b", dot)} == named
    with pytest.raises(ValueError, match=r"module='fc3' is not in the graph\. The graph has 'fc"):
        to_dot(graph, module="fc3")


def test_modules_whose_parameters_are_nodes_stay_nearer_to_one_column() -> None:
    model = torch.nn.Sequential(
        *(part for _ in range(8) for part in (torch.nn.Linear(4, 4), torch.nn.Sigmoid()))
    )
    with record(model) as recording:
        model(torch.ones(1, 4))

    def width(dot: str) -> float:
        return float(layout(dot, "plain").split()[2])

    dot = to_dot(recording.graph, parameters="nodes")
    assert width(dot) < 0.8 * width(re.sub(r" \[minlen=\d\]", "", dot))


def test_an_unrolled_cell_without_modules_is_drawn_as_one_step() -> None:
    u, w = torch.nn.Parameter(torch.ones(2, 2)), torch.nn.Parameter(torch.ones(2, 2))
    x = torch.ones(600, 1, 2, requires_grad=True)
    h = torch.zeros(1, 2)
    for t in range(600):
        h = torch.tanh(x[t] @ u + h @ w)
    dot = to_dot(trace(h, names={"x": x, "u": u, "w": w}))
    assert len(Drawn(dot).nodes) < 20
    assert "\u00d7599" in dot
    assert "w (600\u00d7) f32[2, 2]" in dot


def test_closed_blocks_are_not_folded_where_each_has_a_value_to_show() -> None:
    graph = repeated(4)
    timed = graph.annotate(seconds={i: float(i + 1) for i in range(8)})
    folded, valued = to_dot(graph, depth=1), to_dot(timed, depth=1, color_by="time")
    assert "net.0 … 3" in folded
    assert all(f"backward {value} s" in valued for value in (3, 7, 11, 15))


def test_findings_and_differences_are_marked_in_form_and_colour() -> None:
    finding = Finding("cut-gradient", "error", "b never gets a gradient.", nodes=(1,))
    svg = layout(to_dot(two(), findings=[finding]))
    assert "✖ cut-gradient" in texts(svg, "1")
    assert "b never gets a gradient." in "".join(ET.fromstring(svg).itertext())
    for mark, sign in (("added", "+"), ("removed", "\u2212"), ("changed", "≠")):
        marked = layout(to_dot(two(), marks={1: mark}))
        assert f"{sign} {mark}" in texts(marked, "1")
        assert COLORS[mark][0] in colors(marked, "1")


@pytest.mark.parametrize("direction", ["TB", "BT", "LR", "RL"])
def test_the_direction_can_be_turned(direction: Any) -> None:
    plain = layout(to_dot(two(), direction=direction, explain=False), "plain").decode()
    at = {row.split()[1]: row.split()[2:4] for row in plain.splitlines() if row.startswith("node")}
    (x0, y0), (x1, y1) = (map(float, at[i]) for i in "01")
    assert {"TB": y0 > y1, "BT": y0 < y1, "LR": x0 < x1, "RL": x0 > x1}[direction]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"direction": "UP"}, "direction='UP' is unknown. Choose from 'TB'"),
        ({"theme": "neon"}, "theme='neon' is unknown"),
        ({"color_by": "size"}, "color_by='size' is unknown. Choose from 'device'"),
        ({"color_by": "time"}, "the graph has no values of this kind. Run a backward"),
        ({"parameters": "hide"}, "parameters='hide' is unknown"),
        ({"marks": {1: "new"}}, "mark='new' is unknown"),
        ({"depth": -3}, "depth=-3 is not a number of levels"),
        ({"limit": 0}, "limit=0 leaves nothing to show"),
        ({"module": "fc"}, "module='fc' is not in the graph. The graph has no modules"),
    ],
)
def test_a_wrong_option_is_refused_and_repeated(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        to_dot(two(), **options)


def _luminance(color: str) -> float:
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", [0, 1])
def test_all_text_can_be_read_on_what_it_stands_on(theme: int) -> None:
    # 4.5 is what WCAG 2 asks for small text.
    def contrast(a: tuple[str, str], b: tuple[str, str]) -> float:
        low, high = sorted((_luminance(a[theme]), _luminance(b[theme])))
        return (high + 0.05) / (low + 0.05)

    fills = ["background", "cluster", "operation", "input", "parameter", "transfer", "output"]
    grounds = [*(COLORS[name] for name in (*fills, "group", "buffer")), *GROUNDS, *CATEGORIES]
    for ground in [*grounds, *SCALE[:4], NONFINITE]:
        assert contrast(COLORS["ink"], ground) >= 4.5
    for ground in [*grounds, *SCALE[:2]]:
        assert contrast(COLORS["muted"], ground) >= 4.0
    for ground in SCALE[4:]:
        assert contrast(ON_STRONG, ground) >= 4.5


def test_the_name_of_a_parameter_stays_clear_of_the_line_below_it_and_of_the_lid_above() -> None:
    leaf = Node(0, "AccumulateGrad", (TensorMeta((3,), "float32", "cpu"),), "w_g", leaf="parameter")
    svg = layout(to_dot(Graph((leaf,)), explain=False, detail="full"), "svg").decode()
    at = {text: float(y) for y, text in re.findall(r'<text [^>]*y="(-?[\d.]+)"[^>]*>(\w+)<', svg)}
    # DejaVu Sans goes 0.24 of its size below the line that it stands on, and 0.76 above.
    assert at["AccumulateGrad"] - at["w_g"] > 0.24 * 12 + 0.76 * 9.5
    lid = max(float(y) for y in re.findall(r"[\d.]+,(-?[\d.]+)", svg.split("<path")[2]))
    assert at["w_g"] - 0.73 * 12 > lid + 1.5  # capitals are 0.73 high


def test_a_weight_is_written_with_its_own_shape_and_the_norm_of_its_own_gradient() -> None:
    model = MLP()
    with record(model) as recording:
        model(torch.randn(3, 4)).sum().backward()
    dot = to_dot(recording, detail="gradients")
    norm = model.fc1.weight.grad.norm().item()  # type: ignore[union-attr]
    [said] = re.findall(r"weight f32\[8, 4\] grad ([^<]+)<", dot)
    assert float(said) == pytest.approx(norm, rel=1e-3)


def test_a_weight_that_is_cast_on_its_way_says_to_which_dtype() -> None:
    model = MLP()
    with record(model) as recording, torch.autocast("cpu", torch.bfloat16):
        model(torch.randn(3, 4)).sum().backward()
    assert re.search(r"weight f32\[8, 4\] as bf16 grad", to_dot(recording, detail="gradients"))


def test_a_model_that_is_one_call_is_one_box_with_its_class() -> None:
    model = torch.nn.LSTM(3, 4, num_layers=2)
    with record(model) as recording:
        model(torch.randn(5, 2, 3))[0].pow(2).mean().backward()
    drawn = Drawn(to_dot(recording))
    said = [re.sub("<[^>]*>", " ", node["label"]).split() for node in drawn.nodes.values()]
    assert ["LSTM(3,", "4)", "f32[5,", "2,", "4]"] in said
    assert not drawn.clusters
    assert {"pow", "mean"} <= {words[0] for words in said}


def stubs(recording: Recording) -> dict[str, str]:
    """What is said of data, and of what it enters."""
    drawn = Drawn(to_dot(recording))
    said = lambda name: " ".join(re.sub("<[^>]*>", " ", drawn.nodes[name]["label"]).split())  # noqa: E731
    return {said(a): said(b) for a, b in drawn.edges if a.startswith("untracked_")}


def test_data_that_needs_no_gradient_enter_by_the_name_of_the_parameter_of_forward() -> None:
    model, image = MLP(), torch.randn(3, 4)
    with record(model) as recording:
        model(image).sum().backward()
    ((stub, end),) = stubs(recording).items()
    assert stub == "x f32[3, 4]"
    assert "fc1 · Linear" in end


def test_data_that_no_variable_holds_have_the_name_of_the_parameter_too() -> None:
    model = MLP()
    with record(model) as recording:
        model(torch.randn(3, 4)).sum().backward()
    assert [*stubs(recording)] == ["x f32[3, 4]"]


def test_a_target_enters_the_loss_by_the_name_of_the_parameter_of_the_loss() -> None:
    model, x, truth = torch.nn.Linear(4, 2), torch.randn(3, 4), torch.randn(3, 2)
    with record(model) as recording:
        mse_loss(model(x), truth).backward()
    said = stubs(recording)
    assert [*said] == ["x f32[3, 4]", "target f32[3, 2]"]
    assert "mse_loss" in said["target f32[3, 2]"]


def test_a_target_that_the_model_made_is_no_data() -> None:
    model, x = torch.nn.Linear(4, 2), torch.randn(3, 4)
    with record(model) as recording:
        made = model(x)
        mse_loss(made, made * 2).backward()
    assert [*stubs(recording)] == ["x f32[3, 4]"]


def test_a_part_of_the_data_does_not_have_the_name_of_all_of_it() -> None:
    model, x = torch.nn.Linear(4, 2), torch.randn(6, 4)
    with record(model) as recording:
        model(x[:3]).sum().backward()
    assert [*stubs(recording)] == ["input f32[3, 4]"]


def test_an_input_with_a_gradient_has_a_node_and_no_stub() -> None:
    model, x = MLP(), torch.randn(3, 4, requires_grad=True)
    with record(model) as recording:
        model(x).sum().backward()
    assert not stubs(recording)


def text_positions(svg: str, texts: Iterable[str]) -> list[float]:
    """Return x of each text in an SVG."""
    return [
        float(re.findall(rf'<text[^>]* x="([-\d.]+)"[^>]*>{one}</text>', svg)[0]) for one in texts
    ]


@pytest.mark.parametrize("count", [3, 4])
def test_replicas_are_drawn_from_left_to_right_in_their_order(count: int) -> None:
    with simulate_accelerator(count) as devices:
        model = nn.DataParallel(nn.Linear(4, 2).to(devices[0]), device_ids=devices)
        with record(model) as recording:
            model(torch.ones(2 * count, 4).to(devices[0])).sum().backward()
    svg = layout(to_dot(recording)).decode()
    places = text_positions(svg, [f"sim:{number}" for number in range(1, count)])
    assert places == sorted(places)


def test_two_calls_of_an_encoder_are_drawn_from_left_to_right() -> None:
    encoder = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    first, second = torch.ones(2, 4), torch.zeros(2, 4)
    with record(encoder) as recording:
        (encoder(first) * encoder(second)).sum().backward()
    svg = layout(to_dot(recording)).decode()
    places = text_positions(svg, ["first", "second"])
    assert places == sorted(places)


def test_a_box_says_how_many_of_its_parameters_are_frozen() -> None:
    block = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    model = nn.Sequential(OrderedDict(first=nn.Linear(4, 4), block=block, last=nn.Linear(4, 1)))
    for frozen in (block[2], block[4], model.last):
        frozen.requires_grad_(False)
    with record(model) as recording:
        model(torch.ones(2, 4)).sum().backward()
    said = {
        name: re.findall(r">(frozen|\d of \d parameters frozen)<", line)
        for name, line in re.findall(r"<B>(\w+) · ([^\n]*)", to_dot(recording.graph, depth=0))
    }
    assert said == {"first": [], "block": ["4 of 6 parameters frozen"], "last": ["frozen"]}


def test_a_node_that_makes_two_copies_says_so() -> None:
    with simulate_accelerator() as [device], record() as recording:
        x = torch.arange(9.0).reshape(3, 3).to(device).requires_grad_()
        row, column = torch.tensor([0, 1]), torch.tensor([1, 2])
        x[row, column].sum().backward()
    assert "cpu → sim:0, 2 copies, 32 B" in to_dot(recording.graph)
