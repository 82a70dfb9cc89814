"""Record a training step while it runs, and return it as a `Graph`; see recording.py."""
