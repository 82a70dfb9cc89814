"""Modules and their calls: modes, arguments, forwards, and updates of weights."""
