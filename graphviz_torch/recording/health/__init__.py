"""Check every step of a training run at low cost, for `watch`."""
