"""The app: see a `grad_fn`, run backward, find the line. `streamlit run app/main.py`."""
