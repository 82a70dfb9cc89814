"""Answer questions about the run, such as which gradients were cleared, from rows of its log."""
