"""Compare two graphs: structure, metadata, gradients, and values of two recorded runs."""
