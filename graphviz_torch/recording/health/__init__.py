"""What can be seen of every step of a training at next to no cost."""
