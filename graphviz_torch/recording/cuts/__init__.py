"""Cuts: places where a gradient path is detached."""
