"""What lasts from one step of an optimizer to the next."""
