"""TensorBoard's "Autograd" tab, and gradient health in its Graphs tab.

TensorBoard finds both through the entry points of this package. They read only what
`to_tensorboard` wrote, through TensorBoard's data provider, so either of its data servers will do.
"""

from .autograd import AutogradPlugin
from .pills import HealthPillsPlugin

__all__ = ["AutogradPlugin", "HealthPillsPlugin"]
