"""Run backward: choose what to run and where, and see its gradients and its transfers."""

from __future__ import annotations

import streamlit as st

from app import gallery, words
from app.expression.expression import GRAMMAR
from app.jobs import choices as devices
from app.jobs.job import Job
from app.jobs.run import Choice, Run, play
from app.panels.figures import draw_error
from app.panels.progress import again, wait
from app.panels.recording import show
from app.panels.upload import open_recording
from graphviz_torch import find

SECONDS = 30  # a run is ended after so many
PROGRAM = "a = x + 2\nb = a ** 2\nc = b + 3\ny = mean(c)"
INPUTS = "x = 1, 2, 3"
SOURCES = {
    "example": "Worked example",
    "expression": "Your own expression",
    "model": "A model",
    "recording": "A recording",
}


def choose() -> tuple[Choice | None, bool]:
    """The controls: what they say, None while a recording is looked at, and was the button hit."""
    source = st.segmented_control(
        "What to run",
        list(SOURCES.values()),
        default=SOURCES["example"],
        required=True,
        key="source",
        bind="query-params",
    )
    if source == SOURCES["recording"]:
        return None, False
    what, where = st.columns([5, 4], gap="large")
    with where:
        device, seed = _where(seeded=source != SOURCES["example"])
        hit = st.button(
            "Run backward", type="primary", icon=":material/play_arrow:", width="stretch"
        )
    with what:
        if source == SOURCES["model"]:
            return Choice("model", device, seed, model=_model()), hit
        program, inputs = PROGRAM, INPUTS
        if source == SOURCES["expression"]:
            program, inputs = _program()
        else:
            st.code(f"{inputs}\n{program}", language="python")
        return Choice("expression", device, seed, program=program, inputs=inputs), hit


def _where(*, seeded: bool) -> tuple[str, int]:
    choices = devices.choices()
    said = st.selectbox(
        "Device",
        list(choices.values()),
        key="device",
        bind="query-params",
        help="A simulated accelerator computes on the CPU, and has its own device for autograd: "
        "copies, errors and the graph are as on a GPU. It has no clock.",
    )
    device = next(key for key, text in choices.items() if text == said)
    if not seeded:
        return device, 0
    seed = st.number_input("Seed of random values", 0, 9999, 0, key="seed", bind="query-params")
    return device, seed


def _model() -> str:
    titles = {gallery.model(name).title: name for name in gallery.NAMES}
    title = str(st.selectbox("Model", list(titles), key="model", bind="query-params"))
    chosen = gallery.model(titles[title])
    st.caption(words.plain(chosen.says))
    with st.expander(f"Code: {chosen.name}.py", icon=":material/code:"):
        st.code(chosen.code, line_numbers=True)
    return chosen.name


def _program() -> tuple[str, str]:
    inputs = st.text_area(
        "Inputs",
        INPUTS,
        height=80,
        max_chars=2000,
        key="inputs",
        bind="query-params",
        help="One on each line: `x = 1, 2, 3`, `w = [[1, 2], [3, 4]]`, `r = randn(3, 4)`; "
        "also rand, ones, zeros, arange, and randint for whole numbers.",
    )
    program = st.text_area(
        "Expression",
        "y = mean((x + 2)**2 + 3)",
        height=110,
        max_chars=2000,
        key="program",
        bind="query-params",
        help=words.plain(GRAMMAR),
    )
    return program, inputs


def result(choice: Choice, backward: bool) -> Run | None:
    """What the choice gives: held from before, or run now."""
    held: dict[tuple[Choice, bool], Run] = st.session_state.setdefault("runs", {})
    if (choice, backward) not in held:
        job = Job(play, choice, backward, seconds=SECONDS)
        doing = "Running backward" if backward else "Running forward"
        run = wait(job, doing, (choice, backward), key="run")
        if run is None:
            return None
        while len(held) > 3:
            held.pop(next(iter(held)))
        held[choice, backward] = run
    return held[choice, backward]


def draw(run: Run, backward: bool) -> None:
    """What a run gave: its error or note, the graph, the script."""
    if run.error:
        draw_error(run.error)
    if run.note:
        st.info(words.plain(run.note), icon=":material/info:")
    if run.graph is not None:
        show(run.graph, find(run.graph), key="run", ran=backward)
    if run.script:
        with st.expander("The same as a script", icon=":material/content_copy:"):
            st.code(run.script, line_numbers=True)


st.title("What does autograd do?", anchor=False)
st.markdown(
    "Every operation on a tensor leaves a node behind. **Run backward** sends a gradient through "
    "them, from the output to the inputs, and shows what each node got and what was copied "
    "between devices."
)
choice, hit = choose()
if choice is None:
    graph = open_recording("A recording (.json or .json.gz)", key="run recording")
    if graph is not None:
        show(graph, find(graph), key="run recording")
else:
    state = st.session_state
    if "played" not in state:  # the first run of a session, perhaps from a link
        state["played"] = choice if st.query_params.get("backward") == "1" else None
    if hit:
        again("run")
        state["played"] = choice
        state.get("runs", {}).pop((choice, True), None)
    backward = state["played"] == choice
    if backward:
        st.query_params["backward"] = "1"
    else:
        st.query_params.pop("backward", None)
    run = result(choice, backward)
    if run is not None:
        draw(run, backward)
