"""A simulated accelerator: devices that behave as a GPU does, on the CPU."""
