"""Run a recorded module call again, alone or beside a run in which one thing is changed."""
