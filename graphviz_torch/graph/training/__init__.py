"""Keep the recorded steps of a run as one value, and in one file."""
