"""Live `grad_fn`s, read into a Graph."""
