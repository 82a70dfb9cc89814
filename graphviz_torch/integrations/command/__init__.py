"""The command line: `graphviz-torch COMMAND`."""
