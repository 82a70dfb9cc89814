"""Collectives and messages between the ranks of a program."""
