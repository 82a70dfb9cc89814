"""`graphviz-torch rehearse`: run a script as one rank of many, without GPUs for the ranks."""
