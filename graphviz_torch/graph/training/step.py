"""Define `TrainingStep`, one recorded step of a training run."""

from __future__ import annotations

from typing import Any

from ..collective import Collective
from ..graph import Graph
from ..immutable import immutable
from ..registry import mime_bundle
from ..units import count_text


@immutable(slots=False)
class TrainingStep:
    """One recorded step of a training run. Functions that take a recording also take a step.

    >>> step = TrainingStep(0, (Graph(()),))
    >>> step.graph
    Graph(0 nodes)
    """

    number: int  # number of the step in the run, from 0; counts steps that were not recorded too
    backwards: tuple[Graph, ...]  # the graph of each backward pass, in order

    def __repr__(self) -> str:
        return f"TrainingStep({self.number}, {count_text(len(self.backwards), 'graph')})"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return mime_bundle(self, include, exclude)

    @property
    def graphs(self) -> list[Graph]:
        """The graphs of all backward passes, in order."""
        return list(self.backwards)

    @property
    def graph(self) -> Graph:
        """The graph of the last backward pass."""
        return self.backwards[-1]

    @property
    def collectives(self) -> tuple[Collective, ...]:
        """The collectives of this rank in the step, without duplicates."""
        return self.graph.collectives
