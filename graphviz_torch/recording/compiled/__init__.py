"""The operations inside regions that `torch.compile` makes while a recording runs."""
