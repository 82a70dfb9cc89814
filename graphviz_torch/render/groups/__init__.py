"""Find the nodes to draw as one box: modules, loops, repeated blocks, and joined graphs."""
