"""The panel "Will it fit?": the memory of one rank in a training step, computed without GPUs."""

from __future__ import annotations

import base64
import math

import streamlit as st

from ..jobs.values import FitReport
from ..models import gallery
from . import text
from .results import result

SAMPLE = "A sample: 6.4 billion parameters"
FILE = "My own rehearsal"
GIB = 2**30
_STATES = ("parameters", "gradients", "optimizer")  # memory that sharding divides over the ranks
COLUMNS = ("kind", "group", "count", "bytes", "module", "line")


def draw_fit() -> None:
    """Draw the choices of model and cluster, and the memory of one rank."""
    source = st.segmented_control(
        "Training", [SAMPLE, FILE], default=SAMPLE, required=True, key="fit", bind="query-params"
    )
    with (
        st.form("cluster", border=False),
        st.container(horizontal=True, vertical_alignment="bottom"),
    ):
        ranks = st.number_input("Ranks", 1, 4096, 8, key="fit ranks", bind="query-params")
        tp = st.number_input(
            "of them share a batch (tp)", 1, 64, 1, key="fit tp", bind="query-params"
        )
        gib = st.number_input(
            "Memory of a device, GiB", 0.1, 1e6, 80.0, key="fit memory", bind="query-params"
        )
        st.form_submit_button("Rehearse", type="primary", icon=":material/straighten:")
    if ranks % tp:
        st.error(f"{ranks} ranks do not make groups of {tp}: pass a divisor of {ranks}.")
        return
    if source == SAMPLE:
        _draw_sample(ranks, tp, gib)
    else:
        _draw_file(ranks, tp, gib)


def _draw_sample(ranks: int, tp: int, gib: float) -> None:
    with st.expander("The program", icon=":material/code:"):
        st.code(gallery.model(gallery.LARGE).code, language="python", line_numbers=True)
    doing = f"Rehearsing rank 0 of {ranks:,}"
    found: FitReport | None = result("fit", doing, ".rehearsals:sample", ranks, tp, gib)
    if found is not None:
        _draw(found, gib)


def _draw_file(ranks: int, tp: int, gib: float) -> None:
    st.markdown("Run this on your machine. It needs no GPU, and allocates no tensor memory:")
    mesh = f"dp={ranks // tp},tp={tp}" if tp > 1 else f"dp={ranks}"
    options = f"--ranks {ranks} --mesh {mesh} --device-memory {gib:g}GiB"
    st.code(f"graphviz-torch rehearse {options} --format json train.py > fit.json", language=None)
    file = st.file_uploader("Its output", type=["json"], key="fit file", max_upload_size=5)
    if file is None:
        st.info("Drop the file above.", icon=":material/folder_open:")
        return
    data, name = file.getvalue(), file.name
    every: list[FitReport] | None = result("fit file", "Reading", ".rehearsals:read", data, name)
    for found in every or ():
        _draw(found, gib)


def _needs(found: FitReport, memory: float) -> str:
    """Return a text with the device memory or number of ranks that the training step needs."""
    sizes = dict(found.parts)
    states = min(sum(sizes[name] for name in _STATES), found.peak_bytes)
    rest = found.peak_bytes - states
    needs = f"It needs a device of {text.size(found.peak_bytes)}."
    if rest >= memory:
        return (
            f"{needs} Everything but parameters, gradients and optimizer state takes "
            f"{text.size(rest)}, which is too much alone: use a smaller batch, or checkpoint the "
            "activations."
        )
    ranks = math.ceil(states * found.ranks / (memory - rest))
    return (
        f"{needs} If the {found.ranks:,} ranks divide parameters, gradients and optimizer state "
        f"({text.size(states)} on each), about {ranks:,} ranks are enough. If each rank has a full "
        "copy, shard them with fully_shard. Rehearse this number of ranks above."
    )


def _draw(found: FitReport, gib: float) -> None:
    """Draw whether the rank fits, its memory by kind, and its collectives."""
    left = gib * GIB - found.peak_bytes
    rank = f"Rank {found.rank:,} of {found.ranks:,}"
    at = text.escape(found.peak_at)
    if left >= 0:
        st.success(f"**{rank} fits**: {text.size(left)} are left at its peak, in {at}.")
    else:
        st.error(
            f"**{rank} does not fit**: {text.size(-left)} too much at its peak, in {at}. "
            f"{_needs(found, gib * GIB)}"
        )
    figures = [("Peak", text.size(found.peak_bytes))]
    figures += [(name.capitalize(), text.size(nbytes)) for name, nbytes in found.parts]
    figures.append(("Operations", text.short(found.flops)))
    for column, (name, value) in zip(st.columns(len(figures)), figures, strict=True):
        column.metric(name, value)
    if found.chart:
        data = base64.b64encode(found.chart.encode()).decode()
        alt = "The memory of this rank over the step"
        st.html(f'<img alt="{alt}" style="max-width: 100%" src="data:image/svg+xml;base64,{data}">')
    if found.collectives:
        st.markdown("## Collectives")
        rows = []
        for kind, group, count, nbytes, module, where in found.collectives:
            cells = (kind, group, f"{count:,}", text.size(nbytes), module, where)
            rows.append(dict(zip(COLUMNS, map(text.escape, cells), strict=True)))
        st.table(rows)
