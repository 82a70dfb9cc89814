"""Explain gradients: the path from the loss to one node, and which loss trains which network."""
