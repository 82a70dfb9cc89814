"""Group the nodes that can be drawn as one box: modules, calls, loops and repeated blocks."""
