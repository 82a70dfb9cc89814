"""Compute values by module: FLOPs, parameters, memory kept for backward, gradients."""
