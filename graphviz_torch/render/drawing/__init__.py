"""The selection of nodes, groups and edges to draw, shared by all output formats."""
