"""Where other programs meet this one: the command line, and one file for each framework."""
