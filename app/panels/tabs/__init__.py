"""The tabs of the page Explore, and experiments on a model."""
