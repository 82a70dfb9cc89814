"""Record cuts: calls that detach their result from the operands' gradients."""
