"""Copies between devices: what operators copy, and where in the program."""
