"""Simulated accelerators: devices that act like GPUs in a program and compute on the CPU."""
