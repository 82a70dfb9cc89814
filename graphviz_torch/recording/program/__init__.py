"""The program that is watched: its modules, lines and names, its steps, its changes."""

from .program import Program

__all__ = ["Program"]
