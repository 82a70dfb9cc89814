"""Training: watch the gradient of each layer, step by step, vanish, explode or stay alive."""

from __future__ import annotations

import altair as alt
import streamlit as st

from app import words
from app.jobs import choices as devices
from app.jobs.job import Job
from app.jobs.training import ACTIVATIONS, MAX_DEPTH, MAX_STEPS, Settings, Step, Trained, train
from app.panels.figures import draw_findings, draw_gradients, draw_graph
from app.panels.progress import again, wait
from graphviz_torch import find

SECONDS = 60
FLOOR = 1e-12  # a logarithmic axis has no 0
STARTS = {
    "Vanishing": Settings(rate=0.002),
    "Exploding": Settings(activation="ReLU", gain=3.0, rate=1e-11),
    "Healthy": Settings(activation="ReLU", gain=0.2, residual=True, rate=0.02),
}


def set_start() -> None:
    """Put the settings of the chosen start into the controls."""
    start = STARTS[st.session_state["start"]]
    for name in ("depth", "activation", "gain", "residual", "rate"):
        st.session_state[name] = getattr(start, name)


def choose() -> Settings:
    """The controls, and what they say."""
    st.segmented_control(
        "Start from", list(STARTS), default="Vanishing", required=True, key="start",
        bind="query-params", on_change=set_start,
    )  # fmt: skip
    start = STARTS[st.session_state["start"]]
    with st.expander("Settings", icon=":material/tune:"):
        left, right = st.columns(2, gap="large")
        with left:
            depth = _slider("Layers", 2, MAX_DEPTH, start.depth, "depth")
            activation = st.selectbox(
                "Activation", list(ACTIVATIONS), list(ACTIVATIONS).index(start.activation),
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
    return Settings(
        depth=int(depth),
        activation=str(activation),
        gain=float(gain),
        residual=residual,
        rate=float(rate),
        steps=int(steps),
        device=next(name for name, said in choices.items() if said == device),
        seed=seed,
    )


def _slider(
    label: str, low: float, high: float, value: float, key: str, hint: str | None = None
) -> float:
    number: float = st.slider(label, low, high, value, key=key, bind="query-params", help=hint)
    return number


def draw_norms(steps: list[Step]) -> None:
    """A line for each layer: the norm of its gradient."""
    rows = [
        {"step": step.step, "layer": layer, "norm": max(norm, FLOOR)}
        for step in steps
        for layer, norm in enumerate(step.norms)
    ]
    axis = alt.Axis(format="~e", tickCount=6)
    chart = (
        alt.Chart({"values": rows})
        .mark_line(interpolate="monotone", strokeWidth=2)
        .encode(
            x=alt.X("step:Q", title="step", axis=alt.Axis(tickMinStep=1)),
            y=alt.Y("norm:Q", title="gradient norm", scale=alt.Scale(type="log"), axis=axis),
            color=alt.Color("layer:Q", title="layer", scale=alt.Scale(scheme="viridis")),
            detail="layer:Q",
            tooltip=["layer:Q", "step:Q", alt.Tooltip("norm:Q", format=".3g")],
        )
        .properties(height=320)
    )
    st.altair_chart(chart, alt="Gradient norm of each layer over the steps")


st.title("Train, and watch the gradients", anchor=False)
st.markdown(
    "A small deep network learns a sine. Each line is one layer: how large the gradient of its "
    "parameters was, from the first layer (dark) to the last (bright)."
)
settings = choose()
state = st.session_state
if st.button("Train", type="primary", icon=":material/play_arrow:"):
    again("training")
    state.pop("trained", None)
held: tuple[Settings, list[Step], Trained | None] | None = state.get("trained")
place = st.empty()
if held is None or held[0] != settings:
    done: list[Step] = []
    held = state["trained"] = (settings, done, None)

    def seen(step: Step) -> tuple[float, str]:
        """Draw the lines so far, now and then."""
        done.append(step)
        if len(done) % 5 == 1:
            with place.container():
                draw_norms(done)
        return len(done) / settings.steps, f"step {len(done)} of {settings.steps}"

    job = Job(train, settings, seconds=SECONDS)
    trained = wait(job, "Training", settings, key="training", on_report=seen)
    held = state["trained"] = (settings, done, trained)

_, steps, trained = held
if steps:
    first, last = steps[-1].norms[0], steps[-1].norms[-1]
    ratio = f"{first / last:.2g}" if last else "0"
    left, middle, right = st.columns(3)
    left.metric("Loss", f"{steps[-1].loss:.4g}", border=True)
    middle.metric("Gradient norm, first layer", f"{first:.3g}", border=True)
    right.metric("First layer's, relative to the last's", ratio, border=True)
    with place.container():
        draw_norms(steps)
if trained is None:
    st.info("Stopped before its end: press Train for all steps.", icon=":material/info:")
    st.stop()

findings = find(trained.graph)
draw_findings(findings)
left, right = st.columns([5, 4], gap="large")
with left:
    st.subheader("The last step's graph", anchor=False)
    st.caption(words.NODE)
    draw_graph(trained.graph, findings, key="training")
with right:
    st.subheader("Gradients", anchor=False)
    st.caption(words.GRADIENT)
    draw_gradients(trained.graph, key="training")
    st.subheader("In TensorBoard", anchor=False)
    st.markdown("Loss and gradient norms over the steps, and the graph. Unpack the file, then:")
    st.code("tensorboard --logdir training", language="bash")
    st.download_button(
        "TensorBoard run", trained.archive, "training.zip", "application/zip", on_click="ignore",
        icon=":material/download:",
    )  # fmt: skip
