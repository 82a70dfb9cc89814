"""Save, load and verify a model and what it computes."""
