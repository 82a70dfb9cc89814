"""Many processes: the graphs of torchrun's ranks side by side, and what is wrong across them."""

from __future__ import annotations

import streamlit as st

from ..jobs.values import Opened, Ranks
from ..panels import recording, text
from ..panels.figures import draw_findings, draw_graph
from ..panels.results import result
from ..panels.tabs.differences import draw_numbers
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
    source = st.segmented_control(
        "Ranks", [SAMPLE, FILES], default=SAMPLE, required=True, key="ranks", bind="query-params"
    )
    if source == FILES:
        st.markdown("On each rank:")
        st.code(SAVING, language=None)
        ranks = open_recordings("Recordings, one for each rank", key="ranks")
    else:
        sample = result("sample", "Recording two ranks", ".ranks:sample", shared=True)
        ranks = [(f"rank {number}", one) for number, one in enumerate(sample or ())]
    if not ranks:
        st.info("Drop the files of all ranks above, all at once.", icon=":material/folder_open:")
        return
    graphs = tuple(one.graph for _, one in ranks)
    draw_numbers([(name, one.graph) for name, one in ranks])
    difference: Ranks | None = result("across", "Comparing ranks", ".ranks:ranks_of", graphs)
    if difference is not None:
        draw_findings(difference.findings)
        if difference.collectives:
            with st.expander("What the ranks said to each other", icon=":material/sync_alt:"):
                st.table([{k: text.escape(v) for k, v in row} for row in difference.collectives])
    for start in range(0, len(ranks), 2):
        columns = st.columns(2, gap="medium")
        for number, (name, one) in enumerate(ranks[start : start + 2], start):
            with columns[number % 2]:
                _draw_rank(name, one, key=f"rank {number}")


def _draw_rank(name: str, opened: Opened, *, key: str) -> None:
    st.markdown(f"#### {text.escape(name)}")
    recording.begin(opened, key=key)
    draw_graph(opened.payload, key=key, height=520)
    draw_findings(opened.findings)
