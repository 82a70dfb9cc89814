"""The gradient of a step as a river, from data to loss."""
