"""Modules and calls: module of each node, modes, arguments, updates of weights."""
