"""The page Training: charts of the loss and of each layer's gradient norm at each step."""

from __future__ import annotations

import time
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from ..jobs.values import LoggedStep, TrainingResult, TrainingSettings
from ..panels import devices, text
from ..panels.charts import quantity, scale
from ..panels.figures import draw_findings, draw_gradients, draw_graph
from ..panels.head import draw_head
from ..panels.linked import follow
from ..panels.results import allow_restart, forget, result

SECONDS = 300
FLOOR = 1e-12  # drawn instead of 0 on the logarithmic axis
ACTIVATIONS = ("Sigmoid", "Tanh", "ReLU")
DRAW_SECONDS = 1.0  # minimum time between drawings, so that slow browsers can handle clicks
MAX_STEPS = 3000
MAX_DEPTH = 24
ABOUT = (
    "A small deep network learns a sine. On the right, each line is the gradient norm of one "
    "layer's parameters, from the first layer (dark) to the last (bright)."
)
STARTS = {
    "Vanishing": TrainingSettings(rate=0.002),
    "Exploding": TrainingSettings(activation="ReLU", gain=3.0, rate=1e-11),
    "Healthy": TrainingSettings(activation="ReLU", gain=0.2, residual=True, rate=0.02),
}


def draw() -> None:
    """Draw the page Training."""
    head, start = draw_head(
        "Training", list(STARTS), key="start", label="Start from", about=ABOUT,
        on_change=_set_start,
    )  # fmt: skip
    settings = _choose(STARTS[start])
    state = st.session_state
    steps: list[LoggedStep] = state.setdefault("training steps", [])
    if state.get("training settings") != settings:
        state["training settings"] = settings
        state["training paused"] = False
        steps.clear()
    with head:
        if st.button("Train again", type="primary", icon=":material/play_arrow:"):
            forget("training")
            state["training paused"] = False
            steps.clear()
        paused, place_of_pause = state["training paused"], st.empty()
        ended = len(steps) >= settings.steps
        _draw_pause(place_of_pause, paused, ended)
    place = st.empty()
    with place.container():
        _draw_steps(steps)  # the charts are empty until the first step has ended
    if paused:
        st.info(f"Paused after {text.count(len(steps), 'step')}.", icon=":material/pause:")
        return

    drawn = -DRAW_SECONDS

    def draw_step(step: LoggedStep) -> tuple[float, str]:
        """Add a step to the charts, and draw them again at most once per second."""
        nonlocal drawn
        if step.step >= len(steps):
            steps.append(step)
            if time.monotonic() - drawn >= DRAW_SECONDS:
                drawn = time.monotonic()
                with place.container():
                    _draw_steps(steps)
        return (step.step + 1) / settings.steps, f"step {step.step + 1} of {settings.steps}"

    trained: TrainingResult | None = result(
        "training", "Training", ".training:train", settings, seconds=SECONDS, on_report=draw_step
    )
    with place.container():
        _draw_steps(steps)
    if trained is not None:
        if not ended:
            _draw_pause(place_of_pause, paused, ended=True)
        _draw_end(trained)


def _draw_pause(place: DeltaGenerator, paused: bool, ended: bool) -> None:
    """Draw the button that pauses and continues the training, and is disabled after its end."""
    place.button(
        "Continue" if paused else "Pause",
        icon=":material/resume:" if paused else ":material/pause:",
        key=f"pause, {ended=}",
        on_click=_pause,
        help="Pause ends the process and keeps the steps so far. Continue repeats these steps with "
        "the same results, and then trains further.",
        disabled=ended,
    )


def _pause() -> None:
    state = st.session_state
    state["training paused"] = not state.get("training paused", False)
    allow_restart("training")


def _set_start() -> None:
    """Set all controls to the chosen settings of `STARTS`."""
    start = STARTS[st.session_state["start"]]
    for name in ("depth", "activation", "gain", "residual", "rate"):
        st.session_state[name] = getattr(start, name)


def _choose(start: TrainingSettings) -> TrainingSettings:
    """Draw the controls and return the chosen settings."""
    with st.expander("Settings", icon=":material/tune:"):
        left, right = st.columns(2, gap="large")
        with left:
            depth = _slider("Layers", 2, MAX_DEPTH, start.depth, "depth")
            activation = st.selectbox(
                "Activation", ACTIVATIONS, ACTIVATIONS.index(start.activation),
                key="activation", bind="query-params",
            )  # fmt: skip
            gain = _slider(
                "Scale of the weights", 0.1, 5.0, start.gain, "gain",
                "Standard deviation at the start, times the square root of the width",
            )  # fmt: skip
            residual = st.toggle(
                "Residual connections", start.residual, key="residual", bind="query-params"
            )
        with right:
            steps = _slider("Steps", 1, MAX_STEPS, start.steps, "steps")
            rate = st.number_input(
                "Learning rate", 0.0, 10.0, start.rate, format="%g", key="rate",
                bind="query-params",
            )  # fmt: skip
            choices = devices.choices()
            device = st.selectbox(
                "Device", list(choices.values()), list(choices).index("cpu"), key="device",
                bind="query-params",
            )  # fmt: skip
            seed = st.number_input("Seed", 0, 9999, 0, key="seed", bind="query-params")
    return TrainingSettings(
        depth=int(depth),
        activation=str(activation),
        gain=float(gain),
        residual=residual,
        rate=float(rate),
        steps=int(steps),
        device=next(name for name, title in choices.items() if title == device),
        seed=seed,
    )


def _slider(
    label: str, low: float, high: float, value: float, key: str, hint: str | None = None
) -> float:
    number: float = st.slider(label, low, high, value, key=key, bind="query-params", help=hint)
    return number


def _draw_steps(steps: list[LoggedStep]) -> None:
    """Draw the numbers of the last step, and charts of the loss and of the gradient norms."""
    loss = norm = ratio = "…"
    if steps:
        first, last = steps[-1].norms[0], steps[-1].norms[-1]
        loss, norm, ratio = f"{steps[-1].loss:.4g}", f"{first:.3g}", "0"
        if last:
            ratio = f"{first / last:.2g}"
    left, middle, right = st.columns(3)
    left.metric("Loss", loss, border=True)
    middle.metric("Gradient norm, first layer", norm, border=True)
    right.metric("Gradient norm, first layer / last layer", ratio, border=True)
    left, right = st.columns(2)
    numbers = [0, max(1, len(steps) - 1)]
    step = quantity("step", axis={"tickMinStep": 1}, scale=scale(numbers, nice=False))
    line: dict[str, Any] = {"type": "line", "strokeWidth": 2, "aria": bool(steps)}
    left.vega_lite_chart(
        {
            "data": {"values": [{"step": each.step, "loss": each.loss} for each in steps]},
            "mark": {**line, "color": "#3a94d0"},
            "encoding": {
                "x": step,
                "y": quantity("loss", scale=scale(each.loss for each in steps)),
                "tooltip": [quantity("step"), quantity("loss", format=".4g")],
            },
            "height": 280,
        },
        alt="Loss over the steps",
    )
    rows = [
        {"step": each.step, "layer": layer, "norm": max(norm, FLOOR)}
        for each in steps
        for layer, norm in enumerate(each.norms)
    ]
    layers = [0, *(row["layer"] for row in rows)]
    norms = quantity(
        "norm",
        title="gradient norm",
        scale=scale((row["norm"] for row in rows), type="log"),
        axis={"format": "~e", "tickCount": 6},
    )
    right.vega_lite_chart(
        {
            "data": {"values": rows},
            "mark": {**line, "interpolate": "monotone"},
            "encoding": {
                "x": step,
                "y": norms,
                "color": quantity("layer", scale=scale(layers, scheme="viridis", nice=False)),
                "detail": {"field": "layer"},
                "tooltip": [
                    quantity("layer"),
                    quantity("step"),
                    quantity("norm", format=".3g"),
                ],
            },
            "height": 280,
        },
        alt="Gradient norm of each layer over the steps",
    )


def _draw_end(trained: TrainingResult) -> None:
    """Draw the findings and the graph of the last step, and a download for TensorBoard."""
    opened = trained.opened
    follow(opened.graph, key="training")
    draw_findings(opened.findings)
    left, right = st.columns(2, gap="medium")
    with left:
        st.markdown("## The last step's graph", help=text.NODE)
        draw_graph(opened.payload, key="training", color_by="gradient")
    with right:
        st.markdown("## Gradients", help=text.GRADIENT)
        draw_gradients(opened.graph, key="training")
        st.markdown("## In TensorBoard")
        st.markdown("Loss and gradient norms over the steps, and the graph. Unpack the file, then:")
        st.code("tensorboard --logdir training", language=None)
        st.download_button(
            "TensorBoard run", trained.archive, "training.zip", "application/zip",
            on_click="ignore", icon=":material/download:",
        )  # fmt: skip
