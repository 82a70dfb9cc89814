"""The page Explore: open a recording, inspect it, and compare it with another."""

from __future__ import annotations

import streamlit as st

from graphviz_torch.export import Summary

from ..jobs.values import Choice, GraphComparison, OpenedGraph, RankComparison, Run
from ..models import gallery
from ..panels import own, recording, text
from ..panels.differences import draw_differences, draw_numbers
from ..panels.figures import draw_findings, draw_graph, draw_transfers
from ..panels.gradient_path import draw_flow, draw_path
from ..panels.ranks import draw_collectives
from ..panels.results import result
from ..panels.tables import draw_memory, draw_modules, draw_nodes
from ..panels.timeline import draw_timeline
from ..panels.upload import open_recordings

FILE = "My own file"
NOTHING = "Nothing"
ABOUT = (
    "Open a graph that `recording.graph.save(path)` wrote, here or on a machine with a GPU. "
    "No code in a file is run. Or choose a model that this app can record. The page's address "
    "contains the model, the tab and the selected node, so that you can share it."
)
HEIGHT = 690  # CSS pixels of the graph; it ends at the lower edge of a typical window
TABS = ["Graph", "Gradients", "Nodes", "Modules"]
RENAMED_TABS = {  # names of tabs in links of earlier versions
    "Summary": "Modules", "Memory": "Modules", "Gradient's way": "Gradients", "Flow": "Gradients",
    "Text": "Nodes", "Copies": "Graph", "Differences": "Graph",
}  # fmt: skip


def draw() -> None:
    """Draw the page Explore."""
    heading, one, other = st.columns([2, 3, 3], vertical_alignment="center")
    heading.title("Explore", anchor=False, help=ABOUT)
    with one:
        titles = [*filter(None, [own.title()]), *gallery.titles(failing=False), FILE]
        start = titles.index(own.title() or "Transformer")
        title = str(st.selectbox("Recording", titles, start, key="open", bind="query-params"))
        chosen = _open(title, key="explore")
    with other:
        others = [NOTHING, *titles]
        against = str(st.selectbox("Compare with", others, key="against", bind="query-params"))
        second = None if against == NOTHING else _open(against, key="against")
    if chosen is None:
        st.info("Choose a recording above.", icon=":material/folder_open:")
        return
    _, opened = chosen
    recording.begin(opened, key="explore")
    both = [chosen] if second is None else [chosen, second]
    draw_numbers([(name, each.graph) for name, each in both])
    draw_findings(opened.findings)
    named = RENAMED_TABS.get(st.query_params.get("tab", ""), TABS[0])
    start = st.session_state.setdefault("first tab", named)
    tabs = st.tabs(TABS, default=start, key="tab", on_change="rerun", bind="query-params")
    for name, place in zip(TABS, tabs, strict=True):
        if place.open:
            with place:
                _draw_tab(name, opened, both)
    recording.draw_downloads(opened, key="explore")


def _open(title: str, *, key: str) -> tuple[str, OpenedGraph] | None:
    """Return (title, recording) of a file, of the app's script, or of a gallery model."""
    if title == FILE:
        return _open_files(key)
    if title == own.title():
        mine = own.open_own(key=key)
        return None if mine is None else (title, mine)
    name = gallery.titles()[title]
    device = f"sim{gallery.DEVICES[name][0]}"
    choice = Choice("model", device, model=name)
    run: Run | None = result(key, f"Recording {title}", ".backward:play", choice, True, shared=True)
    return None if run is None or run.opened is None else (title, run.opened)


def _open_files(key: str) -> tuple[str, OpenedGraph] | None:
    """Return (name, recording) of the opened file or, if there are several, of the chosen one."""
    files = open_recordings("A recording, or those of several ranks (.json, .json.gz)", key=key)
    if len(files) < 2:
        return files[0] if files else None
    ranks = tuple(opened.graph for _, opened in files)
    difference: RankComparison | None = result(
        f"{key} across", "Comparing ranks", ".ranks:compare_ranks", ranks
    )
    if difference is not None and difference.findings:
        draw_findings(difference.findings)
    chosen = st.selectbox(
        "Rank", range(len(files)), format_func=lambda rank: files[rank][0], key=f"{key} rank",
        help="The page Processes shows all ranks and their collectives.",
    )  # fmt: skip
    return files[chosen or 0]


def _draw_tab(name: str, opened: OpenedGraph, both: list[tuple[str, OpenedGraph]]) -> None:
    graph = opened.graph
    if name == "Graph":
        if len(both) == 2:
            _draw_both(both)
        else:
            draw_graph(opened.payload, key="explore", height=HEIGHT)
        st.markdown("## Copies between devices", help=text.TRANSFER)
        draw_transfers(graph, key="explore")
        draw_timeline(graph, key="explore")
        if graph.collectives:
            st.markdown("## Between ranks")
            draw_collectives(graph, key="explore")
    elif name == "Gradients":
        left, right = st.columns(2, gap="medium")
        with left:
            draw_flow([each.graph for _, each in both])
        with right:
            draw_path(graph, key="explore")
    elif name == "Nodes":
        draw_nodes(graph, key="explore")
    else:
        found: Summary | None = result("modules", "Adding up", ".recordings:by_module", graph)
        if found is not None:
            draw_modules(found, key="explore")
        st.markdown("## Saved for backward", help=text.SAVED)
        draw_memory(graph, key="explore")


def _draw_both(both: list[tuple[str, OpenedGraph]]) -> None:
    """Draw two recordings as one graph, and list their differences."""
    titles, graphs = zip(*((title, each.graph) for title, each in both), strict=True)
    compared: GraphComparison | None = result(
        "compare", "Comparing", ".recordings:compare", *graphs, titles
    )
    if compared is not None:
        draw_differences(compared, key="explore", height=HEIGHT)
