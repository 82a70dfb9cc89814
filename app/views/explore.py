"""explore"""

import streamlit as st

st.title("explore")
