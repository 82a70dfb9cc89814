"""Compare the widths, states and sentence of the gradient diagram with autograd."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from graphviz_torch import Recording, draw_flow, record, rules
from graphviz_torch.graph import Cut, Edge, Finding, GradientStats, Graph, Node, Parameter
from graphviz_torch.integrations.command.main import main
from graphviz_torch.render.gradient_flow import diagram as diagrams
from graphviz_torch.render.gradient_flow.diagram import FlowCut, tracks
from graphviz_torch.render.gradient_flow.from_graph import LEARN_NOTHING, flow_diagram
from graphviz_torch.render.gradient_flow.shapes import Scale, cut_mark, legend
from graphviz_torch.render.labels import TIMES
from tests.support.drawn import F32, HOSTILE
from tests.support.zoo import UNet, gan

SVG = "{http://www.w3.org/2000/svg}"


def texts(svg: str) -> list[str]:
    return ["".join(each.itertext()) for each in ET.fromstring(svg).iter(f"{SVG}text")]


def widths(svg: str) -> dict[str, list[float]]:
    """The widths of the places, by name, from left to right."""
    found: dict[str, list[float]] = {}
    for group in ET.fromstring(svg).iter(f"{SVG}g"):
        box, title = group.find(f"{SVG}rect"), group.findtext(f"{SVG}title")
        if box is not None and title:
            found.setdefault(title.partition(":")[0], []).append(float(box.get("width", "")))
    return found


class Net(nn.Module):
    """Four layers, optionally with a cut between the second and the third."""

    def __init__(self, cut: bool) -> None:
        super().__init__()
        self.cut = cut
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.spare = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        for number, layer in enumerate(self.layers):
            if self.cut and number == 2:
                x = x.detach()
            x = layer(x).tanh() * 0.3 if number == 1 else layer(x).tanh()
        return x


def trained(cut: bool, frozen: bool = False) -> tuple[Net, Recording, dict[str, float]]:
    """A net, its recorded step, and the norm of the gradient of what each layer hands on."""
    torch.manual_seed(0)
    net = Net(cut)
    net.layers[0].weight.requires_grad_(not frozen)
    norms: dict[str, float] = {}

    def noted(name: str, result: Tensor) -> None:
        if result.requires_grad:
            result.register_hook(lambda grad: norms.__setitem__(name, grad.norm().item()))

    for number in range(4):
        net.layers[number].register_forward_hook(
            lambda *given, number=number: noted(f"layers.{number}", given[2])
        )
    with record(net) as recording:
        net(torch.randn(16, 8)).square().sum().backward()
    return net, recording, norms


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("frozen", [False, True])
def test_the_sentence_counts_what_autograd_gave_no_gradient_and_names_the_line_of_the_cut(
    cut: bool, frozen: bool
) -> None:
    net, recording, _ = trained(cut, frozen)
    learning = [p for p in net.parameters() if p.requires_grad]
    starving = [p for p in learning if p.grad is None]
    head, about, *rest = texts(draw_flow(recording).source)
    assert head.startswith(f"{len(starving)} of {len(learning)} parameters learn nothing: ")
    assert ("test_flow.py:" in head) == cut
    assert ("1 more is frozen" in about) == frozen
    line = next(n for n, t in enumerate(Path(__file__).read_text().splitlines(), 1) if "ch()" in t)
    cuts = [text for text in rest if "\N{BLACK SCISSORS}" in text]
    assert len(cuts) == cut
    assert all(text.endswith(f"test_flow.py:{line}") for text in cuts)


class CutBranch(nn.Module):
    """A block that adds to its input what `inner` and `outer` make, with a cut between them."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.inner, self.outer = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(x)
        return x + self.outer(self.inner(x).detach())


def test_no_gradient_streams_out_of_what_lies_behind_a_cut_inside_of_a_block() -> None:
    model = CutBranch()
    with record(model) as recording:
        model(torch.rand(3, 4)).sum().backward()
    diagram = flow_diagram(recording.graph, ())
    places = {place.name: number for number, place in enumerate(diagram.nodes)}
    norms = {(link.source, link.target): link.norm for link in diagram.links}
    # The gradient of what `before` made came by the sum alone: inner's parameters have none.
    assert model.inner.weight.grad is None
    assert norms.pop((places["before"], places["inner"])) is None
    assert all(norm is not None for norm in norms.values())


def test_each_rule_that_says_what_learns_nothing_is_a_rule() -> None:
    assert {rule.id for rule in rules()} >= LEARN_NOTHING


@pytest.mark.parametrize(
    ("message", "place"),
    [
        ("encoder.w and encoder.b got no gradient.", "a.py:1"),
        ("w got no gradient.", "encoder.w and 1 more"),
        ("other.encoder.w got no gradient.", "encoder.w and 1 more"),
        ("encoder.w.lora got no gradient.", "encoder.w and 1 more"),
        ("No optimizer updates encoder.w.", "a.py:1"),
    ],
)
def test_a_finding_tells_of_a_parameter_by_its_whole_name(message: str, place: str) -> None:
    graph = Graph((), parameters=(Parameter("encoder.w", F32, True), Parameter("b", F32, True)))
    found = Finding("output-not-in-loss", "warning", message, where="a.py:1")
    assert flow_diagram(graph, (found,)).sentence == f"2 of 2 parameters learn nothing: {place}"


def test_a_finding_of_something_else_gives_no_line() -> None:
    graph = Graph((), parameters=(Parameter("w", F32, True),))
    found = Finding("most-memory", "warning", "w keeps most.", where="a.py:1")
    assert flow_diagram(graph, (found,)).sentence == "1 of 1 parameter learns nothing: w"


def test_a_place_is_as_wide_as_the_logarithm_of_the_norm_that_a_hook_measures() -> None:
    _, recording, norms = trained(cut=False)
    drawn = widths(draw_flow(recording).source)
    measured = {name: math.log10(norm) for name, norm in norms.items()}
    assert max(measured.values()) - min(measured.values()) > 0.4
    points = sorted((measured[name], *drawn[name]) for name in norms)
    assert points[0][1] > 12  # a thinner place is drawn as wide, to be seen
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(points)]
    assert slopes[0] > 0
    assert slopes == pytest.approx([slopes[0]] * len(slopes), rel=0.1)


def test_two_steps_stand_beside_each_other_on_one_scale() -> None:
    _, before, _ = trained(cut=True)
    _, after, _ = trained(cut=False)
    drawn = widths(draw_flow(before, after).source)
    # What lies between the cut and the loss has the same gradient in both.
    for name in ("layers.2", "layers.3"):
        one, other = drawn[name]
        assert one == pytest.approx(other, abs=0.1)
    assert draw_flow(before, after).source.count("<title>layers.0: no gradient</title>") == 1
    heads = [text for text in texts(draw_flow(before, after).source) if "learn nothing" in text]
    assert [head.partition(":")[0] for head in heads] == ["before", "after"]


def test_two_steps_are_on_one_scale_where_one_has_many_lanes() -> None:
    def lanes(count: int) -> Graph:
        model = nn.ModuleList(nn.Linear(4, 4) for _ in range(count))
        with record(model) as recording:
            results = [layer(torch.ones(2, 4)) for layer in model]
            sum(results, torch.zeros(())).sum().backward()
        return recording.graph

    few, many = lanes(2), lanes(9)
    drawn = widths(draw_flow(few, many).source)
    # Each layer gets the gradient of the sum: it is the same for all, whatever their number.
    assert {len(each) for name, each in drawn.items() if name in ("0", "1")} == {2}
    for name in ("0", "1"):
        one, other = drawn[name]
        assert one == other


def test_a_step_in_which_all_learns_says_so() -> None:
    model = nn.Linear(2, 1)
    with record(model) as recording:
        model(torch.ones(4, 2)).sum().backward()
    assert texts(draw_flow(recording).source)[0] == "All 2 parameters learn."


def test_a_parameter_of_two_backwards_counts_once_and_learns_from_either() -> None:
    recording = gan()
    [graph, *_] = recording.graphs
    names = {p.name for p in graph.parameters}
    shown = texts(draw_flow(recording).source)
    assert shown[0] == f"All {len(names)} parameters learn."
    assert not [text for text in shown if "'" in text]


def test_a_step_in_which_all_is_frozen_and_a_graph_without_nodes_have_a_sheet_too() -> None:
    model = nn.Linear(2, 1).requires_grad_(False)
    with record(model) as recording:
        model(torch.ones(4, 2, requires_grad=True)).sum().backward()
    head, about, *_ = texts(draw_flow(recording).source)
    assert head == "All parameters are frozen."
    assert "more" not in about
    assert "No parameters were recorded" in texts(draw_flow(Graph(())).source)[0]


@pytest.mark.parametrize("hostile", HOSTILE)
def test_a_hostile_name_comes_out_as_it_went_in(hostile: str) -> None:
    stats = (GradientStats(1.0, 1.0, 1.0, 0.0),)
    leaf = Node(0, "AccumulateGrad", (F32,), hostile, leaf="parameter")
    rest = [
        Node(i, "MulBackward0", (F32,), hostile, "mul", grad_outputs=stats, module=hostile)
        for i in (1, 2)
    ]
    cut = Cut("detach", None, 1, (2,), where=hostile)
    known = Parameter(hostile, F32, True, node=0)
    graph = Graph((leaf, *rest), (Edge(0, 1),), ((1, 0), (2, 0)), parameters=(known,), cuts=(cut,))
    svg = draw_flow(graph).source
    shown = " ".join(" ".join(text.split()) for text in ET.fromstring(svg).itertext())
    assert " ".join(hostile.split())[:30] in shown
    assert "<script" not in svg


def layered(count: int) -> Graph:
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(count)])
    with record(model) as recording:
        model(torch.ones(2, 4)).sum().backward()
    return recording.graph


@pytest.mark.parametrize("count", [3, 40, 100])
def test_every_text_stands_on_a_sheet_of_1200_pixels_and_none_on_another(count: int) -> None:
    svg = draw_flow(layered(count)).source
    tree = ET.fromstring(svg)
    wide, high = float(tree.get("width", "")), float(tree.get("height", ""))
    assert wide <= 1200
    boxes: dict[tuple[float, float], float] = {}
    for text in tree.iter(f"{SVG}text"):
        x, y, size = (float(text.get(name, "")) for name in ("x", "y", "font-size"))
        assert size >= 10
        long = 0.5 * size * len(text.text or "")
        left = {"end": x - long, "middle": x - long / 2}.get(text.get("text-anchor", ""), x)
        assert left >= 0
        assert left + long <= wide
        assert y <= high
        boxes[left, y] = long
    for (left, y), long in boxes.items():
        after = [x for x, other in boxes if other == y and x > left]
        assert not after or left + long <= min(after)
    assert len(widths(svg)) == count + 1  # and the loss


def test_no_stream_that_turns_to_the_next_column_runs_into_the_legend_or_the_title() -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(40))

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = x + layer(x).tanh()
            return x

    model = Residual()
    with record(model) as recording:
        model(torch.ones(2, 4)).sum().backward()
    links, caption, _ = re.split(r"<text([^>]*)>Norm of the gradient", draw_flow(recording).source)
    (legend,) = re.findall(r'y="([\d.]+)"', caption)
    bends = re.findall(r'([\d.]+)" fill="none" [^>]*stroke-width="([\d.]+)"', links)
    lowest = max(float(y) + float(width) / 2 for y, width in bends)
    assert lowest < float(legend) - 11  # the height of its letters
    (title,) = re.findall(r'y="([\d.]+)"[^>]*>Data enters above', links)
    begins = re.findall(r'<path d="M[\d.]+ (-?[\d.]+)C', links)
    assert min(map(float, begins)) > float(title)


def test_all_calls_of_a_module_in_a_loop_too_long_for_a_sheet_are_one_place() -> None:
    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = nn.Linear(4, 4), nn.Linear(4, 1)

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(150):
                x = self.cell(x)
                x.register_hook(lambda grad: norms.append(grad.norm().item()))
                x = x.tanh()
            result: Tensor = self.head(x)
            return result

    torch.manual_seed(0)
    model, norms = Loop(), list[float]()
    with record(model) as recording:
        model(torch.ones(2, 4)).sum().backward()
    cell, head, loss = flow_diagram(recording.graph, ()).nodes
    assert (cell.name, head.name, loss.name) == ("cell", "head", "sum")
    assert cell.norm == pytest.approx(max(norms))
    assert {each.name for each in cell.parameters} == {"weight", "bias"}
    assert list(widths(draw_flow(recording).source)) == ["cell", "head", "sum"]


def test_the_skips_of_a_unet_run_in_lanes_beside_it() -> None:
    torch.manual_seed(0)
    model = UNet()
    with record(model) as recording:
        model(torch.randn(1, 3, 32, 32)).mean().backward()
    svg = draw_flow(recording).source
    bends = re.findall(r'<path d="M([\d.]+) [\d.]+C[^"]*? ([\d.]+) [\d.]+" fill="none"', svg)
    assert len([one for one, other in bends if float(one) < float(other)]) >= 2  # out, and
    assert len([one for one, other in bends if float(one) > float(other)]) >= 2  # in


@given(st.sets(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=16))
def test_no_two_results_run_in_one_lane_and_none_through_a_place(
    edges: set[tuple[int, int]],
) -> None:
    rows = 1 + max([max(edge) for edge in edges], default=0)
    places, found = tracks(rows, edges)
    for row in range(rows):
        passing = [c.lanes[row] for c in found if c.source < row < c.uses[-1]]
        assert len({*passing, places[row]}) == len(passing) + 1
    assert {(c.source, use) for c in found for use in c.uses} == {(a, b) for a, b in edges if a < b}


def test_the_command_writes_one_file_and_takes_another_step_beside_it(tmp_path: Path) -> None:
    graph = layered(3)
    saved = graph.save(tmp_path / "step.json")
    assert main(["export", "--to", "flow", str(saved)]) == 0
    assert (tmp_path / "step.flow.svg").read_text() == draw_flow(graph).source
    out = tmp_path / "both.svg"
    assert main(["export", "--to", "flow", str(saved), "--after", str(saved), "-o", str(out)]) == 0
    assert out.read_text() == draw_flow(graph, graph).source


def test_many_layers_of_many_modules_are_a_place_each() -> None:
    layers = [nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(14)]
    model = nn.ModuleList(layers)
    with record(model) as recording:
        x = torch.rand(1, 3, 8)
        for layer in model:
            x = layer(x)
        x.mean().backward()
    diagram = flow_diagram(recording.graph, ())
    assert {str(number) for number in range(14)} <= {place.name for place in diagram.nodes}
    assert len(diagram.nodes) <= 66


class Saturated(nn.Module):
    """A head whose output is scaled so that almost no gradient arrives at it."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x)) * 1e-14
        return out


def test_a_module_has_the_gradient_that_arrives_at_its_own_output() -> None:
    torch.manual_seed(0)
    model = Saturated()
    outputs: dict[str, Tensor] = {}
    for name in ("body", "head"):
        module = getattr(model, name)

        def keep(_: object, __: object, output: Tensor, name: str = name) -> None:
            output.retain_grad()
            outputs[name] = output

        module.register_forward_hook(keep)
    with record(model) as recording:
        nn.functional.cross_entropy(model(torch.ones(5, 4)), torch.arange(5) % 3).backward()
    places = {place.name: place for place in flow_diagram(recording.graph, ()).nodes}
    for name, output in outputs.items():
        assert output.grad is not None
        assert places[name].norm == pytest.approx(output.grad.norm().item())
        assert places[name].state == "learns_nothing"  # 1e-14 is below what a parameter learns from
    assert texts(draw_flow(recording).source)[0].startswith("4 of 4 parameters learn nothing")


def test_a_cut_has_one_color_in_the_picture_and_in_the_legend() -> None:
    for harmful in (False, True):
        diagram = "".join(cut_mark(0, 0, FlowCut(0, 1, ("detach()",), harmful), 40, 40))
        [bar, *_] = re.findall(r'fill="(#\w+)"', diagram)
        shown = "".join(legend(Scale([1.0]), 1.0, 100))
        [sign] = re.findall(r'v8h-20z" fill="(#\w+)"', shown)
        assert bar == sign
    assert "at least 1e-12" in shown


def blocks(scales: list[float]) -> Graph:
    """One step of residual blocks, each of two modules, whose gradients have these norms."""
    rows = [Node(0, "SinBackward0", (None,), operation="sin", module="stem", scope="stem")]
    edges = []
    for number, norm in enumerate(scales):
        for name in ("norm", "mlp"):
            i, path = len(rows), f"h.{number}.{name}"
            stats = (GradientStats(norm, norm, norm, 0.0),)
            made = Node(i, "TanhBackward0", (None,), operation="tanh", module=path, scope=path)
            rows.append(made._replace(grad_outputs=stats))
            edges.append(Edge(i - 1, i))
    end = len(rows)
    rows.append(Node(end, "SumBackward0", (None,), label="loss", operation="sum"))
    return Graph(tuple(rows), (*edges, Edge(end - 1, end)), ((end, 0),))


def test_identical_blocks_are_one_with_the_gradients_of_the_first_and_last() -> None:
    shown = texts(draw_flow(blocks([0.5, 0.4, 0.3, 0.25])).source)
    assert "h.0-3.norm" in shown
    assert "h.0-3.mlp" in shown
    assert shown.count(f"{TIMES}4: 0.5 to 0.25") == 2
    assert not [text for text in shown if "h.1" in text]


def test_blocks_stay_apart_where_the_gradient_vanishes_among_them() -> None:
    shown = texts(draw_flow(blocks([1e-6, 0.4, 0.3, 0.25])).source)
    assert "h.0.norm" in shown
    assert shown.count(f"{TIMES}3: 0.4 to 0.25") == 2


def test_a_chain_of_layers_is_not_compared_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[str, str]] = []

    def count(first: str, last: str) -> object:
        compared.append((first, last))
        return original(first, last)

    original = diagrams._numbers_apart
    monkeypatch.setattr(diagrams, "_numbers_apart", count)
    layers = 60
    model = nn.Sequential(*[nn.Linear(2, 2) for _ in range(layers)])
    with record(model) as recording:
        model(torch.ones(1, 2)).sum().backward()
    diagrams.fold_blocks(flow_diagram(recording.graph, ()))
    # Each pair of rows is compared at most once. All blocks of all sizes would be 30 times as many.
    assert layers < len(compared) < layers**2 / 2
