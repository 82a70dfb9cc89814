"""devices"""

import streamlit as st

st.title("devices")
