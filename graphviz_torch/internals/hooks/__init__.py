"""Hooks into PyTorch: module calls, operators, autograd nodes, backward passes, optimizers."""
