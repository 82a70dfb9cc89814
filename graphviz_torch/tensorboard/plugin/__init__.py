"""A TensorBoard plugin that adds the tab "Autograd".

TensorBoard finds the plugin through this package's entry point. The plugin reads the data that
`to_tensorboard` wrote through TensorBoard's data provider, and therefore works with all data
servers.
"""

from .autograd import AutogradPlugin

__all__ = ["AutogradPlugin"]
