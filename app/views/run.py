"""The page Run: choose a program and a device, and see its graph, gradients and copies."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from ..expression.functions import FUNCTIONS
from ..expression.grammar import GRAMMAR, ExpressionError, input_lines, parse
from ..jobs.values import Choice, OpenedGraph, Run
from ..models import gallery
from ..panels import devices, example, own, recording, text
from ..panels.cards import choose_model
from ..panels.experiments import draw_experiments
from ..panels.figures import draw_error, draw_findings, draw_graph
from ..panels.head import draw_head
from ..panels.language import draw_switch, translated
from ..panels.program import draw_program
from ..panels.results import allow_restart, result
from ..panels.upload import open_recording

SECONDS = 20  # time limit of a run
SOURCES = {
    "example": "Worked example",
    "expression": "Your own expression",
    "model": "A model",
    "recording": "A recording",
}
SAVING = """\
from graphviz_torch import record

with record(model) as recording:
    model(batch).sum().backward()
recording.graph.save("step.json.gz")
"""
LESSON = (
    "Every operation on a tensor that requires gradients creates a node. **Run backward** computes "
    "gradients through the nodes, from the output to the inputs. The page shows the gradient at "
    "each node, and the copies between devices."
)


def draw() -> None:
    """Draw the page Run."""
    sources = [*filter(None, [own.title()]), *SOURCES.values()]
    row, source = draw_head(
        translated("What does autograd do?"), sources, key="source",
        label=translated("What to run"), about=translated(LESSON),
    )  # fmt: skip
    with row:
        draw_switch()
    if source == own.title():
        opened = own.open_own(key="own")
        if opened is not None:
            own.follow(opened)
        _draw_recording(opened, key="own")
        return
    if source == SOURCES["recording"]:
        opened = open_recording(
            translated("A recording (.json, .json.gz), or a script (.py)"), key="run recording"
        )
        if opened is None:
            st.markdown(
                translated("Save a recording on the machine that runs your model, GPU or not:")
            )
            st.code(SAVING, language=None)
        _draw_recording(opened, key="run recording")
        return
    if source == SOURCES["model"] and (name := choose_model()) is None:
        return
    left, right = st.columns([3, 8], gap="medium")
    with left:
        if source == SOURCES["model"]:
            chosen = gallery.model(str(name))
            device, seed = _choose_device(gallery.DEVICES[chosen.name], seeded=True)
            choice = Choice("model", device, seed, model=chosen.name)
        elif source == SOURCES["expression"]:
            program, inputs = _program()
            device, seed = _choose_device((1,), seeded="rand" in inputs)
            choice = Choice("expression", device, seed, program=program, inputs=inputs)
        else:
            device, _ = _choose_device((1,), seeded=False)
            choice = Choice("expression", device, program=example.PROGRAM, inputs=example.INPUTS)
        hit = st.button(
            translated("Run backward"),
            type="primary",
            icon=":material/play_arrow:",
            width="stretch",
            disabled=st.session_state.get("failed choice") == choice,
        )
        backward = _is_backward_requested(choice, hit)
        # All visitors share the runs of examples.
        shared = choice.seed == 0 and source != SOURCES["expression"]
        made = _result(choice, backward, shared)
        if made is not None:
            if made.error and st.session_state.get("failed choice") != choice:
                # This disables the button in the next run of the page.
                st.session_state["failed choice"] = choice
                st.rerun()
            _draw_left(made, backward)
    if made is not None and made.opened is not None:
        st.session_state["run before"] = made.opened
        with right:
            recording.show(made.opened, key="run", ran=backward)
        recording.draw_downloads(made.opened, key="run")
    elif made is not None and (before := st.session_state.get("run before")) is not None:
        with right, st.container(key="before"):  # page.css draws this container gray
            st.caption(translated("The last graph without an error."))
            draw_graph(before.payload, key="before", height=recording.HEIGHT)
    if choice.source == "model" and made is not None and not made.error:
        draw_experiments(choice, key="run")
    if made is not None and made.script:
        title, icon = translated("The same as a script"), ":material/content_copy:"
        with st.expander(title, icon=icon, key="script", on_change="rerun") as part:
            if part.open:  # draw the code only now, because the browser then loads a code viewer
                st.code(made.script, language=None, line_numbers=True)


def _draw_recording(opened: OpenedGraph | None, *, key: str) -> None:
    """Draw a recording that was opened from a file."""
    if opened is None:
        return
    recording.begin(opened, key=key)
    draw_findings(opened.findings)
    recording.show(opened, key=key)
    recording.draw_downloads(opened, key=key)


def _result(choice: Choice, backward: bool, shared: bool) -> Run | None:
    """Run the choice and return the result. The first page has a stored result and needs no job.

    Args:
        choice: the visitor's choice.
        backward: whether to run backward, too.
        shared: whether all visitors share the result.
    """
    if choice == example.CHOICE and not backward:
        return example.forward()
    if choice.source == "expression":
        try:  # report an error in the text before a job is started
            parse(choice.program)
            input_lines(choice.inputs)
        except ExpressionError as error:
            return Run(None, str(error))
    doing = translated("Running backward" if backward else "Running forward")
    made: Run | None = result(
        "run", doing, ".backward:play", choice, backward, seconds=SECONDS, shared=shared
    )
    return made


def _draw_left(made: Run, backward: bool) -> None:
    """Draw the left column: the error or message, the program with values, and the findings."""
    if made.opened is not None:
        recording.begin(made.opened, key="run")
    if made.error:
        draw_error(made.error)
    if made.note:
        st.info(text.prose(made.note), icon=":material/info:")
    findings = made.opened.findings if backward and made.opened is not None else ()
    if findings:
        draw_findings(findings)
    if made.program:
        graph = made.opened.graph if made.opened is not None else None
        height = 420 if len(made.program) > 18 else None
        draw_program(made.program, graph, key="run", ran=backward, height=height)
    if not findings and backward and made.opened is not None:
        draw_findings(())


def _is_backward_requested(choice: Choice, hit: bool) -> bool:
    """Return True if the button was pressed for this choice, or the link has `backward=1`."""
    state = st.session_state
    if "played" not in state:  # the page runs for the first time in this session
        state["played"] = choice if st.query_params.get("backward") == "1" else None
    if hit:
        allow_restart("run")
        state["played"] = choice
    backward: bool = state["played"] == choice
    if backward:
        st.query_params["backward"] = "1"
    else:
        st.query_params.pop("backward", None)
    return backward


def _choose_device(simulated: Sequence[int], *, seeded: bool) -> tuple[str, int]:
    choices = devices.choices(simulated)
    device = st.selectbox(
        translated("Device"),
        list(choices),
        key="device",
        bind="query-params",
        format_func=choices.__getitem__,
        help=translated(
            "A simulated accelerator computes on the CPU but is a separate device for autograd: "
            "copies, errors and the graph are the same as on a GPU. It has no clock."
        ),
    )
    assert device is not None  # the first device is the default
    if not seeded:
        return device, 0
    label = translated("Seed of random values")
    seed = st.number_input(label, 0, 9999, 0, key="seed", bind="query-params")
    return device, seed


def _program() -> tuple[str, str]:
    inputs = st.text_area(
        translated("Inputs"),
        example.INPUTS,
        height=68,
        max_chars=2000,
        key="inputs",
        bind="query-params",
        help=translated(
            "One per line: `x = 1, 2, 3`, `w = [[1, 2], [3, 4]]`, `r = randn(3, 4)`; "
            "also rand, ones, zeros, arange, and randint for integers."
        ),
    )
    program = st.text_area(
        translated("Expression"),
        "y = mean((x + 2)**2 + 3)",
        height=68,
        max_chars=2000,
        key="program",
        bind="query-params",
        help=text.prose(translated(GRAMMAR).format(functions=", ".join(sorted(FUNCTIONS)))),
    )
    return program, inputs
