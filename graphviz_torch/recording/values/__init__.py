"""What results of the forward are worth, in about a hundred bytes each."""
