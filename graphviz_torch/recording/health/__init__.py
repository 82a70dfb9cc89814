"""Cheap checks of every step of a training, for `watch`."""
