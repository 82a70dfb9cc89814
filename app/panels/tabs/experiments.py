"""Experiments on a model: a button, each answer, and how far one sample or input reaches."""

from __future__ import annotations

import streamlit as st

from graphviz_torch.experiments import Experiment

from ...jobs.values import Answers, Choice
from ..figures import draw_graph
from ..results import result
from ..text import escape, prose

_HELP = (
    "The forward runs again with one thing changed: another sample, later tokens, another seed, "
    "float64. What must not follow from it is a finding, with the operation and the line."
)
_SHOW = {True: st.success, False: st.warning, None: st.info}
_ICONS = {True: ":material/check:", False: ":material/warning:", None: ":material/question_mark:"}


def draw_experiments(choice: Choice, *, key: str) -> None:
    """A button; where it was pressed for this choice, the answers."""
    state, place = st.session_state, f"{key} experiments on"
    if st.button("Experiments", icon=":material/science:", help=_HELP, key=f"{key} experiments"):
        state[place] = choice
    if state.get(place) != choice:
        return
    doing = "Running the forward again, with one thing changed"
    shared = choice.seed == 0
    made: Answers | None = result(place, doing, ".experiments:answers", choice, shared=shared)
    if made is None:
        return
    left, right = st.columns([3, 5], gap="medium")
    with left:
        for each in made.experiments:
            _draw_answer(each)
    with right:
        _draw_influence(made, key=key)


def _draw_answer(each: Experiment) -> None:
    name = f"**{escape(each.name)}**"
    lines = [f"{name}: {escape(each.changed)}" if each.changed else name, escape(each.message)]
    found = each.finding
    if found is not None and found.advice:
        lines.append(prose(found.advice))
    facts = [found.rule if found is not None else "", each.operation, each.where]
    if any(facts):
        lines.append(f":small[{escape(' · '.join(filter(None, facts)))}]")
    holds = each.holds
    if found is not None:  # of severity info, it may be meant
        holds = None if found.severity == "info" else False
    _SHOW[holds]("  \n".join(lines), icon=_ICONS[holds])


def _draw_influence(made: Answers, *, key: str) -> None:
    if not made.payload:
        st.info("How far a change goes is not known: the path depends on the values.")
        return
    st.markdown(
        "## How far does it reach?",
        help="The bar of each node: how much of its value changes with the sample, position or "
        "input that is chosen below the graph. What it never reaches is grey.",
    )
    draw_graph(made.payload, key=key, place="influence", color_by="influence", height=600)
