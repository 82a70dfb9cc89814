"""Save and load a model together with its graph, and compare checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..graph.lazy import lazy_names

if TYPE_CHECKING:
    from .checkpoint import (
        CheckpointDiff as CheckpointDiff,
    )
    from .checkpoint import (
        compare_checkpoint as compare_checkpoint,
    )
    from .checkpoint import (
        graph_path_for as graph_path_for,
    )
    from .checkpoint import (
        load_checkpoint as load_checkpoint,
    )
    from .checkpoint import (
        save_checkpoint as save_checkpoint,
    )
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            ".checkpoint": (
                "save_checkpoint load_checkpoint compare_checkpoint graph_path_for CheckpointDiff"
            ),
        },
    )
