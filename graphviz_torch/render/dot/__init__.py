"""A Graph as DOT text, and as a still picture."""
