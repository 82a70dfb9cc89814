"""Jobs of the app: each runs in a forked process of its own."""
