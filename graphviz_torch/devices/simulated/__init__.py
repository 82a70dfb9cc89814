"""Simulated accelerators: devices that behave like GPUs but compute on the CPU."""
