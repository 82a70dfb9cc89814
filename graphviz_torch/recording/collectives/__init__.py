"""What the ranks of a program send to each other."""
