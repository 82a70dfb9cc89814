"""Attacks on files, processes and names, with random numbers from a seed."""
