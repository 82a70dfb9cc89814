"""The gallery: each file is a model to run, whose code is shown unchanged to the visitor.

`build(devices)` returns the model and a function that computes its loss; the first line of the file
is its title. To add a model, add a file and its name to `gallery.DEVICES`.
"""
