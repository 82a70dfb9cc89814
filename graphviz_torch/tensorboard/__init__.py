"""Show graphs, gradients and transfers in TensorBoard."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..graph.lazy import lazy_names

if TYPE_CHECKING:
    from .scalars import (
        add_distribution as add_distribution,
    )
    from .scalars import (
        add_gradients as add_gradients,
    )
    from .scalars import (
        add_transfers as add_transfers,
    )
    from .writer import add_autograd_graph as add_autograd_graph
    from .writer import to_tensorboard as to_tensorboard
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            ".writer": "to_tensorboard add_autograd_graph",
            ".scalars": "add_gradients add_transfers add_distribution",
        },
    )
