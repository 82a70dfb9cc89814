"""The gallery of models. Each file is a model that visitors can run; they see its code.

The function `build(devices)` of a file returns the model, and a function that computes the loss.
The first line of a file is the model's title. To add a model, add a file, and add its name to
`gallery.DEVICES`.
"""
