"""Run a recorded module again with one thing changed, and see what depends on it.

`experiment` reports leaks between samples, future positions, random results in eval mode and lost
precision; `influence` returns how far one sample, position or input reaches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..graph.lazy import lazy_names

if TYPE_CHECKING:
    from ..graph import Experiment as Experiment
    from .dependence import influence as influence
    from .dependence import influences as influences
    from .runner import Experiments as Experiments
    from .runner import experiment as experiment
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            ".runner": "experiment Experiments",
            ".dependence": "influence influences",
            "..graph": "Experiment",
        },
    )
