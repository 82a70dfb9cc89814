"""The inside of regions that `torch.compile` creates while a recording runs."""
