"""Seams of `torch.compile`: what it traces, and how compiled code is made to stand aside."""
