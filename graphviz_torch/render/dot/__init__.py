"""Write a Graph as DOT text, and draw it as a still picture."""
