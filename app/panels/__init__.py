"""Parts of pages: functions that draw values with Streamlit."""
