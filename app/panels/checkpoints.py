"""The panel Checkpoints: save a model, load a file into another model, and compare both."""

from __future__ import annotations

import streamlit as st

from ..jobs.values import LoadedCheckpoint, SavedCheckpoint
from ..models import gallery
from . import devices, text
from .figures import draw_error, draw_graph
from .linked import select
from .results import result

MAX_MEGABYTES = 100
FORMATS = {"PyTorch (.pt)": ".pt", "safetensors (.safetensors)": ".safetensors"}
MINE = "My own file"
SAVED = "The file saved above"
SAME_MODEL = "Model of the same kind"


def draw_checkpoints() -> None:
    """Draw the panel in which a visitor saves a model, loads it into another, and compares both."""
    titles = gallery.titles(failing=False)
    st.header("Save", anchor=False)
    left, middle, right = st.columns(3)
    with left:
        model = str(st.selectbox("Model", list(titles), key="model", bind="query-params"))
    name = titles[model]
    with middle:
        source = _choose_device("Saved on", "from", gallery.DEVICES[name])
    with right:
        form = str(st.selectbox("Format", list(FORMATS), key="format", bind="query-params"))
    saved: SavedCheckpoint | None = result(
        "saved", "Saving", ".checkpoints:save", name, source, FORMATS[form]
    )
    if saved is not None:
        _draw_saved(saved)

    st.header("Load", anchor=False)
    left, middle, right = st.columns(3)
    with left:
        what = st.selectbox("File", [SAVED, MINE], key="file", bind="query-params")
    with middle:
        options = [SAME_MODEL, *titles]
        into = str(st.selectbox("Into a new", options, key="into", bind="query-params"))
    chosen = titles[model if into == SAME_MODEL else into]
    with right:
        target = _choose_device("Loaded on", "onto", gallery.DEVICES[chosen], start="cpu")
    disturb = st.toggle(
        "Change one value after loading, to see how it is found",
        key="disturb",
        bind="query-params",
    )
    file_name, data = (saved.name, saved.data) if saved is not None else ("", b"")
    if what == MINE:
        file = st.file_uploader(
            "A checkpoint", ["pt", "pth", "bin", "safetensors"], key="checkpoint",
            max_upload_size=MAX_MEGABYTES,
        )  # fmt: skip
        file_name, data = (file.name, file.getvalue()) if file is not None else ("", b"")
    if data:
        arguments = (file_name, data, chosen, target, disturb)
        loaded: LoadedCheckpoint | None = result(
            "loaded", "Loading", ".checkpoints:load", *arguments
        )
        if loaded is not None:
            _draw_loaded(loaded)
    elif what == MINE:
        st.info("Choose a file above.", icon=":material/folder_open:")


def _choose_device(
    label: str, key: str, simulated: tuple[int, ...], start: str | None = None
) -> str:
    """Show a select box of real and simulated devices, and return the selected one."""
    choices = devices.choices(simulated)
    index = 0 if start is None else list(choices).index(start)
    message = st.selectbox(label, list(choices.values()), index, key=key, bind="query-params")
    return next(name for name, title in choices.items() if title == message)


def _draw_saved(saved: SavedCheckpoint) -> None:
    """Draw download buttons for the checkpoint and its graph, and a list of the tensors."""
    with st.container(horizontal=True):
        st.download_button(
            f"{saved.name} ({text.size(len(saved.data))})",
            saved.data,
            saved.name,
            on_click="ignore",
            icon=":material/download:",
        )
        st.download_button(
            f"Its graph ({text.size(len(saved.graph))})",
            saved.graph,
            f"{saved.name}.graph.json",
            "application/json",
            on_click="ignore",
            icon=":material/download:",
        )
    with st.expander(text.count(len(saved.tensors), "tensor") + " in the file"):
        st.table([{"name": text.escape(name), "tensor": meta} for name, meta in saved.tensors])


def _draw_loaded(loaded: LoadedCheckpoint) -> None:
    """Draw the result: whether the file fits the model, and whether outputs and gradients agree."""
    if loaded.error:
        draw_error(loaded.error)
        return
    if not loaded.fits:
        st.error("The file does not fit, and nothing was changed.", icon=":material/error:")
        st.code(loaded.differences, language=None, wrap_lines=True)
        return
    st.success("Every name and shape fits.", icon=":material/check:")
    if loaded.differences:
        st.code(loaded.differences, language=None, wrap_lines=True)
    st.header("Verify", anchor=False)
    if loaded.same:
        message = text.escape(loaded.verification)
        st.success(f"{message[:1].upper()}{message[1:]}.", icon=":material/check:")
    else:
        st.error("The restored model computes different values.", icon=":material/error:")
        st.code(loaded.verification, language=None, wrap_lines=True)
        if loaded.first is not None:
            st.caption("The first node that differs is selected.")
            if st.session_state.get("verified") is not loaded:
                select("verify", loaded.first)
    st.session_state["verified"] = loaded
    if loaded.opened is not None:
        draw_graph(loaded.opened.payload, key="verify")
