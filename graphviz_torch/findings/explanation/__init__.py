"""The way of a gradient from the loss to one node."""
