"""Rules about axes, targets, numbers and calls that do not do what they are meant to do."""
