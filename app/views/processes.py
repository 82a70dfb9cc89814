"""Many processes: the graphs of torchrun's ranks side by side, and what is wrong across them."""

from __future__ import annotations

import streamlit as st

from ..jobs.values import Opened, Ranks
from ..models import gallery
from ..panels import recording, text
from ..panels.figures import draw_findings, draw_graph
from ..panels.results import result
from ..panels.tabs.differences import draw_numbers
from ..panels.tabs.ranks import draw_collectives, draw_parts
from ..panels.upload import open_recordings

SAMPLE = "A sample: rank 1 leaves a layer out"
FILES = "Files of mine"
SAVING = """\
with record(model) as recording:
    model(batch).sum().backward()
recording.graph.save(f"rank{torch.distributed.get_rank()}.json.gz")
"""


def draw() -> None:
    """The page."""
    st.title(
        "Many processes",
        anchor=False,
        help="Each rank of `torchrun` records its own graph. Side by side they show what one rank "
        "alone does not: a rank that runs other operations, or waits for the others.",
    )
    programs = {gallery.model(name).title: name for name in gallery.MESHES}
    sources = [SAMPLE, *programs, FILES]
    source = st.segmented_control(
        "Ranks", sources, default=SAMPLE, required=True, key="ranks", bind="query-params"
    )
    if source in programs:
        program = gallery.model(programs[source])
        st.code(program.code, language="python", line_numbers=True)
        doing = "Recording a step of two processes over gloo"
        sample = result(program.name, doing, ".ranks:recorded", program.name, shared=True)
        ranks = [(f"rank {number}", one) for number, one in enumerate(sample or ())]
    elif source == FILES:
        st.markdown("On each rank:")
        st.code(SAVING, language=None)
        ranks = open_recordings("Recordings, one for each rank", key="ranks")
    else:
        sample = result("sample", "Recording two ranks", ".ranks:sample", shared=True)
        ranks = [(f"rank {number}", one) for number, one in enumerate(sample or ())]
    if not ranks and source == FILES:
        st.info("Drop the files of all ranks above, all at once.", icon=":material/folder_open:")
    if not ranks:
        return
    graphs = tuple(one.graph for _, one in ranks)
    draw_numbers([(name, one.graph) for name, one in ranks])
    difference: Ranks | None = result("across", "Comparing ranks", ".ranks:ranks_of", graphs)
    if difference is not None:
        draw_findings(difference.findings)
        if difference.collectives:
            if difference.chart:
                st.image(difference.chart, width="content")
            with st.expander("What the ranks said to each other", icon=":material/sync_alt:"):
                st.table([{k: text.escape(v) for k, v in row} for row in difference.collectives])
    if any(parameter.placement for graph in graphs for parameter in graph.parameters):
        st.markdown("## Who has what")
        draw_parts([(name, one.graph) for name, one in ranks])
    for start in range(0, len(ranks), 2):
        columns = st.columns(2, gap="medium")
        for number, (name, one) in enumerate(ranks[start : start + 2], start):
            with columns[number % 2]:
                apart = None if difference is None else difference.apart[number]
                _draw_rank(name, one, key=f"rank {number}", start=apart)


def _draw_rank(name: str, opened: Opened, *, key: str, start: int | None) -> None:
    """A rank's graph, which opens where it is not as the others'."""
    st.markdown(f"## {text.escape(name)}")
    recording.begin(opened, key=key, start=start)
    draw_graph(opened.payload, key=key, height=520)
    if opened.graph.collectives:
        draw_collectives(opened.graph, key=key)
    draw_findings(opened.findings)
