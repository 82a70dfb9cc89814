"""Test colors and highlights in the view: roles, gradients, neighbors of the selection."""

from __future__ import annotations

from statistics import median_low

import torch
from torch import nn

from graphviz_torch import record, trace
from graphviz_torch.experiments import influences
from graphviz_torch.graph import Graph
from graphviz_torch.render.style import COLORS, SCALE
from tests.support.viewed import Open, bring, find, worked

pytest_plugins = ["tests.support.view_fixtures"]

FILLS = 'all => all.map(one => one.querySelector(".form").getAttribute("fill"))'
BARS = 'all => all.map(one => one.querySelector(".gauge").getAttribute("fill"))'


def test_the_way_to_leaves_and_outputs_is_lit(opened: Open) -> None:
    x = torch.ones(3, requires_grad=True)
    y = torch.ones(3, requires_grad=True)
    graph = trace(((x * 2).exp() + (y * 3).sin()).sum(), names={})
    page = opened(graph)
    node = find(graph, operation="exp")
    page.locator(f'.card[data-item="{node.id}"]').click()
    below, above = {node.id}, {node.id}
    for edge in graph.edges:  # in topological order
        if edge.source in below:
            below.add(edge.target)
    for edge in reversed(graph.edges):
        if edge.target in above:
            above.add(edge.source)
    lit = page.locator(".card.on").evaluate_all("all => all.map(one => +one.dataset.item)")
    assert set(lit) == below | above != {n.id for n in graph.nodes}


def test_only_neighbours_are_lit_brightly(opened: Open) -> None:
    x = torch.ones(3, requires_grad=True)
    y = (x * 2).exp().sin().cos().tanh().sum()
    graph = trace(y, names={})
    page = opened(graph)
    node = find(graph, operation="sin")
    page.locator(f'.card[data-item="{node.id}"]').click()
    page.wait_for_selector(".card.selected")
    neighbours = {node.id}
    for edge in graph.edges:
        if node.id in (edge.source, edge.target):
            neighbours |= {edge.source, edge.target}
    near = page.locator(".card.near").evaluate_all("all => all.map(one => +one.dataset.item)")
    assert set(near) == neighbours
    assert page.locator(".wire.near").count() == 2
    assert page.locator(".card.on:not(.near)").count() == len(graph.nodes) - 3
    page.wait_for_timeout(300)  # the light comes up within 0.15 s
    light = page.locator(".card").evaluate_all("all => all.map(o => +getComputedStyle(o).opacity)")
    assert sorted(set(light)) == [0.6, 1]


def test_an_edge_through_frames_is_lit_from_card_to_card(opened: Open) -> None:
    model = nn.Sequential(
        nn.Sequential(nn.Tanh(), nn.Sigmoid()), nn.Sequential(nn.GELU(), nn.ELU())
    )
    with record(model) as recording:
        model(torch.ones(2, requires_grad=True)).sum().backward()
    page = opened(recording.graph)
    node = find(recording.graph, operation="sigmoid")
    page.locator(f'.card[data-item="{node.id}"]').click()
    page.wait_for_selector(".card.selected")
    near = page.locator(".card.near .strong").all_text_contents()
    assert {"tanh", "1 · Sigmoid", "0 · GELU"} <= set(near)
    # From tanh out of the frame around it; out of a frame, to the next, into it.
    assert page.locator(".wire.near").count() == 2 + 3


def test_roles_keep_their_colours_and_gradients_are_bars_beside_them(opened: Open) -> None:
    graph = worked()
    page = opened(graph)
    assert page.locator(".color-by").input_value() == "gradient"  # where they were recorded
    cards = page.locator(".card")
    fills, bars = cards.evaluate_all(FILLS), cards.evaluate_all(BARS)
    assert fills == [COLORS[role][0] for role in ("input", *["operation"] * 3, "output")]
    norms = [node.grad_outputs[0].norm for node in graph.nodes if node.grad_outputs[0]]
    steps = [[light for light, _ in SCALE].index(bar) for bar in bars]
    assert [steps[a] <= steps[b] for a in range(5) for b in range(5) if norms[a] <= norms[b]]
    assert steps[norms.index(max(norms))] == len(SCALE) - 1
    assert steps[norms.index(min(norms))] == 0
    text = page.locator(".scale").inner_text()
    assert f"{min(norms):.4g}" in text
    assert f"{max(norms):.4g}" in text
    assert "output" in page.locator(".entries").inner_text()
    page.locator(".color-by").select_option("role")
    assert page.locator(".gauge").count() == 0
    assert cards.evaluate_all(FILLS) == fills


def test_a_group_is_shaded_by_its_median_and_says_its_range(
    opened: Open, transformer: Graph
) -> None:
    page = opened(transformer)
    item = bring(page, "layers.6")
    card = page.locator(f'.card[data-item="{item}"]')
    inside = [n for n in transformer.nodes if n.scope.startswith("layers.6")]
    norms = [max(s.norm for s in n.grad_outputs if s) for n in inside if any(n.grad_outputs)]
    said = (card.text_content() or "").rstrip("+").partition("grad norm ")[2].split(" to ")
    for text, norm in zip(said, (min(norms), max(norms)), strict=True):
        assert abs(float(text) / norm - 1) < 0.01
    shade = float(card.get_attribute("data-said") or "nan")
    assert abs(shade / median_low(norms) - 1) < 0.01
    card.click()
    assert f"median {card.get_attribute('data-said')}" in page.locator(".panel").inner_text()


def test_a_click_picks_whose_influence_the_bars_tell(opened: Open) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Softmax(0))
    with record(model, experiments=True) as recording:
        model(torch.rand(4, 4) + 1).sum().backward()
    lanes = influences(recording)
    page = opened(lanes)
    assert page.locator(".color-by").input_value() == "influence"
    names = page.locator(".lanes button")
    assert (
        names.all_text_contents() == [*lanes] == [*map("sample {}".format, range(4)), "input input"]
    )
    page.get_by_role("button", name="Open all groups").click()
    linear = find(recording.graph, operation="addmm")
    bar = page.locator(f'.card[data-item="{linear.id}"] .gauge')
    for name, share in (("sample 0", 1 / 4), ("input input", 1.0), ("sample 3", 1 / 4)):
        names.get_by_text(name, exact=True).click()
        page.wait_for_selector(f'.lanes [aria-pressed="true"]:text-is("{name}")')
        assert lanes[name].nodes[linear.id].influence == share
        step = min(int(share * len(SCALE)), len(SCALE) - 1)
        assert bar.get_attribute("fill") == SCALE[step][0]
    assert "0%" in page.locator(".scale").inner_text()
    assert "100%" in page.locator(".scale").inner_text()
