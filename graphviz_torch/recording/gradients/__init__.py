"""Statistics of every gradient, and the duration of every node in backward."""
