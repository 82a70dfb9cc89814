"""Test the view in a real browser: actions of a user, and what is visible afterwards."""

from __future__ import annotations

import random
import re

import pytest
import torch
from playwright.sync_api import expect
from torch import nn

from docs.sixteen import PROGRAMS
from graphviz_torch import diff, record, simulate_accelerator, trace
from graphviz_torch import find as findings
from graphviz_torch.graph import (
    Cut,
    Edge,
    Finding,
    GradientStats,
    Graph,
    ModuleRow,
    Node,
    SavedTensor,
    TensorMeta,
)
from graphviz_torch.graph.units import bytes_text
from graphviz_torch.render.drawing.steps import draw
from graphviz_torch.render.resolve import graph_and_marks
from tests.support.viewed import Open, bring, cards, find, mlp, search, worked

pytest_plugins = ["tests.support.view_fixtures"]
INSIDE = "document.querySelector('#view').firstChild.shadowRoot"
# The texts of the edges that stand beside no line that is seen.
LOST = f"""() => {{
  const seen = [...{INSIDE}.querySelectorAll(".wire")]
    .filter((wire) => getComputedStyle(wire).display !== "none")
    .flatMap((wire) => Array.from({{length: wire.getTotalLength() / 4}}, (_, i) =>
      wire.getPointAtLength(4 * i).matrixTransform(wire.getScreenCTM())));
  return [...{INSIDE}.querySelectorAll(".wire-label")].filter((label) => {{
    const box = label.getBoundingClientRect();
    return !seen.some(({{x, y}}) => x > box.left - 15 && x < box.right + 15
      && y > box.top - 4 && y < box.bottom + 4);
  }}).map((label) => label.textContent);
}}"""


# The boxes behind which an edge passes.
CROSSED = f"""() => {{
  const seen = [...{INSIDE}.querySelectorAll(".wire")]
    .filter((wire) => getComputedStyle(wire).display !== "none")
    .flatMap((wire) => Array.from({{length: wire.getTotalLength() / 4}}, (_, i) =>
      wire.getPointAtLength(4 * i).matrixTransform(wire.getScreenCTM())));
  return [...{INSIDE}.querySelectorAll(".card")].filter((card) => {{
    const box = card.getBoundingClientRect();
    return seen.some(({{x, y}}) => x > box.left + 8 && x < box.right - 8
      && y > box.top + 8 && y < box.bottom - 8);
  }}).map((card) => card.textContent);
}}"""


def test_a_small_graph_opens_whole_and_says_the_gradients(opened: Open) -> None:
    page = opened(worked())
    assert cards(page) == set(range(5))
    text = " ".join(page.locator(".card").all_text_contents())
    assert text.count("[2, 2.667, 3.333]") == 2
    assert "f32[3]" in text
    assert "cpu" in text
    for told in ("add 2", "pow 2", "add 3", "mean"):  # y = mean((x + 2)**2 + 3)
        assert told in text


def test_a_parameter_is_written_in_the_operation_that_uses_it(opened: Open) -> None:
    graph = mlp()
    page = opened(graph)
    parameters = {n.id for n in graph.nodes if n.leaf == "parameter"}
    assert len(parameters) == 4
    assert page.locator(".inside").count() == 4  # in the boxes of the two layers
    page.get_by_role("button", name="Open all groups").click()
    expect(page.locator(".frame")).to_have_count(2)
    data = len(graph.nodes)  # the box of what autograd did not record: the input
    assert cards(page) == ({n.id for n in graph.nodes} | {data}) - parameters
    assert page.locator(".inside").count() == 4
    page.locator('.inside:has-text("weight")').first.click()
    assert "weight" in page.locator(".panel h2").inner_text()


def test_a_group_opens_and_closes_in_place(opened: Open, transformer: Graph) -> None:
    page = opened(transformer)
    item = bring(page, "layers.1")
    before = cards(page)
    page.locator(f'.card[data-item="{item}"] [data-act=open]').click()
    page.wait_for_selector(f'.frame[data-item="{item}"]')
    inside = cards(page) - before
    assert inside
    bring(page, "layers.1")
    page.locator(f'.frame[data-item="{item}"] [data-act=close]').click()
    page.wait_for_selector(f'.card[data-item="{item}"]')
    assert cards(page) == before


def test_one_module_around_all_is_opened_until_there_is_something_to_see(opened: Open) -> None:
    model = nn.Sequential()
    model.add_module(
        "all", nn.Sequential(*(nn.Sequential(nn.Tanh(), nn.Sigmoid()) for _ in "x" * 70))
    )
    with record(model) as recording:
        model(torch.ones(2, requires_grad=True)).sum().backward()
    page = opened(recording.graph)
    expect(page.locator(".view")).to_have_attribute("data-cards", "7")
    # The input, two blocks of two operations, a card of the 68 others, and sum.


def test_blocks_like_the_first_lie_in_one_card_until_it_is_opened(
    opened: Open, transformer: Graph
) -> None:
    page = opened(transformer)
    stack = page.locator(".card", has_text="layers.1-11 ·")
    expect(stack).to_have_count(1)
    before = cards(page)
    item = stack.get_attribute("data-item")
    stack.locator("[data-act=open]").click()
    page.wait_for_selector(f'.frame[data-item="{item}"]')
    assert len(cards(page) - before) == 11


def test_a_group_opens_with_all_inside_it(opened: Open, transformer: Graph) -> None:
    page = opened(transformer)
    item = bring(page, "layers.5")
    inside = {n.id for n in transformer.nodes if n.module.startswith("layers.5") and not n.leaf}
    assert len(inside) > 20
    page.locator(f'.card[data-item="{item}"] [data-act=open]').click(modifiers=["Shift"])
    page.wait_for_selector(f'.frame[data-item="{item}"]')
    assert inside <= cards(page)


def test_a_long_row_stands_in_columns(opened: Open) -> None:
    x = torch.ones(2, requires_grad=True)
    y = x
    turns = random.Random(0)
    for _ in range(80):  # in no order that repeats
        y = turns.choice((y.sin, y.cos, y.tanh))()
    graph = trace(y, names={})
    page = opened(diff(graph, graph))  # groups nothing to fit a page
    assert len(cards(page)) == 81
    boxes = [card.bounding_box() for card in page.locator(".card").all()]
    columns = {round(box["x"] + box["width"] / 2) for box in boxes if box}
    assert 3 <= len(columns) <= 20


def test_edges_that_reach_far_show_at_a_click(opened: Open) -> None:
    past = [torch.ones(2, requires_grad=True)]
    for _ in range(14):
        past.append(torch.stack(past).sum(0))
    graph = trace(past[-1], names={})
    page = opened(diff(graph, graph))  # groups nothing to fit a page
    page.get_by_role("button", name="See all").click()
    far = page.locator(".wire.distant")
    assert far.count() > 8
    assert not any(wire.is_visible() for wire in far.all())
    page.locator('.card[data-item="0"]').click()
    shown = [wire for wire in far.all() if wire.is_visible()]
    assert 0 < len(shown) < far.count()


@pytest.mark.parametrize("count", [12, 20])  # bows at the side; none until a click
def test_what_an_edge_carries_stands_beside_a_line_that_is_seen(opened: Open, count: int) -> None:
    first, *parts = torch.ones(count, 3, requires_grad=True).mul(2).unbind()
    for part in parts:
        first = (first.sin() + part).tanh().exp().cos()
    page = opened(trace(first.sum(), names={}))
    page.get_by_role("button", name="Open all groups").click()
    expect(page.locator(".frame, .wire.distant").first).to_be_attached()
    assert page.locator(".wire.distant.cut").count() == (
        0 if count == 12 else page.locator(".wire.distant").count()
    )
    assert page.evaluate(LOST) == []


def test_a_group_opens_by_double_click_and_by_enter(opened: Open, transformer: Graph) -> None:
    page = opened(transformer)
    item = bring(page, "layers.2")
    page.locator(f'.card[data-item="{item}"]').click()
    page.keyboard.press("Enter")
    frame, card = (page.locator(f'.{kind}[data-item="{item}"]') for kind in ("frame", "card"))
    expect(frame).to_have_count(1)
    page.keyboard.press("Enter")
    expect(frame).to_have_count(0)
    card.dblclick()
    expect(frame).to_have_count(1)


def test_a_break_in_a_name_shows_as_a_sign(opened: Open) -> None:
    page = opened(worked().annotate(label={1: "two\nlines"}))
    assert "two⏎lines" in (page.locator('.card[data-item="1"]').text_content() or "")
    page.locator('.card[data-item="1"]').click()
    assert page.locator(".panel h2").inner_text() == "two⏎lines"


def test_a_long_name_is_shortened_and_told_in_full(opened: Open) -> None:
    name = "scaled_dot_product_flash_attention_for_cpu"
    card = opened(worked().annotate(operation={1: name}, call={1: ""})).locator(
        '.card[data-item="1"]'
    )
    written = card.locator("text").first.text_content() or ""
    assert "…" in written
    assert name not in written
    assert name in (card.locator("title").first.text_content() or "")


def test_bytes_are_in_units_of_1024(opened: Open) -> None:
    graph = worked()
    tensor = TensorMeta((768,), "float32", "cpu")
    graph = graph.annotate(saved={2: (SavedTensor("self", tensor, 3072),)})
    panel = opened(graph).locator(".panel")
    assert "3.0 KiB" in panel.inner_text()


def test_what_is_saved_is_told_by_kind(opened: Open, transformer: Graph) -> None:
    said = opened(transformer).locator(".panel").inner_text()
    kinds = {saved.kind for node in transformer.nodes for saved in node.saved}
    assert {"activation", "parameter"} <= kinds
    for kind in kinds:
        saved = (each for node in transformer.nodes for each in node.saved if each.kind == kind)
        if total := sum(each.nbytes for each in saved):
            assert f"saved {kind}s\n{bytes_text(total)}" in said


def test_a_click_tells_all_that_is_known(opened: Open) -> None:
    graph = worked()
    page = opened(graph)
    power = find(graph, operation="pow")
    page.locator(f'.card[data-item="{power.id}"]').click()
    text = page.locator(".panel").inner_text()
    assert "PowBackward0" in text
    assert "f32[3] · cpu · 12 B" in text
    assert "[0.3333, 0.3333, 0.3333]" in text
    assert "0.5774" in text  # norm of three thirds
    assert f"step {(power.order or 0) + 1}" in text
    assert "Saved for backward: 12 B" in text
    page.keyboard.press("Escape")
    assert page.locator(".selected").count() == 0


def test_nan_gradients_are_marked_by_more_than_colour(opened: Open) -> None:
    stats = GradientStats(0.0, 0.0, 0.0, 0.0, nan=2, tensor=TensorMeta((3,), "float32", "cpu"))
    graph = worked().annotate(grad_outputs={2: (stats,)})
    page = opened(graph)
    assert "2 NaN" in (page.locator('.card[data-item="2"]').text_content() or "")
    page.locator(".color-by").select_option("gradient")
    assert page.locator(".card.spoilt").count() == 1
    assert "NaN or Inf" in page.locator(".legend").inner_text()


def test_a_copy_between_devices_is_drawn_with_its_bytes(opened: Open) -> None:
    with simulate_accelerator() as (device,), record() as recording:
        x = torch.ones(4, requires_grad=True)
        y = (x.to(device) * 2).to("cpu").sum()
        y.backward()
    page = opened(recording.graph)
    assert page.locator(".card.transfer").count() == 2
    assert page.locator(".wire.moved").count() == 2
    assert "cpu → sim:0 · 16 B" in (page.locator(".card.transfer").first.text_content() or "")
    transfers = page.locator(".panel").inner_text()
    assert transfers.count("HtoD") == 2
    assert transfers.count("DtoH") == 2


def test_a_box_of_data_says_that_the_data_was_copied(opened: Open) -> None:
    model = nn.Linear(4, 2)
    with simulate_accelerator(name="cuda"), record(model) as recording:
        x = torch.ones(3, 4).cuda()
        model.cuda()(x).sum().backward()
    page = opened(recording.graph)
    box = page.locator(".card.data")
    assert f"cpu → sim cuda:0 · {bytes_text(x.nbytes)}" in (box.text_content() or "")
    assert page.locator(".card.transfer").count() == 0
    box.click()
    assert page.locator(".panel").inner_text().count("HtoD") == 1


def test_a_cut_is_drawn_between_its_sides_in_the_colour_of_its_finding(opened: Open) -> None:
    encoder, head = nn.Linear(2, 2), nn.Linear(2, 2)
    model = nn.ModuleDict({"encoder": encoder, "head": head})
    with record(model) as recording:
        head(encoder(torch.ones(3, 2)).detach()).sum().backward()
    page = opened(recording.graph, findings=findings(recording.graph))
    assert page.locator(".wire.severed.warning").count() == 1
    title = page.locator(".wire.severed title").text_content() or ""
    assert title.startswith("Cut by detach() at test_browser.py:")
    said = page.locator(".wire-label", has_text="✂ detach()").text_content() or ""
    assert said.startswith("✂ detach() · test_browser.py:")
    [encoder_box, head_box] = [
        page.locator(f'.card:has-text("{name} · Linear(2, 2)")').bounding_box()
        for name in ("encoder", "head")
    ]
    assert encoder_box is not None
    assert head_box is not None
    assert encoder_box["y"] < head_box["y"]


def test_a_layer_is_one_box_that_leads_with_the_module_until_it_is_opened(opened: Open) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.LayerNorm(8))
    with record(model) as recording:
        model(torch.ones(2, 4)).sum().backward()
    page = opened(recording.graph)
    lines = [card.locator("tspan").all_text_contents()[:2] for card in page.locator(".card").all()]
    assert sorted(lines) == [
        ["0 · Linear(4, 8)", "f32[2, 8]"],
        ["1 · ReLU", "f32[2, 8]"],
        ["2 · LayerNorm(8)", "f32[2, 8]"],
        ["input", "f32[2, 4]"],
        ["sum", "f32[]"],
    ]
    page.locator('.card:has-text("Linear") [data-act=open]').click()
    expect(page.locator(".frame .strong")).to_have_text("0 · Linear(4, 8)")


def test_a_reshape_between_two_operations_is_an_edge_and_a_box_in_the_opened_layer(
    opened: Open,
) -> None:
    layer = nn.Linear(4, 6)
    with record(layer) as recording:
        layer(torch.ones(2, 4)).exp().view(3, 4).transpose(0, 1).log().sum().backward()
    graph = recording.graph
    page = opened(graph)
    seen = [graph.nodes[i].operation for i in cards(page) if i < len(graph.nodes)]
    assert sorted(seen) == ["exp", "log", "sum"]  # beside the closed layer
    assert page.locator(".wire").count() == 4  # input, layer, exp, log, sum
    search(page, "op:transpose")
    expect(page.locator(".panel h2")).to_have_text("transpose")
    assert page.locator(".card.selected").get_attribute("data-item") == str(
        find(graph, operation="log").id
    )
    page.locator('.card:has-text("Linear") [data-act=open]').click()
    expect(page.locator(".frame .strong")).to_have_text("Linear(4, 6)")
    assert {find(graph, operation="t").id, find(graph, operation="addmm").id} <= cards(page)


@pytest.mark.parametrize("name", ["mlp", "diffusion"])
def test_no_edge_passes_behind_the_data_of_the_loss(opened: Open, name: str) -> None:
    torch.manual_seed(0)
    graph, told = graph_and_marks(PROGRAMS[name]())
    page = opened(graph, findings=told)
    page.get_by_role("button", name="See all").click()
    expect(page.locator('.card.data:has-text("target")')).to_be_visible()
    assert page.evaluate(CROSSED) == []


@pytest.mark.parametrize("name", ["siamese", "unet", "vae", "lora"])
def test_the_view_begins_with_as_many_boxes_as_the_still_has(opened: Open, name: str) -> None:
    torch.manual_seed(0)
    graph, told = graph_and_marks(PROGRAMS[name]())
    still = draw(graph, {"findings": told})
    page = opened(graph, findings=told)
    page.get_by_role("button", name="See all").click()
    shown = page.locator(".card:not(.data):not(.untracked)")
    expect(shown).to_have_count(len(still.nodes) + len(still.boxes))
    data = page.locator(".card.data")
    assert data.count() == len([row for row in graph.untracked if row.kind == "data"])


def test_a_marked_box_says_why_it_is_marked_although_the_mark_is_of_a_parameter_inside(
    opened: Open,
) -> None:
    norm = nn.LayerNorm(4)
    with record(norm) as recording:
        norm(torch.ones(2, 4)).sum().backward()
    weight = next(node.id for node in recording.graph.nodes if node.label == "weight")
    told = Finding("zero-gradient", "warning", "weight got zeros.", nodes=(weight,))
    page = opened(recording.graph, findings=[told])
    page.locator('.card:has-text("LayerNorm") .first').click()
    assert "weight got zeros." in page.locator(".panel .finding").inner_text()


def test_a_frame_has_its_own_modules_class_and_not_that_of_one_around_it(opened: Open) -> None:
    block = nn.Sequential(nn.Tanh(), nn.Sigmoid())
    model = nn.ModuleDict({"blocks": nn.ModuleList([nn.ModuleDict({"a": block})])})
    with record(model) as recording:  # the input, which is of no module, is drawn inside
        block(torch.ones(2, requires_grad=True)).sum().backward()
    page = opened(recording.graph)
    expect(page.locator(".frame .strong").last).to_have_text("0 · Tanh")
    expect(page.locator(".frame .strong").nth(-2)).to_have_text("blocks.0.a · Sequential")


def test_a_frame_of_each_call_of_the_root_has_the_class_of_the_root(opened: Open) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.last(self.first(x).sin())
            return y

    model = Net()
    with record(model) as recording:
        model(model(torch.ones(1, 2))).sum().backward()
    page = opened(recording.graph)
    page.get_by_role("button", name="Open all groups").click()
    titles = page.locator(".frame .strong").all_text_contents()
    assert [title for title in titles if title.startswith("Net")] == ["Net", "Net#2"]


def test_a_member_of_a_list_that_has_no_frame_has_its_own_class(opened: Open) -> None:
    rows = nn.ModuleList(nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Tanh()}) for _ in range(2))
    x = torch.ones(1, 2)
    with record(nn.ModuleDict({"rows": rows})) as recording:
        for row in rows:  # the sum between its members keeps the list from being a group
            x = x + row["b"](row["a"](x))
        x.sum().backward()
    page = opened(recording.graph)
    titles = page.locator(".frame .strong, .card .first", has_text="rows.0")
    assert sorted(titles.all_text_contents()) == ["rows.0.a · Linear(2, 2)", "rows.0.b · Tanh"]


def test_a_cut_without_a_finding_is_quiet_and_one_in_a_circle_is_left_out(opened: Open) -> None:
    rows = tuple(Node(i, "MulBackward0", (None,), operation="mul") for i in range(3))
    forth, back = Cut("detach", None, 0, (1,)), Cut("detach", None, 2, (0,))
    page = opened(Graph(rows, (Edge(1, 2),), ((2, 0),), cuts=(forth, back)))
    assert page.locator(".wire.severed").count() == 1
    assert page.locator(".wire.severed.warning, .wire.severed.error").count() == 0


def test_a_node_says_that_it_uses_a_result_which_was_cut_off_outside_the_graph(
    opened: Open,
) -> None:
    rows = tuple(Node(i, "MulBackward0", (None,), operation="mul") for i in range(2))
    cut = Cut("argmin", None, after=(1,), where="vq.py:9", label="code")
    page = opened(Graph(rows, (Edge(0, 1),), ((1, 0),), cuts=(cut,)))
    page.locator('.card[data-item="1"]').click()
    assert "code cut by argmin at vq.py:9" in page.locator(".panel").inner_text()


def test_backward_plays_in_its_order(opened: Open) -> None:
    graph = worked()
    page = opened(graph)
    page.locator("svg.drawing").focus()
    for _ in range(2):
        page.keyboard.press(".")
    waiting = page.locator(".card.waiting").evaluate_all("all => all.map(one => +one.dataset.item)")
    assert set(waiting) == {n.id for n in graph.nodes if (n.order or 0) >= 2}
    (last,) = (n for n in graph.nodes if n.order == 1)
    assert page.locator(".card.current").get_attribute("data-item") == str(last.id)
    assert "2 of 5" in page.locator(".player output").inner_text()
    page.keyboard.press("Escape")
    assert page.locator(".waiting").count() == 0


def test_findings_lead_to_their_nodes(opened: Open, transformer: Graph) -> None:
    hidden = find(transformer, module="layers.9.attn", leaf="")
    finding = Finding("told", "warning", "Look here.", "Try this.", nodes=(hidden.id,))
    page = opened(transformer, findings=[finding])
    assert "Look here." in page.locator(".finding").inner_text()
    page.locator(".finding .leads button").click()
    page.wait_for_selector(f'.card.selected[data-item="{hidden.id}"] .badge.warning')


def test_the_keyboard_moves_between_neighbours(opened: Open) -> None:
    page = opened(worked())
    page.locator("svg.drawing").focus()
    page.keyboard.press("ArrowDown")
    chosen = [page.locator(".card.selected").get_attribute("data-item")]
    for _ in range(4):
        page.keyboard.press("ArrowDown")
        chosen.append(page.locator(".card.selected").get_attribute("data-item"))
    assert chosen == ["0", "1", "2", "3", "4"]
    page.keyboard.press("/")
    page.keyboard.type("op:mean")
    page.keyboard.press("Enter")
    assert page.locator(".panel h2").inner_text() == "y"


def test_zoom_and_fit_change_what_is_seen(opened: Open) -> None:
    page = opened(mlp())
    place = f"{INSIDE}.querySelector('svg.drawing > g').getAttribute('transform')"
    start = page.evaluate(place)
    page.locator("svg.drawing").focus()
    page.keyboard.press("+")
    page.mouse.move(400, 400)
    page.mouse.down()
    page.mouse.move(460, 430)
    page.mouse.up()
    assert page.evaluate(place) != start
    page.keyboard.press("f")
    fitted = page.evaluate(place)
    page.mouse.wheel(0, -200)
    assert page.evaluate(place) != fitted


def test_a_chain_of_one_operation_opens_as_one_box(opened: Open) -> None:
    x = torch.ones(2, requires_grad=True)
    y = x
    for _ in range(1200):
        y = y * 2
    page = opened(trace(y.sum(), names={}))
    shown = page.locator(".card").all_text_contents()
    assert len(shown) == 3  # the input, the chain, the sum
    assert "mul \N{MULTIPLICATION SIGN} 1,200" in shown[1]
    page.locator(".card.group [data-act=open]").click()
    page.wait_for_selector(".frame")
    assert page.locator(".card", has_text="mul \N{MULTIPLICATION SIGN} 100").count() > 1


def test_never_more_than_1500_cards_are_seen(opened: Open) -> None:
    graph = trace(
        nn.Sequential(*(nn.Tanh() for _ in range(4000)))(torch.ones(2, requires_grad=True))
    )
    page = opened(graph)
    assert len(cards(page)) < 100
    page.get_by_role("button", name="Open all").click()
    expect(page.locator(".view")).to_have_attribute("data-cards", re.compile(r"^\d{4}$"))
    assert len(cards(page)) <= 1500
    search(page, "op:tanh")
    page.wait_for_selector(".card.selected")
    assert len(cards(page)) <= 1500


class Described(Node):
    """A node of which the module's class and the operation's attributes are known."""

    module_class = "Block/Linear(4, 8)"
    attributes = ("exponent=2", "dim=[0, 1]")


def test_classes_of_modules_and_attributes_are_told_and_found(opened: Open) -> None:
    rows = [
        Described(i, "PowBackward0", (None,), operation="pow", module="block.fc", scope="block.fc")
        for i in range(2)
    ]
    plain = Node(2, "SumBackward0", (None,), operation="sum")
    page = opened(Graph((*rows, plain), (Edge(0, 1), Edge(1, 2)), ((2, 0),)))
    page.locator('.card:has-text("fc · Linear(4, 8)") [data-act=open]').click()
    frame = page.locator(".frame .strong", has_text="fc")
    expect(frame).to_have_text("fc · Linear(4, 8)")
    page.locator('.card[data-item="1"]').click()
    panel = page.locator(".panel").inner_text()
    assert "block.fc · Linear(4, 8)" in panel
    assert "exponent\n2" in panel
    assert "dim\n[0, 1]" in panel
    for words in ("class:linear", "attribute:exponent=2", "linear"):
        page.locator("input[type=search]").fill(words)
        found = page.locator(".found button").evaluate_all("all => all.map(o => +o.dataset.found)")
        assert {0, 1} <= set(found)
        assert 2 not in found


def test_what_was_recorded_of_a_module_is_told_of_its_nodes_and_of_its_group(opened: Open) -> None:
    pows = [Node(i, "PowBackward0", (None,), operation="pow", module="block.fc") for i in (0, 1)]
    nodes = (*(n._replace(scope=n.module) for n in pows), Node(2, "SumBackward0", (None,)))
    modules = ModuleRow("block", "train"), ModuleRow("block.fc", "eval")
    page = opened(Graph(nodes, (Edge(0, 1), Edge(1, 2)), ((2, 0),), modules=modules))
    panel = page.locator(".panel")
    page.locator('.card:has-text("fc") [data-act=open]').click()
    page.locator('.card[data-item="1"]').click()
    assert "module's mode\neval" in panel.inner_text()
    page.locator('.card[data-item="2"]').click()
    assert "mode" not in panel.inner_text()
    search(page, "fc")
    page.locator(".frame .strong", has_text="fc").click()
    assert "\nmode\neval" in panel.inner_text()
