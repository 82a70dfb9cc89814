"""What an axis, a target, a number and a call are for, and where they serve something else."""
