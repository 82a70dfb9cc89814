"""PyTorch's insides: one seam a file, each with the versions that it was seen on."""
