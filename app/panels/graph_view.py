"""The interactive view of a graph as a part of a page; a click in it comes back to Python."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import streamlit as st

from graphviz_torch.export import view_script

# Streamlit calls this with new `data` at every rerun; a view stays as the visitor left it, and only
# another graph or theme makes a new one.
_ADAPTER = """
const views = new WeakMap();
const isDark = (element) => {
  const color = getComputedStyle(element).getPropertyValue("--st-background-color");
  const context = document.createElement("canvas").getContext("2d");
  context.fillStyle = color;
  context.fillRect(0, 0, 1, 1);
  const [red, green, blue] = context.getImageData(0, 0, 1, 1).data;
  return red + green + blue < 384;
};
export default function ({ data, parentElement, setTriggerValue }) {
  const place = parentElement.querySelector(".graph");
  const height = `${data.height}px`;
  place.style.height = `clamp(0.7 * ${height}, ${height} + 100vh - 900px, 1.5 * ${height})`;
  let here = views.get(place);
  if (here?.payload !== data.payload) {
    here?.view.destroy();
    here = { payload: data.payload, selected: data.selected };
    here.view = mount(place, data.payload, {
      selected: data.selected,
      colorBy: data.colorBy,
      onSelect: (node) => {
        if (node === here.selected) return;
        here.selected = node;
        setTriggerValue("picked", { node });
      },
    });
    views.set(place, here);
  } else if (here.selected !== data.selected) {
    here.selected = data.selected;
    here.view.select(data.selected);
  }
  const theme = isDark(place) ? "dark" : "light";
  if (theme !== here.theme) here.view.setTheme((here.theme = theme));
}
"""
_STYLE = """
.graph {
  border: 1px solid var(--st-border-color);
  border-radius: var(--st-base-radius);
  overflow: hidden;
}
"""


@functools.cache
def _component() -> Any:
    return st.components.v2.component(
        "graphviz_torch",
        html='<div class="graph"></div>',
        css=_STYLE,
        js=view_script() + _ADAPTER,
    )


def view(
    payload: str,
    selected: int | None,
    on_pick: Callable[[int | None], None],
    *,
    color_by: str | None,
    height: int,
    key: str,
) -> None:
    """Show what `view_payload` made; `on_pick` gets the node that a visitor clicks.

    Args:
        payload: of the graph.
        selected: the node to show as selected.
        on_pick: called before the rerun that a click causes, with a node's id or None.
        color_by: what a new view's colours tell: "role", "gradient", "device", ...; None lets the
            view choose.
        height: in CSS pixels, in a window of 900; it grows and shrinks with the window.
        key: of the place on the page.
    """

    def picked() -> None:
        value = st.session_state[key].picked
        if value is not None:
            on_pick(value["node"])

    _component()(
        data={"payload": payload, "selected": selected, "height": height, "colorBy": color_by},
        key=key,
        on_picked_change=picked,
    )
