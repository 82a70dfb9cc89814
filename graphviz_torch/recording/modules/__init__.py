"""Which module call and which line made each node, and what parameters are called."""
