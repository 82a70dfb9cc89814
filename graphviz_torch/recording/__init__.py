"""One step, watched: what `record()` notes, as a Graph."""
