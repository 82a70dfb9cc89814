"""The gallery of models. Each file is a model that visitors can run, and whose code they see.

In each file, the function `build(devices)` returns the model, and a function that computes the
loss. The first line of the file is the model's title and description. To add a model, add a file
here and its name to `gallery.DEVICES`.
"""
