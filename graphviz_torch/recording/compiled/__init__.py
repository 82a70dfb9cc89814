"""What is inside the regions that `torch.compile` makes while a recording runs."""
