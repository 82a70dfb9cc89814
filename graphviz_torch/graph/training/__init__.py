"""Keep the recorded steps of a training run as one value, and in one file."""
