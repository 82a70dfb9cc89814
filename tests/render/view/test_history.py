"""Test addresses of nodes in the view, back and forward, and keys on a new page."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, Page, expect

from graphviz_torch.graph import Graph
from graphviz_torch.render.view import view_script
from graphviz_torch.render.view.payload import view_payload
from tests.support.viewed import Open, block, bring, cards, find, mlp, worked

pytest_plugins = ["tests.support.view_fixtures"]
INSIDE = "document.querySelector('#view').firstChild.shadowRoot"
PLACE = f"{INSIDE}.querySelector('svg.drawing > g').getAttribute('transform')"


def address(page: Page) -> str:
    return str(page.evaluate("location.hash"))


def crumbs(page: Page) -> list[str]:
    return page.locator(".crumbs button").all_inner_texts()


def test_a_node_has_an_address_and_an_address_opens_its_node(
    opened: Open, transformer: Graph
) -> None:
    wanted = find(transformer, module="layers.7.norm2", leaf="")
    page = opened(transformer, address=f"#node={wanted.id}")
    page.wait_for_selector(f'.card.selected[data-item="{wanted.id}"]')
    assert address(page) == f"#node={wanted.id}"
    other = find(transformer, module="layers.7.norm1", leaf="")
    page.evaluate("node => { location.hash = `#node=${node}`; }", other.id)
    page.wait_for_selector(f'.card.selected[data-item="{other.id}"]')
    link = page.locator(".panel header a")
    assert link.get_attribute("href") == f"#node={other.id}"


def test_a_group_has_an_address_of_its_path(opened: Open, transformer: Graph) -> None:
    page = opened(transformer)
    item = bring(page, "layers.5")
    assert address(page) == "#group=layers.5"
    again = opened(transformer, address="#group=layers.5")
    again.wait_for_selector(f'.selected[data-item="{item}"]')


@pytest.mark.parametrize(
    "wrong", ["#node=99", "#node=x", "#group=nowhere", "#elsewhere", "#group="]
)
def test_an_address_of_nothing_shows_the_graph(opened: Open, wrong: str) -> None:
    page = opened(worked(), address=wrong)
    assert len(cards(page)) == 5
    assert page.locator(".selected").count() == 0


def test_the_browser_goes_back_and_forward_through_what_was_seen(
    opened: Open, transformer: Graph
) -> None:
    page = opened(transformer)
    start, seen = cards(page), page.evaluate(PLACE)
    item = bring(page, "layers.5")
    page.locator(f'.card[data-item="{item}"] [data-act=open]').click()
    page.wait_for_selector(f'.frame[data-item="{item}"]')
    after = cards(page)
    page.go_back()
    page.wait_for_selector(f'.card[data-item="{item}"]')
    assert address(page) == "#group=layers.5"
    page.go_back()
    page.wait_for_selector(".view:not(.selecting)")
    assert address(page) == ""
    assert page.evaluate(PLACE) == seen
    assert cards(page) == start
    page.go_forward()
    page.go_forward()
    page.wait_for_selector(f'.frame[data-item="{item}"]')
    assert cards(page) == after


@pytest.mark.parametrize("undo", ["u", "Control+z", "Back (u)"])
def test_opening_and_closing_are_undone(opened: Open, transformer: Graph, undo: str) -> None:
    page = opened(transformer)
    before = cards(page)
    page.get_by_role("button", name="Open all groups").click()
    expect(page.locator(".view")).not_to_have_attribute("data-cards", str(len(before)))
    all_open = cards(page)
    if undo.startswith("Back"):
        page.get_by_role("button", name=undo).click()
    else:
        page.keyboard.press(undo)
    expect(page.locator(".view")).to_have_attribute("data-cards", str(len(before)))
    assert cards(page) == before
    page.keyboard.press("r")
    expect(page.locator(".view")).to_have_attribute("data-cards", str(len(all_open)))


def test_a_view_in_a_page_leaves_the_address_alone_and_still_goes_back(opened: Open) -> None:
    page = opened(
        '<!doctype html><meta charset="utf-8"><div id="view" style="height: 700px"></div>'
        f'<script type="module">{view_script()}\n'
        "window.view = mount(document.getElementById('view'), "
        f"'{view_payload(worked())}');</script>"
    )
    length = page.evaluate("history.length")
    for item in (1, 2):
        page.locator(f'.card[data-item="{item}"]').click()
        page.wait_for_selector(f'.card.selected[data-item="{item}"]')
    page.get_by_role("button", name="Back (u)").click()
    page.wait_for_selector('.card.selected[data-item="1"]')
    page.get_by_role("button", name="Forward (r)").click()
    page.wait_for_selector('.card.selected[data-item="2"]')
    assert address(page) == ""
    assert page.evaluate("history.length") == length


def test_keys_work_on_a_fresh_page(opened: Open) -> None:
    page = opened(worked())
    page.keyboard.press("ArrowDown")
    expect(page.locator('.card.selected[data-item="0"]')).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("op:mean")
    page.keyboard.press("Enter")
    expect(page.locator('.card.selected[data-item="4"]')).to_be_visible()


def test_a_question_mark_lists_the_keys_and_they_do_nothing_below_the_list(opened: Open) -> None:
    page = opened(worked())
    page.keyboard.press("?")
    keys = page.get_by_role("dialog", name="Keys")
    expect(keys).to_be_visible()
    text = keys.inner_text()
    for does in ("search", "see all", "back: undo", "play backward", "open or close"):
        assert does in text
    page.keyboard.press("ArrowDown")
    assert page.locator(".selected").count() == 0
    page.keyboard.press("Escape")
    expect(keys).not_to_be_visible()


def test_the_modules_around_the_selection_stand_above_the_picture(
    opened: Open, transformer: Graph
) -> None:
    page = opened(transformer, title="GPT")
    wanted = find(transformer, module="layers.9.attn", leaf="")
    page.evaluate("node => { location.hash = `#node=${node}`; }", wanted.id)
    page.wait_for_selector(f'.card.selected[data-item="{wanted.id}"]')
    assert crumbs(page) == ["GPT", "layers.9", "attn", wanted.label or wanted.title]
    page.locator(".crumbs button", has_text="attn").click()
    page.wait_for_selector(".panel h2 >> text=attn")
    assert address(page) == "#group=layers.9/attn"
    page.keyboard.press("Escape")
    assert crumbs(page)[:2] == ["GPT", "layers.9"]  # the reader still looks there


def test_a_node_that_is_all_of_its_module_goes_by_both_names_in_the_crumbs(
    opened: Open,
) -> None:
    graph = block()
    page = opened(graph, title="Block")
    wanted = find(graph, module="norm1", operation="native_layer_norm")
    page.evaluate("node => { location.hash = `#node=${node}`; }", wanted.id)
    page.wait_for_selector(f'.card.selected[data-item="{wanted.id}"]')
    assert crumbs(page) == ["Block", "norm1 · native_layer_norm"]


def test_the_way_to_the_loss_is_lit_while_a_card_is_hovered(opened: Open) -> None:
    graph = mlp()
    page = opened(graph)
    node = find(graph, operation="relu")
    page.locator(f'.card[data-item="{node.id}"]').hover()
    page.wait_for_selector(".card.on")
    above = {node.id}
    for edge in graph.edges:  # in topological order
        if edge.source in above:
            above.add(edge.target)
    lit = set(page.locator(".card.on").evaluate_all("all => all.map(one => +one.dataset.item)"))
    [layer] = lit - {n.id for n in graph.nodes}  # the box of the second layer
    inside = {n.id for n in graph.nodes if n.module == "fc2" and not n.leaf} & above
    assert inside
    assert lit == (above - inside) | {layer}
    page.mouse.move(5, 400)
    assert page.locator(".card.on").count() == 0


def test_the_title_of_a_page_is_that_of_its_graph(opened: Open, browser: Browser) -> None:
    assert opened(worked()).title() == "Autograd graph of y"
    assert opened(worked(), title="mine").title() == "mine"


def test_a_value_and_a_norm_are_told_apart_by_a_word(opened: Open) -> None:
    page = opened(worked())
    assert "value 19.67grad 1" in (page.locator('.card[data-item="4"]').text_content() or "")
    graph = mlp()
    page = opened(graph)
    node = find(graph, operation="relu")
    (stats,) = node.grad_outputs
    assert stats is not None
    said = page.locator(f'.card[data-item="{node.id}"]').text_content() or ""
    assert f"grad norm {stats.norm:.4g}" in said
