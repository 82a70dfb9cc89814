"""Compare graphs, the values of two runs, and the outputs of two models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .graph.lazy import lazy_names

if TYPE_CHECKING:
    from .checkpoint.verify import (
        NodeDifference as NodeDifference,
    )
    from .checkpoint.verify import (
        Verification as Verification,
    )
    from .checkpoint.verify import (
        compare_models as compare_models,
    )
    from .comparison.diff import GraphDiff as GraphDiff
    from .comparison.diff import diff as diff
    from .comparison.first_difference import (
        FirstDifference as FirstDifference,
    )
    from .comparison.first_difference import (
        first_difference as first_difference,
    )
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            ".comparison.diff": "diff GraphDiff",
            ".comparison.first_difference": "first_difference FirstDifference",
            ".checkpoint.verify": "compare_models Verification NodeDifference",
        },
    )
