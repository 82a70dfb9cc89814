"""Check optimizers, schedulers, gradients and batches over several training steps."""
