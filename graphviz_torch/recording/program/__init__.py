"""The recorded program: its modules, source lines, names, steps and in-place changes."""

from .program import Program

__all__ = ["Program"]
