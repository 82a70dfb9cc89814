"""Explore: open a recording, look into every corner of it, and compare it with another."""

from __future__ import annotations

import streamlit as st

from app import gallery
from app.jobs.run import Choice, play
from app.panels.differences import draw_differences, draw_numbers
from app.panels.downloads import draw_downloads
from app.panels.figures import draw_findings, draw_gradients, draw_graph, draw_transfers
from app.panels.holding import hold
from app.panels.memory import draw_memory
from app.panels.nodes import draw_nodes
from app.panels.selection import follow
from app.panels.upload import open_recording
from graphviz_torch import Graph, diff, find

FILE = "A file of mine"
NOTHING = "Nothing"
TITLES = {gallery.model(name).title: name for name in gallery.NAMES}
TABS = ["Graph", "Nodes", "Gradients", "Transfers", "Memory", "Differences"]


def recording(title: str, *, key: str) -> Graph | None:
    """The graph of a file, or of a model of the gallery that is recorded now."""
    if title == FILE:
        return open_recording("A recording (.json or .json.gz)", key=key)
    run = hold(key, f"Recording {title}", play, Choice("model", "sim1", model=TITLES[title]), True)
    return run.graph if run is not None else None


st.title("Explore a recording", anchor=False)
st.markdown(
    "Open a graph that `recording.graph.save(path)` wrote, here or on a machine with a GPU. "
    "Nothing in a file is run. Or look at one of the models that this app can record."
)
one, other = st.columns(2)
with one:
    titles = [*[title for title in TITLES if title != "Forgotten .to()"], FILE]
    start = titles.index("Transformer")
    title = str(st.selectbox("Recording", titles, start, key="open", bind="query-params"))
    graph = recording(title, key="explore")
with other:
    others = [NOTHING, *titles]
    against = str(st.selectbox("Compare with", others, key="against", bind="query-params"))
    second = None if against == NOTHING else recording(against, key="against")
if graph is None:
    st.info("No recording is open yet.", icon=":material/folder_open:")
    st.stop()

findings = find(graph)
follow(graph, key="explore")
draw_numbers([(title, graph)] + ([(against, second)] if second is not None else []))
draw_findings(findings)
tabs = st.tabs(TABS, key="tab", on_change="rerun", bind="query-params")
for name, tab in zip(TABS, tabs, strict=True):
    if not tab.open:
        continue
    with tab:
        if name == "Graph":
            draw_graph(graph, findings, key="explore")
        elif name == "Nodes":
            draw_nodes(graph, key="explore")
        elif name == "Gradients":
            draw_gradients(graph, key="explore")
        elif name == "Transfers":
            draw_transfers(graph, key="explore")
        elif name == "Memory":
            draw_memory(graph, key="explore")
        elif second is None:
            st.info("Choose a second recording above.", icon=":material/compare:")
        else:
            draw_differences(diff(graph, second))
draw_downloads(graph, findings, key="explore")
