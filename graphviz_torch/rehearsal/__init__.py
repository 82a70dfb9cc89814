"""Estimate the memory and traffic of one rank of many, without GPUs and without a network.

`rehearse` runs a training step on tensors without values. `draw_memory` draws the rank's memory
over the step. `try_plans` finds changes with which the step fits into a device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..graph.lazy import lazy_names

if TYPE_CHECKING:
    from .configurations import plans as plans
    from .difference import RehearsalDiff as RehearsalDiff
    from .difference import compare_rehearsals as compare_rehearsals
    from .dry_run import rehearse as rehearse
    from .order import (
        CollectiveCall as CollectiveCall,
    )
    from .order import (
        CollectiveMismatch as CollectiveMismatch,
    )
    from .order import (
        compare_order as compare_order,
    )
    from .order import (
        representative_ranks as representative_ranks,
    )
    from .picture import draw_memory as draw_memory
    from .rehearsal import Rehearsal as Rehearsal
    from .trials import Trial as Trial
    from .trials import draw_trials as draw_trials
    from .trials import trial_table as trial_table
    from .trials import try_plans as try_plans
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            ".dry_run": "rehearse",
            ".configurations": "plans",
            ".trials": "try_plans trial_table Trial draw_trials",
            ".picture": "draw_memory",
            ".difference": "compare_rehearsals RehearsalDiff",
            ".order": "compare_order representative_ranks CollectiveCall CollectiveMismatch",
            ".rehearsal": "Rehearsal",
        },
    )
