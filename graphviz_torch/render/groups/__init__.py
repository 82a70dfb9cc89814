"""Which nodes are drawn as one: modules, loops, repeated blocks; which graphs."""
