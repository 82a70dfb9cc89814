"""A Graph in TensorBoard: the Graphs tab, scalars, and the project's own plugin."""
