"""Move tensors and models between devices, measure what a device is worth, divide a batch."""
