"""Use graphviz_torch from other programs: shells, training frameworks, pytest, file formats."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..graph.lazy import lazy_names

if TYPE_CHECKING:
    from ..recording.steps.step_ends import StepEnds as StepEnds
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "..recording.steps.step_ends": "StepEnds",
        },
    )
