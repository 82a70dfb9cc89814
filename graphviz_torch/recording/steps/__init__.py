"""State that lasts from one optimizer step to the next."""
