"""Check every step of a training at low cost, for `watch`."""
