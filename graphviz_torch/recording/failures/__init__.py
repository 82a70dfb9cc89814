"""Explain exceptions that a call or a backward raised."""
