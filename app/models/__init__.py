"""The gallery: each file is a model to run, shown to the visitor as it stands.

`build(devices)` gives the model and a function that computes its loss; the first line of the file
is its title. Adding a model is adding a file, and its name to `gallery.DEVICES`.
"""
