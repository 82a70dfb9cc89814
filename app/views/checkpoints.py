"""Checkpoints: save, load with a report of what matches, verify outputs and gradients."""

from __future__ import annotations

import streamlit as st

from app import gallery, words
from app.jobs import choices as devices
from app.jobs.checkpoints import FORMATS, Loaded, Saved, load, save
from app.panels.figures import draw_error, draw_graph
from app.panels.holding import hold
from app.panels.selection import select

MAX_MEGABYTES = 100
TITLES = {gallery.model(name).title: name for name in gallery.NAMES if name != "forgotten"}
MINE = "A file of mine"
SAVED = "The file saved above"
SAME = "Model of the same kind"


def choose_device(label: str, key: str, start: str) -> str:
    """A device of this machine, or a simulated one."""
    choices = devices.choices()
    index = list(choices).index(start)
    said = st.selectbox(label, list(choices.values()), index, key=key, bind="query-params")
    return next(name for name, text in choices.items() if text == said)


def draw_saved(saved: Saved) -> None:
    """The file to download, and what is in it."""
    with st.container(horizontal=True):
        st.download_button(
            f"{saved.name} ({words.size(len(saved.data))})",
            saved.data,
            saved.name,
            on_click="ignore",
            icon=":material/download:",
        )
        st.download_button(
            f"Its graph ({words.size(len(saved.graph))})",
            saved.graph,
            f"{saved.name}.graph.json",
            "application/json",
            on_click="ignore",
            icon=":material/download:",
        )
    with st.expander(words.count(len(saved.tensors), "tensor") + " in the file"):
        st.table([{"name": name, "tensor": meta} for name, meta in saved.tensors])


def draw_loaded(loaded: Loaded) -> None:
    """How the file fits, and whether outputs and gradients agree."""
    if loaded.error:
        draw_error(loaded.error)
        return
    found, verified = loaded.differences, loaded.verification
    if found is not None and not found.fits:
        st.error("The file does not fit, and nothing was changed.", icon=":material/error:")
        st.code(str(found), language=None, wrap_lines=True)
        return
    st.success("Every name and shape fits.", icon=":material/check:")
    if found is not None and (found.dtypes or found.devices):
        st.code(str(found), language=None, wrap_lines=True)
    if verified is None:
        return
    st.subheader("Verify", anchor=False)
    if verified.same:
        st.success(f"{str(verified).capitalize()}.", icon=":material/check:")
    else:
        st.error("The restored model does something else.", icon=":material/error:")
        st.code(str(verified), language=None, wrap_lines=True)
        if verified.first is not None:
            st.caption("The node where they part first is selected.")
            if st.session_state.get("verified") is not loaded:
                select("verify", verified.first.node)
    st.session_state["verified"] = loaded
    draw_graph(verified.graph, (), key="verify")


st.title("Checkpoints", anchor=False)
st.markdown(
    "Save a model, load a file into one, and verify that it does the same: same output, same "
    "gradients, node by node. Files are read with `weights_only=True`: nothing in them is run."
)
st.subheader("Save", anchor=False)
left, middle, right = st.columns(3)
with left:
    model = str(st.selectbox("Model", list(TITLES), key="model", bind="query-params"))
with middle:
    source = choose_device("Saved on", "from", next(iter(devices.choices())))
with right:
    form = str(st.selectbox("Format", list(FORMATS), key="format", bind="query-params"))
saved = hold("saved", "Saving", save, TITLES[model], source, FORMATS[form])
if saved is not None:
    draw_saved(saved)

st.subheader("Load", anchor=False)
left, middle, right = st.columns(3)
with left:
    what = st.selectbox("File", [SAVED, MINE], key="file", bind="query-params")
with middle:
    into = str(st.selectbox("Into a new", [SAME, *TITLES], key="into", bind="query-params"))
with right:
    target = choose_device("Loaded on", "onto", "cpu")
disturb = st.toggle(
    "Change one value after loading, to see it found", key="disturb", bind="query-params"
)
name, data = (saved.name, saved.data) if saved is not None else ("", b"")
if what == MINE:
    file = st.file_uploader(
        "A checkpoint", ["pt", "pth", "bin", "safetensors"], key="checkpoint",
        max_upload_size=MAX_MEGABYTES,
    )  # fmt: skip
    name, data = (file.name, file.getvalue()) if file is not None else ("", b"")
if data:
    chosen = TITLES[model if into == SAME else into]
    loaded = hold("loaded", "Loading", load, name, data, chosen, target, disturb)
    if loaded is not None:
        draw_loaded(loaded)
elif what == MINE:
    st.info("No file is open yet.", icon=":material/folder_open:")
