"""A machine that is not there: tensors without memory, ranks that are one process, a device."""
