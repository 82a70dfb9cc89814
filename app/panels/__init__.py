"""Parts of pages: functions that draw with Streamlit."""
