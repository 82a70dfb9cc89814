"""Devices: what there is, what it is worth, moving everything at once, dividing a batch."""

from __future__ import annotations

import altair as alt
import streamlit as st

from app import words
from app.jobs import choices as devices
from app.jobs.devices import MOVING, SAMPLES, bandwidth, compare, divide, move, present
from app.panels.figures import draw_graph, draw_transfers
from app.panels.holding import forget, hold
from graphviz_torch import DeviceComparison

WORKS = ["matmul", "elementwise", "pinv", "training step"]


def draw_comparison(comparison: DeviceComparison) -> None:
    """Time by size for each device, its parts, and from which size on moving pays."""
    rows = [
        {
            "device": timing.device,
            "size": timing.size,
            "ms": 1000 * timing.total,
            "copy there": words.duration(timing.there) if timing.there else "none",
            "work": words.duration(timing.work),
            "copy back": words.duration(timing.back) if timing.back else "none",
        }
        for timing in comparison.timings
    ]
    chart = (
        alt.Chart({"values": rows})
        .mark_line(point=True)
        .encode(
            x=alt.X("size:Q", title="size", scale=alt.Scale(type="log", base=2)),
            y=alt.Y("ms:Q", title="milliseconds, with copies", scale=alt.Scale(type="log")),
            color=alt.Color("device:N", title=None, legend=alt.Legend(orient="top")),
            strokeDash=alt.StrokeDash("device:N", legend=None),
            tooltip=["device:N", "size:Q", "copy there:N", "work:N", "copy back:N"],
        )
    )
    left, right = st.columns([3, 2], gap="large")
    with left:
        st.altair_chart(chart, alt="Time by size for each device")
    with right:
        for device in comparison.devices():
            if device != "cpu":
                size = comparison.break_even(device)
                text = (
                    "never pays at these sizes" if size is None else f"pays from size {size:,} on"
                )
                st.metric(f"Moving to {device}", text, border=True)
        for device, reason in comparison.absent:
            st.info(f"{device} was not timed: {words.plain(reason)}", icon=":material/info:")
        st.dataframe(
            [{key: row[key] for key in row if key != "ms"} for row in rows], hide_index=True
        )


st.title("Devices", anchor=False)
st.markdown(
    "What this machine computes on, whether moving there pays, and what moves. A simulated "
    "accelerator has no clock, so it is never timed."
)
found = hold("present", "Looking", present)
if found:
    st.table(found)

st.subheader("What a device is worth", anchor=False)
work = st.segmented_control(
    "Work", WORKS, default=WORKS[0], required=True, key="work", bind="query-params"
)
if st.button("Measure again", icon=":material/refresh:", key="measure"):
    forget("compare")
compared = hold("compare", f"Measuring {work}", compare, work)
if compared is not None:
    draw_comparison(compared)
    if "cuda:0" in compared.devices():
        with st.expander("How fast copies are: pageable and pinned memory"):
            rates = hold("bandwidth", "Copying", bandwidth)
            if rates is not None:
                st.code(rates.table(), language=None)

st.subheader("Move everything at once", anchor=False)
st.markdown("`to_device` takes a namespace, and what shared memory before shares it afterwards.")
choices = {name: said for name, said in devices.choices().items() if name != "cpu"}
said = st.selectbox("To", list(choices.values()), key="to", bind="query-params")
left, right = st.columns(2, gap="large")
with left:
    st.code(MOVING)
with right:
    moved = hold("move", "Moving", move, next(n for n, text in choices.items() if text == said))
    if moved is not None:
        st.code(str(moved[0]), language=None, wrap_lines=True)
if moved is not None:
    with st.expander("The copies in a recording"):
        st.caption(words.TRANSFER)
        draw_transfers(moved[1], key="move")

st.subheader("How DataParallel divides a batch", anchor=False)
left, right = st.columns(2, gap="large")
with left:
    count = st.slider("Devices (simulated)", 1, 8, 2, key="count", bind="query-params")
with right:
    batch = st.slider(
        f"Batch, out of {SAMPLES} samples", 5, SAMPLES, 30, key="batch", bind="query-params"
    )
divided = hold("divide", "Running", divide, count, batch)
if divided is not None:
    st.table(
        [
            {"batch": f"{number}: {sum(n for _, n in parts)} samples"}
            | {f"sim:{index}": 0 for index in range(count)}
            | dict(parts)
            for number, parts in enumerate(divided[0], 1)
        ]
    )
    st.caption("Read from the graph of each batch, not computed. The first batch:")
    draw_graph(divided[1], (), key="divide")
