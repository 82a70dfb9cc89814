"""A recorded module's forward, run again with one thing changed: what follows from it."""
