"""Private APIs of `torch.compile`: trace, inspect and rerun compiled regions."""
