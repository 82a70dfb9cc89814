"""Test that the default picture of real models is small enough for a page."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from docs.sixteen import PROGRAMS, SMALLEST, size_and_text
from graphviz_torch import Graph, draw_graph, record
from graphviz_torch.export import to_dot
from graphviz_torch.graph import Cut, Edge, Finding, Node, TensorMeta
from graphviz_torch.render.dot.layout import layout
from graphviz_torch.render.dot.legend import SYMBOL_MEANINGS, omissions
from graphviz_torch.render.drawing.drawing import Drawing
from graphviz_torch.render.drawing.picture_size import Sizes
from graphviz_torch.render.drawing.steps import draw
from graphviz_torch.render.drawing.values import Open
from tests.support.drawn import Drawn, named
from tests.support.models import Transformer, known, tokens
from tests.support.recorded import trained
from tests.support.zoo import ZOO, UNet

F32 = (TensorMeta((2, 8), "float32", "cpu"),)
_TRANSFORMERS = ("GPT-2", "BERT", "T5", "Llama", "ViT", "CLIP", "gpt2", "bert_frozen", "t5", "lora")


@pytest.fixture(scope="module")
def recordings() -> dict[str, Any]:
    return {}


def step(name: str, known: dict[str, Any]) -> Any:
    if name in _TRANSFORMERS:
        pytest.importorskip("transformers")
    if name not in known:
        torch.manual_seed(0)
        make: Callable[[], Any] = {**ZOO, **PROGRAMS}[name]
        known[name] = make()
    return known[name]


@pytest.mark.parametrize("name", [*ZOO, *PROGRAMS])
def test_a_default_picture_can_be_read_on_a_page(name: str, recordings: dict[str, Any]) -> None:
    svg = draw_graph(step(name, recordings)).pipe("svg")
    assert isinstance(svg, bytes)
    assert size_and_text(svg.decode())[2] >= SMALLEST


@pytest.mark.parametrize("family", ["StableLm", "GraniteMoe", "VaultGemma", "Falcon"])
def test_what_stands_beside_a_decoder_leaves_it_readable(family: str) -> None:
    pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 99}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4}
    model, ids = known(f"{family}ForCausalLM", f"{family}Config", **sizes, **heads), tokens(8, 2)
    with record(model) as recording:
        model(input_ids=ids, labels=ids).loss.backward()
    svg = draw_graph(recording).pipe("svg")
    assert isinstance(svg, bytes)
    assert size_and_text(svg.decode())[2] >= SMALLEST


@pytest.mark.parametrize("name", [*ZOO, *PROGRAMS])
def test_every_edge_leads_from_a_box_to_a_box_that_says_something(
    name: str, recordings: dict[str, Any]
) -> None:
    dot = to_dot(step(name, recordings))
    said = dict(
        re.findall(r"^\s*(?:subgraph \w+ \{)*\{?(?:rank=same \w+ )?(\w+) \[label=<(.*)", dot, re.M)
    )
    ends = re.findall(r"^\s*(\w+) -> (\w+)\b(?! \[style=invis)", dot, re.M)
    assert ends
    for key in {key for pair in ends for key in pair}:
        assert re.sub("<[^>]*>", "", said[key]).strip("\u200a >")


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_box_says_no_name_of_autograds_that_the_program_does_not_have(
    name: str, recordings: dict[str, Any]
) -> None:
    svg = layout(to_dot(step(name, recordings), explain=False)).decode()
    words = set(re.findall(r"\w+", " ".join(re.findall(r"<text[^>]*>([^<]*)<", svg))))
    autograds = {
        *("addmm", "mm", "bmm", "baddbmm", "convolution", "native_layer_norm", "nll_loss"),
        *("native_batch_norm", "log_softmax", "unsafe_view", "alias", "expand", "safe_softmax"),
        *("max_pool2d_with_indices", "upsample_nearest2d", "linalg_vector_norm", "clamp_min"),
        *("native_dropout", "reshape_alias", "AccumulateGrad", "rsub", "t", "view", "transpose"),
    }
    diffusions_own = {"t"} if name == "diffusion" else set()
    assert words & autograds <= diffusions_own


def test_the_repeated_block_of_a_transformer_is_open_once(recordings: dict[str, Any]) -> None:
    graph = draw_graph(step("gpt2", recordings)).graph
    drawing = draw(graph, {})
    (block,) = drawing.tree.represented_groups
    assert len(drawing.tree.represented_groups[block]) == 4
    assert block in drawing.tree.framed_groups
    assert drawing.title_with_class(block) == "h.0 … 3  \N{MULTIPLICATION SIGN}4 · GPT2Block"


def framed(drawing: Drawing) -> list[str]:
    """The titles of the frames of modules."""
    assert drawing.groups is not None
    modules = [n for n in drawing.tree.framed_groups if drawing.groups.groups[n].kind == "module"]
    return [drawing.title_with_class(number) for number in sorted(modules)]


def test_one_of_the_blocks_that_do_not_all_fit_is_open(recordings: dict[str, Any]) -> None:
    drawing = draw(draw_graph(step("resnet18", recordings)).graph, {})
    # A Sequential has no frame: its name is in the titles of its blocks.
    assert framed(drawing) == ["layer1.0 … 1  \N{MULTIPLICATION SIGN}2 · BasicBlock"]
    closed = [drawing.title(number) for number in sorted(drawing.closed_groups)]
    assert closed == [f"layer{stage}.{block}" for stage in (2, 3, 4) for block in (0, 1)]


def test_the_part_that_learns_is_open_if_most_is_frozen(recordings: dict[str, Any]) -> None:
    graph = draw_graph(step("lora", recordings)).graph
    drawing = draw(graph, {})
    assert "query · LoRA" in framed(drawing)
    drawn = {graph.nodes[node].module.rpartition(".")[2] for node in drawing.nodes}
    assert {"lora_A", "lora_B"} <= drawn
    assert drawing.groups is not None
    learning = {node.module for node in graph.nodes if node.leaf == "parameter"}
    for number in drawing.tree.framed_groups:
        path = drawing.groups.groups[number].path
        assert any(module.startswith(f"{path}.") for module in learning)


class Alone(nn.Module):
    """A module of 160 operations of its own, each on two earlier results."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = [x * self.weight, x + self.weight]
        for i in range(160):
            a, b = rows[-1], rows[-2 - i % 3 % len(rows)]
            rows.append((a.sin, a.tanh, a.cos, a.exp)[i * i % 7 % 4]() if i % 2 else a * b)
        return rows[-1]


def test_a_module_that_does_not_fit_is_open_in_parts() -> None:
    model = nn.Sequential(Alone(), nn.Tanh())
    with record(model) as recording:
        model(torch.ones(4)).sum().backward()
    drawing = draw(recording.graph, {})
    assert len(drawing.nodes) + len(drawing.boxes) >= 5


class Conditions(nn.Module):
    """A sum of embeddings of different sizes, whose names are long."""

    def __init__(self) -> None:
        super().__init__()
        sizes = {f"embedding_of_the_condition_{i}": nn.Linear(i + 1, 8) for i in range(3)}
        self.conditions = nn.ModuleDict(sizes)

    def forward(self, *values: torch.Tensor) -> torch.Tensor:
        layers = self.conditions.values()
        joined = torch.cat([layer(x) for layer, x in zip(layers, values, strict=True)])
        return joined.square().mean()


def test_a_picture_that_would_be_too_wide_has_names_in_short_lines() -> None:
    model = Conditions()
    with record(model) as recording:
        model(*(torch.randn(i + 1) for i in range(3))).backward()
    picture = draw_graph(recording)
    assert size_and_text(picture.pipe("svg").decode())[2] >= SMALLEST
    titles = re.findall(r"<B>(conditions.*?)</B>", picture.source, re.DOTALL)
    assert max(len(line) for title in titles for line in re.split(r"<BR/>|\n", title)) <= 26


def test_arithmetic_stays_closed_while_a_module_does(recordings: dict[str, Any]) -> None:
    drawing = draw(draw_graph(step("unet", recordings)).graph, {})
    assert drawing.groups is not None
    groups = drawing.groups.groups
    closed = {groups[number].name for number in drawing.closed_groups}
    assert "dice_loss" in closed
    assert closed & {"enc1", "dec1", "enc2"}  # else it would be open
    drawing = draw(draw_graph(step("vae", recordings)).graph, {})  # all of it has room
    assert drawing.groups is not None
    assert not drawing.closed_groups
    opened = {drawing.groups.groups[number].name for number in drawing.tree.framed_groups}
    assert "kl_divergence" in opened


@pytest.mark.parametrize(("name", "key"), [("gpt2", "ln_1 · LayerNorm"), ("vae", "kl_divergence")])
def test_the_size_of_a_box_is_nearly_that_which_graphviz_gives_it(
    name: str, key: str, recordings: dict[str, Any]
) -> None:
    graph = draw_graph(step(name, recordings)).graph
    drawing, laid_out = draw(graph, {}), Drawn(to_dot(graph)).nodes
    sizes = Sizes(drawing.having(tree=Open(None)))
    checked = 0
    for node in drawing.nodes:
        if node in drawing.module_titles or node in drawing.outputs:
            continue  # it has the name of its module, and a second line around it
        width, height = sizes.box(node)
        box = laid_out[str(node)]
        assert height == pytest.approx(72 * float(box["height"]), abs=4)
        assert width == pytest.approx(72 * float(box["width"]), rel=0.35, abs=12)
        checked += 1
    assert checked


def test_a_changed_drawing_tells_anew_what_follows_from_what_was_changed() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    with record(model) as recording:
        model(torch.ones(1, 2)).sum().backward()
    drawn = draw(recording.graph, {})
    assert (len(drawn.ends), [*drawn.module_titles.values()]) == (2, ["0", "1"])
    changed = drawn.having(edges=(), merged_edges=(), tree=Open(None))
    assert (changed.ends, changed.module_titles) == ([], {})


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
    assert any("<B>0.0 · Linear(4, 4)</B>" in label and "addmm" not in label for label in labels)
    assert any("<B>1 · ReLU</B>" in label for label in labels)


def test_more_is_drawn_on_demand(recordings: dict[str, Any]) -> None:
    graph = step("ResNet-50", recordings).graph
    usual = draw(graph, {})
    for options in ({"detail": "full"}, {"limit": 1000}, {"depth": 9}):
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
    assert (len(few.nodes), few.boxes, few.tree.represented_groups) == (13, [], {})
    assert (len(many.nodes), many.boxes) == (3, [])
    assert [len(family) for family in many.tree.represented_groups.values()] == [40]


@pytest.mark.parametrize("count", [60, 100, 150, 1000])
def test_however_many_blocks_there_are_a_page_has_boxes_with_their_names(count: int) -> None:
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
    assert drawn.fits
    assert 12 <= len(drawn.nodes) + len(drawn.boxes) <= 40
    path = re.search(r"module='(.*?)'", omissions(drawn))
    assert path is not None
    assert draw(graph, {"module": path[1]}).nodes


def test_a_closed_run_of_operations_opens_by_the_name_that_the_picture_says() -> None:
    names = [f"op{i}" for i in range(120)]
    nodes = [Node(i, name, F32, operation=name) for i, name in enumerate(names)]
    edges = [Edge(i - 1, i) for i in range(1, 120)]
    graph = Graph(tuple(nodes), tuple(edges), ((119, 0),))
    path = re.search(r"module='(operations (\d+)-(\d+))'", omissions(draw(graph, {})))
    assert path is not None
    inside = draw(graph, {"module": path[1]})
    assert inside.nodes == [*range(int(path[2]) - 1, int(path[3]))]  # op0 is the first
    with pytest.raises(ValueError, match="module='operations 5-6' is not in the graph"):
        draw(graph, {"module": "operations 5-6"})


def test_the_legend_explains_the_scissors_of_a_picture_that_has_them() -> None:
    rows = [Node(i, "SinBackward0", F32, operation="sin") for i in range(9)]
    graph = Graph(tuple(rows), tuple(Edge(i, i + 1) for i in range(8)), ((8, 0),))
    detached = Graph(graph.nodes, graph.edges, graph.outputs, cuts=(Cut("detach", None, 0, (5,)),))
    for drawn, cut in ((graph, False), (detached, True)):
        dot = to_dot(drawn)
        assert ("style=dashed arrowhead=none" in dot) == (SYMBOL_MEANINGS["cut"] in dot) == cut
    assert not any(text in to_dot(graph) for text in SYMBOL_MEANINGS.values())


def test_the_skips_of_a_unet_are_arrows_to_what_joins_them() -> None:
    graph = trained(UNet(), torch.randn(2, 3, 32, 32))
    drawn = draw(graph, {})
    joins = named(graph, "cat")
    assert set(joins) <= set(drawn.nodes)
    for join in joins:
        assert len([source for source, target in drawn.ends if target == join]) == 2
    long = [ends for ends in drawn.ends if len(_road(drawn, *ends)) > 3]
    assert len(long) == 4


def _road(drawn: Drawing, start: int, end: int) -> list[int]:
    """The longest way from one thing to another, which an arrow between them passes."""
    ways = [_road(drawn, target, end) for one, target in drawn.ends if one == start != end]
    return [start, *max(ways, key=len, default=[])] if start == end or any(ways) else []
