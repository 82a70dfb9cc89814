"""Explain a gradient: its path from the loss to one node, and the losses that train a network."""
