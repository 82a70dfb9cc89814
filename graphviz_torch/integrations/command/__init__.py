"""The command `graphviz-torch`."""
