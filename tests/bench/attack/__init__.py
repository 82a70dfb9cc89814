"""Attacks on files, processes and names, with numbers drawn from a seed."""
