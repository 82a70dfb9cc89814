"""Record statistics of every gradient, and how long each node takes in backward."""
