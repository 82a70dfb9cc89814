"""What PyTorch knows of a tensor: memory, metadata, the node of a leaf, the place in a nesting."""
