"""Draw the gradient flow of a step as a diagram, from data to loss."""
