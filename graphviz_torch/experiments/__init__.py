"""Run a recorded module again with one change, and compare the results with the first run.

`experiment` reports outputs that depend on other samples or on later positions, random results in
eval mode, and lost precision. `influence` measures, for each node, the fraction of elements that
depend on one sample, position or input.
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
