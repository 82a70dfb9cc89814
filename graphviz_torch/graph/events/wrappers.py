"""Events about modules that DistributedDataParallel wraps."""

from __future__ import annotations

from ..immutable import immutable
from .base import Occurrence


@immutable
class UnusedInWrapper(Occurrence):
    """An optimizer step while DistributedDataParallel waited for gradients.

    No backward produced these gradients. `where` is the line that called the wrapper's forward.
    """

    parameters: tuple[str, ...] = ()


@immutable
class WrapperBypass(Occurrence):
    """An optimizer step with gradients of a forward that bypassed DistributedDataParallel.

    `where` is the line that calls the forward; `nodes` are the ids of the parameters' nodes.
    """

    wrapper: str = ""  # name of the caller's variable for the DistributedDataParallel module


@immutable
class CollectiveInGraph(Occurrence):
    """A collective that changed a tensor in place in the middle of a graph, unseen by autograd.

    `where` is the line of the collective; `nodes` are the ids of the node that made the tensor.
    """

    kind: str = ""  # "all_reduce"
    label: str = ""  # name of the caller's variable for the tensor
