"""A step of one rank of many, run without GPU, network and memory, and what it would take."""
