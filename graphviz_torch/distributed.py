"""Inspect distributed training: collectives, shards, and graphs of several ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .graph.lazy import lazy_names

if TYPE_CHECKING:
    from .recording.collectives.counter import CollectiveCounter as CollectiveCounter
    from .render.collectives import collectives as collectives
    from .render.rank_chart import rank_chart as rank_chart
    from .tracing.distributed import gather_graphs as gather_graphs
    from .tracing.distributed import local_shapes as local_shapes
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            ".tracing.distributed": "gather_graphs local_shapes",
            ".render.collectives": "collectives",
            ".render.rank_chart": "rank_chart",
            ".recording.collectives.counter": "CollectiveCounter",
        },
    )
