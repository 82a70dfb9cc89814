"""Read live autograd nodes (`grad_fn`) into a `Graph`."""
