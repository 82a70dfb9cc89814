"""Define `Training`, the recorded steps of a training run as one frozen value."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from .graph import Graph
from .immutable import immutable
from .registry import mime_bundle
from .training_file import TrainingFile
from .training_step import AlternatingOptimizers, TrainingStep
from .units import count_text


@immutable(slots=False)
class Training:
    """The recorded steps of a training run. Functions that need one graph use the last step.

    `graphviz-torch run` and `record_steps` write a file that grows step by step. `load` reads it,
    without torch.

    >>> run = Training((TrainingStep(0, (Graph(()),)), TrainingStep(10, (Graph(()),))))
    >>> run
    Training(2 steps, 0 nodes)
    >>> run.steps[1].number
    10
    """

    steps: tuple[TrainingStep, ...]

    def __repr__(self) -> str:
        nodes = f"{len(self.graph.nodes):,} node" + "s" * (len(self.graph.nodes) != 1)
        return f"Training({count_text(len(self.steps), 'step')}, {nodes})"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return mime_bundle(self, include, exclude)

    @property
    def last(self) -> TrainingStep:
        """The last step that has nodes, with the failure that came after it.

        An exception between two steps is recorded as a step without nodes.
        """
        end = self.steps[-1]
        whole = (each for each in reversed(self.steps) if any(graph.nodes for graph in each.graphs))
        step = next(whole, end)
        failure = end.graph.failure
        if step is end or failure is None:
            return step
        return replace(step, backwards=(*step.backwards[:-1], replace(step.graph, failure=failure)))

    @property
    def graphs(self) -> list[Graph]:
        """The graphs of the last step."""
        return self.last.graphs

    @property
    def graph(self) -> Graph:
        """The graph of the last backward pass of the last step."""
        return self.last.graph

    @property
    def alternation(self) -> str:
        """A text on the modules that only some steps train; "" if there are none."""
        turns = AlternatingOptimizers()
        for step in self.steps:
            turns.add(step)
        return str(turns)

    def check(self) -> None:
        """Raise ValueError if a file with this value could not be read again."""
        numbers = [step.number for step in self.steps]
        if not numbers:
            raise ValueError("a Training must have at least one step, but this one has none.")
        if numbers != sorted(set(numbers)) or numbers[0] < 0:
            raise ValueError(
                f"the numbers of the steps must be 0 or more, and increase: {numbers[:5]}."
            )
        for step in self.steps:
            if not step.backwards:
                raise ValueError(f"step {step.number} has no graph.")
        graphs = {id(graph): graph for step in self.steps for graph in step.backwards}
        for graph in graphs.values():  # unchanged steps share one graph
            graph.check()

    def save(self, path: str | Path) -> Path:
        """Write all steps to a file, compressed if `path` ends in ".gz", and return the path.

        Raises:
            ValueError: for a step that could not be loaded again. Nothing is written.
            OSError: as `open` does.
        """
        self.check()
        file = TrainingFile(path)
        file.append(*self.steps)
        return file.path
