"""Read tensors without side effects: memory, metadata, AccumulateGrad nodes, nested containers."""
