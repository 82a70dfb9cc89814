"""Test collectives in the view: their cards, lines and panels."""

from __future__ import annotations

import re
from dataclasses import replace

from playwright.sync_api import expect

from tests.render.test_collectives import GATHER, model
from tests.support.viewed import Open

pytest_plugins = ["tests.support.view_fixtures"]


def test_cards_and_panels_say_what_is_sent(opened: Open) -> None:
    reduce = replace(GATHER, kind="all_reduce", group="tp", node=8, where="train.py:7")
    gather = replace(GATHER, module="blocks.1", parameters=("blocks.1.up.weight",))
    page = opened(model(reduce, gather))
    panel = page.locator(".panel")
    expect(panel).to_contain_text("Between ranks (2)")
    expect(panel).to_contain_text("sent to other ranks192 B")
    expect(panel).to_contain_text("all_reduce 96 B f32 · tp, 2 ranks · forward · train.py:7")
    panel.get_by_text("all_reduce").click()
    card = page.locator('.card[data-item="8"]')
    expect(card).to_have_class(re.compile("card collective selected"))
    expect(card).to_contain_text("all_reduce 96 B f32 · tp, 2 ranks · forward")
    expect(panel).to_contain_text("Between ranks (1)")
    panel.locator("a", has_text="blocks").first.click()
    expect(panel).to_contain_text("Between ranks (1)")
