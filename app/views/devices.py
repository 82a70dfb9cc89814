"""The page Devices: list and time devices, move objects, divide a batch, check checkpoints."""

from __future__ import annotations

import os

import streamlit as st

from ..jobs.values import MOVING, SAMPLES, BatchDivision, Measurements, MoveResult
from ..panels import devices, recording, text
from ..panels.charts import quantity, scale
from ..panels.checkpoints import draw_checkpoints
from ..panels.figures import draw_graph, draw_transfers
from ..panels.head import draw_head
from ..panels.results import SECONDS, forget, result

CHECKPOINTS = "Checkpoints"
PARTS = ["Moving and measuring", CHECKPOINTS]
ABOUT = (
    "The devices of this machine, how fast they are, and how objects are moved to them. A "
    "simulated accelerator has no clock, so it is never timed. Checkpoints are saved on one device "
    "and loaded on another, with `weights_only=True`, so that no code in a file is run."
)
WORKS = ["matmul", "elementwise", "pinv", "training step"]


def draw() -> None:
    """Draw the page Devices."""
    _, part = draw_head("Devices", PARTS, key="part", label="Part of the page", about=ABOUT)
    if part == CHECKPOINTS:
        draw_checkpoints()
        return
    present = result("present", "Listing devices", ".measurement:device_rows", shared=True)
    if present:
        st.table([{k: text.escape(v) for k, v in row.items()} for row in present])
    if present and any(row["device"].startswith("cuda") for row in present):
        _draw_memory()
    _draw_moving()
    _draw_division()
    _draw_timing()


def _draw_memory() -> None:
    st.header("Memory of the GPU, for one step of an MLP", anchor=False)
    rows = result("memory", "Running a step", ".measurement:cuda_memory")
    if rows:
        st.table(rows)
        st.caption(
            "Allocated: memory of live tensors. Reserved: memory of PyTorch's caching allocator. "
            "Peak: the maximum of allocated. `nvidia-smi` shows reserved plus the CUDA context."
        )


def _draw_timing() -> None:
    st.header("Speed of devices and threads", anchor=False)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        work = st.segmented_control(
            "Work", WORKS, default=WORKS[0], required=True, key="work", bind="query-params"
        )
        asked = st.session_state.get("measured") == work
        title = "Measure again" if asked else "Measure"
        icon = ":material/timer:"
        st.button(title, type="primary", icon=icon, key="measure", on_click=_ask, args=[work])
    if not asked:
        st.caption("Press Measure to start: it keeps the machine busy for a while.")
        return
    measured: Measurements | None = result(
        "compare",
        f"Measuring {work}",
        ".measurement:compare",
        work,
        seconds=SECONDS * (os.cpu_count() or 1),
        on_report=lambda share: (share, f"{100 * share:.0f} %"),
    )
    if measured is not None:
        _draw_measured(measured)
        if any(timing.device == "cuda:0" for timing in measured.timings):
            with st.expander("How fast copies are: pageable and pinned memory"):
                rates = result("bandwidth", "Copying", ".measurement:bandwidth")
                if rates is not None:
                    st.code(rates, language=None)


def _ask(work: str) -> None:
    """Request a measurement of this work, even if there is a cached result."""
    forget("compare")
    st.session_state["measured"] = work


def _draw_measured(measured: Measurements) -> None:
    """Draw each device's times by size, and the smallest size from which the device is faster."""
    rows = [
        {
            "device": timing.device,
            "size": timing.size,
            "ms": 1000 * timing.seconds,
            "low": 1000 * timing.low,
            "high": 1000 * timing.high,
            "parts": timing.parts,
        }
        for timing in measured.timings
    ]
    sizes = scale((timing.size for timing in measured.timings), type="log", base=2, nice=False)
    ends = (end for timing in measured.timings for end in (timing.low, timing.high))
    log = scale((1000 * end for end in ends if end > 0), type="log")
    x = quantity("size")
    low = {"field": "low", "type": "quantitative"}
    time = quantity("ms", title="milliseconds, with copies")
    name = {"field": "device", "type": "nominal"}
    legend = {"orient": "top", "symbolOpacity": 1, "symbolDash": [1, 0]}
    band = {
        "mark": {"type": "area", "opacity": 0.2},
        "encoding": {"y": {**low, "scale": log}, "y2": {"field": "high"}},
    }
    line = {
        "mark": {"type": "line", "point": True},
        "encoding": {
            "y": {**time, "scale": log, "axis": {"tickCount": 5}},
            "strokeDash": {**name, "title": None, "legend": legend},
            "tooltip": [
                name,
                x,
                {**time, "title": "ms", "format": ".3g"},
                {"field": "parts", "type": "nominal"},
            ],
        },
    }
    chart = {
        "data": {"values": rows},
        "encoding": {
            "x": {**x, "scale": sizes},
            "color": {**name, "title": None, "legend": legend},
        },
        "layer": [band, line],
    }
    left, right = st.columns([3, 2], gap="large")
    with left:
        st.vega_lite_chart(chart, alt="Time by size for each device")
        st.caption("Lines are medians; bands contain the middle half of the measurements.")
    with right:
        for device, size in measured.pays:
            what = f"**{text.escape(device)}**, against 1 thread"
            if size is None:
                st.markdown(f"{what}: not clearly faster at these sizes.")
            else:
                st.markdown(f"{what}: faster from size {size:,} on.")
        for device, reason in measured.absent:
            st.caption(f"{text.escape(device)} was not timed: {text.escape(reason)}.")
        wide = [t for t in measured.timings if t.high - t.low > 0.25 * t.seconds]
        if wide:
            st.info(
                f"{len(wide)} of {text.count(len(measured.timings), 'number')} vary by more than "
                "25 %: this machine is busy. Differences inside the bands are noise.",
                icon=":material/info:",
            )


def _draw_moving() -> None:
    st.header(
        "Move everything at once",
        anchor=False,
        help="`to_device` moves all objects of a namespace; tensors that share memory still do.",
    )
    choices = {name: title for name, title in devices.choices().items() if name != "cpu"}
    title = st.selectbox("To", list(choices.values()), key="to", bind="query-params")
    target = next(name for name, shown in choices.items() if shown == title)
    left, right = st.columns(2, gap="medium")
    with left:
        st.code(MOVING, language=None, wrap_lines=True)
    moved: MoveResult | None = result("move", "Moving", ".measurement:move", target, shared=True)
    if moved is not None:
        with right:
            st.code(moved.report, language=None, wrap_lines=True)
        with st.expander("The copies in a recording"):
            draw_transfers(moved.opened.graph, key="move")


def _draw_division() -> None:
    st.header("How DataParallel divides a batch", anchor=False)
    left, right = st.columns(2, gap="medium")
    with left:
        count = st.slider("Devices (simulated)", 1, 8, 2, key="count", bind="query-params")
    with right:
        batch = st.slider(
            f"Batch, out of {SAMPLES} samples", 5, SAMPLES, 30, key="batch", bind="query-params"
        )
    divided: BatchDivision | None = result("divide", "Running", ".measurement:divide", count, batch)
    if divided is None:
        return
    left, right = st.columns(2, gap="medium")
    with left:
        st.table(
            [
                {"batch": f"{number}: {sum(n for _, n in parts)} samples"}
                | {f"sim:{index}": 0 for index in range(count)}
                | dict(parts)
                for number, parts in enumerate(divided.batches, 1)
            ]
        )
        st.caption("The numbers are read from each batch's graph. The first graph is shown.")
    with right:
        recording.begin(divided.opened, key="divide")
        draw_graph(divided.opened.payload, key="divide", color_by="device", height=420)
