"""Record the operations inside regions that `torch.compile` compiled."""
