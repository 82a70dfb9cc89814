"""The app's frame: page config and navigation. `streamlit run app/main.py`."""

import sys
from pathlib import Path

import streamlit as st

ROOT = str(Path(__file__).resolve().parent.parent)
if ROOT not in sys.path:  # Streamlit adds app/, where this file is, and not what holds it
    sys.path.insert(0, ROOT)

from app.jobs import job  # noqa: E402

job.start()
st.set_page_config("graphviz_torch", f"{ROOT}/app/icon.svg", layout="wide")
st.navigation(
    [
        st.Page("views/run.py", title="Run backward", icon=":material/play_arrow:", default=True),
        st.Page("views/explore.py", title="Explore", icon=":material/search:"),
        st.Page("views/training.py", title="Training", icon=":material/show_chart:"),
        st.Page("views/devices.py", title="Devices", icon=":material/memory:"),
        st.Page("views/checkpoints.py", title="Checkpoints", icon=":material/save:"),
    ],
    position="top",
).run()
