"""Record the collectives and messages between the ranks of a program."""
