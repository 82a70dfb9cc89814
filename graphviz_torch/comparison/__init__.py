"""Two graphs: what changed."""
