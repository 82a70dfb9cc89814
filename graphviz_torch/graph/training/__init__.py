"""A training: the recorded steps of a run, as one value and one file."""
