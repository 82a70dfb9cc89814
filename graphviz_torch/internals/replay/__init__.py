"""Run a module's forward again as it was called, next to a second run with one thing changed."""
