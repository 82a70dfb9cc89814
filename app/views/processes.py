"""The page Processes: graphs of several ranks, findings that compare ranks, and memory."""

from __future__ import annotations

import streamlit as st

from ..jobs.values import OpenedGraph, RankComparison
from ..models import gallery
from ..panels import recording, text
from ..panels.differences import draw_numbers
from ..panels.figures import draw_findings, draw_graph
from ..panels.fit import draw_fit
from ..panels.head import draw_head
from ..panels.ranks import draw_collectives, draw_parts
from ..panels.results import result
from ..panels.upload import open_recordings

FIT = "Will it fit?"
PARTS = ["Ranks", FIT]
ABOUT = (
    "Each rank of `torchrun` records its own graph. A comparison of the graphs shows which rank "
    "runs different operations, or waits for the others. A rehearsal runs a training script as one "
    "of many ranks, on tensors without memory, and counts bytes, operations and collectives."
)
HEIGHT = 880  # height of a rank's graph in CSS pixels
SAMPLE = "A sample: rank 1 skips a layer"
FILES = "My own files"
SAVING = """\
with record(model) as recording:
    model(batch).sum().backward()
recording.graph.save(f"rank{torch.distributed.get_rank()}.json.gz")
"""


def draw() -> None:
    """Draw the page Processes."""
    _, part = draw_head("Processes", PARTS, key="part", label="Part of the page", about=ABOUT)
    if part == FIT:
        draw_fit()
    else:
        _draw_ranks()


def _draw_ranks() -> None:
    """Draw the choice of ranks, findings that compare them, and the graph of one rank."""
    programs = {gallery.model(name).title: name for name in gallery.MESHES}
    sources = [SAMPLE, *programs, FILES]
    source = st.segmented_control(
        "Ranks", sources, default=SAMPLE, required=True, key="ranks", bind="query-params",
        label_visibility="collapsed",
    )  # fmt: skip
    if source in programs:
        program = gallery.model(programs[source])
        st.code(program.code, language="python", line_numbers=True)
        doing = "Recording a step of two processes over gloo"
        sample = result(program.name, doing, ".ranks:record_mesh", program.name, shared=True)
        ranks = [(f"rank {number}", one) for number, one in enumerate(sample or ())]
    elif source == FILES:
        st.markdown("On each rank:")
        st.code(SAVING, language=None)
        ranks = open_recordings("Recordings, one for each rank", key="ranks")
    else:
        sample = result("sample", "Recording two ranks", ".ranks:sample", shared=True)
        ranks = [(f"rank {number}", one) for number, one in enumerate(sample or ())]
    if not ranks and source == FILES:
        st.info("Drop the files of all ranks above, together.", icon=":material/folder_open:")
    if not ranks:
        return
    graphs = tuple(one.graph for _, one in ranks)
    difference: RankComparison | None = result(
        "across", "Comparing ranks", ".ranks:compare_ranks", graphs
    )
    if difference is not None:
        draw_findings(difference.findings)
        if difference.collectives:
            if difference.chart:
                st.image(difference.chart, width="content")
            with st.expander("Collectives of the ranks", icon=":material/sync_alt:"):
                st.table([{k: text.escape(v) for k, v in row} for row in difference.collectives])
    if any(parameter.placement for graph in graphs for parameter in graph.parameters):
        st.markdown("## Parameters by rank")
        draw_parts([(name, one.graph) for name, one in ranks])
    names = [name for name, _ in ranks]
    with st.container(horizontal=True, vertical_alignment="center"):
        chosen = st.segmented_control(
            "Rank", names, default=names[0], required=True, key="rank", bind="query-params",
            label_visibility="collapsed",
        )  # fmt: skip
        number = names.index(chosen) if chosen in names else 0
        draw_numbers([(names[number], graphs[number])])
    start = None if difference is None else difference.first_differences[number]
    _draw_rank(ranks[number][1], key=f"rank {number}", start=start)


def _draw_rank(opened: OpenedGraph, *, key: str, start: int | None) -> None:
    """Draw a rank's graph. The first node that differs from other ranks is selected."""
    recording.begin(opened, key=key, start=start)
    draw_graph(opened.payload, key=key, height=HEIGHT)
    if opened.graph.collectives:
        draw_collectives(opened.graph, key=key)
    draw_findings(opened.findings)
