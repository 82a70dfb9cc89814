"""A module's forward, run again as it was called: beside itself with one thing changed."""
