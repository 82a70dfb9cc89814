"""Define `TrainingStep`, a recorded step of a run, and find modules that steps train in turn.

Modules that are trained in every step, or in none, are not mentioned. An example are the networks
of a GAN.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

from .collective import Collective
from .events import OptimizerStep
from .graph import Graph
from .immutable import immutable
from .registry import mime_bundle
from .text import listing, shorten
from .units import count_text


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


_MAX_STEPS = 256  # number of steps to examine, the last ones of the run
_MIN_STEPS = 2  # a module is mentioned if at least this many steps train it
_MAX_PARTS, _MAX_NAME = 3, 60  # maximum number of modules mentioned, and of characters of a name
_ORDINALS = {2: "second", 3: "third", 4: "fourth", 5: "fifth"}


class AlternatingOptimizers:
    """The parameters that each step of a run trained.

    `str` of an instance names the modules that only some of the steps train.

    >>> from graphviz_torch.graph import Graph, Parameter, TensorMeta
    >>> meta, turns = TensorMeta((3,), "float32", "cpu"), AlternatingOptimizers()
    >>> for number in range(6):
    ...     players = ("netD.weight", number % 3 < 2), ("netG.weight", number % 3 == 2)
    ...     parameters = tuple(Parameter(name, meta, True, stepped=turn) for name, turn in players)
    ...     turns.add(TrainingStep(number, (Graph((), parameters=parameters),)))
    >>> print(turns)
    trained in turn: netD in 4 of 6 steps, netG in every third step
    """

    def __init__(self) -> None:
        # (number of the step, names of trained parameters, names of other parameters) of each step.
        self._steps: deque[tuple[int, frozenset[str], frozenset[str]]] = deque(maxlen=_MAX_STEPS)

    def add(self, step: TrainingStep) -> None:
        """Add the next step of the run."""
        parameters = [p for graph in step.graphs for p in graph.parameters]
        # An optimizer step does not train a parameter without a gradient.
        trained = frozenset(p.name for p in parameters if p.stepped and p.got_gradient is not False)
        events = [event for graph in step.graphs for event in graph.events]
        if trained or any(isinstance(event, OptimizerStep) for event in events):
            rest = frozenset(p.name for p in parameters) - trained
            self._steps.append((step.number, trained, rest))

    def __str__(self) -> str:
        numbers = [number for number, _, _ in self._steps]
        turns: dict[tuple[int, ...], list[str]] = {}
        names = frozenset[str]().union(*(trained for _, trained, _ in self._steps))
        # A name without a dot, such as "weight", belongs to no module.
        for name in sorted(name for name in names if "." in name):
            steps = tuple(number for number, trained, _ in self._steps if name in trained)
            # Only the steps from the first to the last that trains this name are considered: before
            # and after these, the parameter may have had another name.
            between = sum(steps[0] <= number <= steps[-1] for number in numbers)
            off = between > len(steps) or any(name in rest for _, _, rest in self._steps)
            if len(steps) >= _MIN_STEPS and off:
                turns.setdefault(steps, []).append(name)
        every = list(turns.values())
        said = [
            f"{_parts(names, every)} in {_frequency_text(steps, numbers)}"
            for steps, names in turns.items()
        ]
        return f"trained in turn: {listing(said, _MAX_PARTS, last=', ')}" if said else ""


def _parts(names: Sequence[str], turns: Sequence[Sequence[str]]) -> str:
    """Return the outermost modules that contain only parameters in `names`, as text: "netD".

    Args:
        names: names of parameters that the same steps train.
        turns: all such lists of names.
    """
    others = {path for turn in turns if turn is not names for name in turn for path in _paths(name)}
    own = (next((p for p in _paths(name) if p not in others), name) for name in names)
    return listing(dict.fromkeys(shorten(path, _MAX_NAME) for path in own), _MAX_PARTS)


def _paths(name: str) -> list[str]:
    """Return all prefixes of a name: "a", "a.b" and "a.b.weight" for "a.b.weight"."""
    return list(accumulate(name.split("."), "{}.{}".format))


def _frequency_text(steps: Sequence[int], numbers: Sequence[int]) -> str:
    """Return a text such as "every second step", or "3 of 8 steps".

    Args:
        steps: numbers of some of the steps.
        numbers: numbers of all steps.
    """
    gaps = {after - before for before, after in pairwise(steps)}
    every = {after - before for before, after in pairwise(numbers)}
    if len(gaps) == 1 and every == {1}:
        gap = gaps.pop()
        if gap > 1:
            return f"every {_ORDINALS.get(gap, f'{gap}th')} step"
        return f"steps {steps[0]} to {steps[-1]}"
    return f"{len(steps)} of {len(numbers)} steps"
