"""The interactive view of a graph as a Streamlit component; clicks are reported to Python."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import streamlit as st

from graphviz_torch.export import view_script

from .language import view_words

# Streamlit calls this function with new `data` at every rerun. The view is rebuilt only for a
# different graph or language; otherwise it keeps its state.
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
  if (here?.payload !== data.payload || here.language !== data.language) {
    here?.view.destroy();
    here = { payload: data.payload, language: data.language, selected: data.selected };
    here.view = mount(place, data.payload, {
      selected: data.selected,
      colorBy: data.colorBy,
      words: JSON.parse(data.language),
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
    """Draw the interactive view of a graph, and call `on_pick` with the node that a visitor clicks.

    Args:
        payload: result of `view_payload`.
        selected: id of the node to show as selected, or None.
        on_pick: called after a click with a node's id or None, before the page runs again.
        color_by: "role", "gradient", "device" or another coloring. None: the view chooses one.
        height: height in CSS pixels for a window of 900 pixels. It scales with the window.
        key: Streamlit key of the view on this page.
    """

    def on_picked() -> None:
        value = st.session_state[key].picked
        if value is not None:
            on_pick(value["node"])

    _component()(
        data={
            "payload": payload,
            "selected": selected,
            "height": height,
            "colorBy": color_by,
            "language": json.dumps(view_words()),
        },
        key=key,
        on_picked_change=on_picked,
    )
