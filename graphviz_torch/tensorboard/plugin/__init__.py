"""TensorBoard's "Autograd" tab, and gradient health in its Graphs tab.

TensorBoard finds both through this package's entry points. They read only data that
`to_tensorboard` wrote, through TensorBoard's data provider, so they work with each of its data
servers.
"""

from .autograd import AutogradPlugin
from .pills import HealthPillsPlugin

__all__ = ["AutogradPlugin", "HealthPillsPlugin"]
