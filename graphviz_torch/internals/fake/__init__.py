"""Fake devices, process groups and tensors, with which `rehearse` runs one rank of a large job."""
