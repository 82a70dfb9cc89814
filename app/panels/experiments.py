"""Experiments on a model: a button, the results, and influence maps."""

from __future__ import annotations

import streamlit as st

from graphviz_torch.experiments import Experiment

from ..jobs.values import Choice, ExperimentResults
from .figures import draw_graph
from .language import translated
from .results import result
from .text import escape, prose

_HELP = (
    "Runs the forward again with one thing changed: another sample, later tokens, another seed, "
    "float64. An output that must not depend on the change is a finding, with operation and line."
)
_SHOW = {True: st.success, False: st.warning, None: st.info}
_ICONS = {True: ":material/check:", False: ":material/warning:", None: ":material/question_mark:"}


def draw_experiments(choice: Choice, *, key: str) -> None:
    """Draw a button and, after it was pressed for this choice, the results."""
    state, place = st.session_state, f"{key} experiments on"
    label, about = translated("Experiments"), translated(_HELP)
    if st.button(label, icon=":material/science:", help=about, key=f"{key} experiments"):
        state[place] = choice
    if state.get(place) != choice:
        return
    doing = translated("Running the forward again, with one thing changed")
    shared = choice.seed == 0
    call = ".experiments:run_experiments"
    made: ExperimentResults | None = result(place, doing, call, choice, shared=shared)
    if made is None:
        return
    left, right = st.columns([3, 5], gap="medium")
    with left:
        for each in made.experiments:
            _draw_experiment(each)
    with right:
        _draw_influence(made, key=key)


def _draw_experiment(each: Experiment) -> None:
    name = f"**{escape(each.name)}**"
    lines = [f"{name}: {escape(each.changed)}" if each.changed else name, escape(each.message)]
    found = each.finding
    if found is not None and found.advice:
        lines.append(prose(found.advice))
    facts = [found.rule if found is not None else "", each.operation, each.where]
    if any(facts):
        lines.append(f":small[{escape(' · '.join(filter(None, facts)))}]")
    holds = each.holds
    if found is not None:  # a finding of severity "info" may be intended
        holds = None if found.severity == "info" else False
    _SHOW[holds]("  \n".join(lines), icon=_ICONS[holds])


def _draw_influence(made: ExperimentResults, *, key: str) -> None:
    if not made.payload:
        st.info("No influence map: which operations run depends on the values.")
        return
    st.markdown(
        "## Influence of an input",
        help="The bar of each node shows how much of its value changes with the sample, position "
        "or input that is chosen below the graph. Nodes that do not change are gray.",
    )
    draw_graph(made.payload, key=key, place="influence", color_by="influence", height=600)
