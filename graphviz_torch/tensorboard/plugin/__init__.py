"""TensorBoard's "Autograd" tab.

TensorBoard finds it through this package's entry point. It reads only data that `to_tensorboard`
wrote, through TensorBoard's data provider, so it works with each of its data servers.
"""

from .autograd import AutogradPlugin

__all__ = ["AutogradPlugin"]
