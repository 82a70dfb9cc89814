"""Fingerprints and values of forward results and leaves."""
