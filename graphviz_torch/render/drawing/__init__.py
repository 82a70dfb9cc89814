"""Select the nodes, groups and edges to draw, for all output formats."""
