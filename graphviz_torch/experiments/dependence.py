"""Measure which fraction of each node's elements depends on one input, sample or position."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from torch import Tensor

from ..graph import Graph
from .inputs import _perturb_input
from .runner import subject_of
from .subject import Input, Subject, other_values
from .two_runs import Comparison


def influence(
    recording: Any, *, sample: int | None = None, position: int | None = None, input: str = ""
) -> Graph:
    """Return the recorded graph, with the fraction of each node's elements that depend on an input.

    The module is run again with other values for one sample, position or input. In the result,
    `Node.influence` is the fraction of the node's elements that differ from the recorded run, from
    0 to 1. It is None for nodes outside of the module, and for nodes that use no changed value.
    `draw_graph` colors nodes by this fraction.

    The second run uses the buffers, random numbers and training modes of the recorded run, also for
    batch norm.

    Args:
        recording: the result of `record(experiments=True)`, after its block.
        sample: index of a sample, along the first dimension of the inputs.
        position: index of a position, along the second dimension of the inputs.
        input: name of an argument of the module's forward, such as "x" or "batch.ids".

    Raises:
        TypeError: if `recording` is not a recording.
        ValueError: if not exactly one of `sample`, `position` and `input` is given; if this sample,
            position or input does not exist; if the recording has no call to run again; or if the
            second run takes a different path through the code.

    >>> import torch
    >>> from graphviz_torch import record
    >>> model = torch.nn.Linear(4, 2)
    >>> with record(model, experiments=True) as recording:
    ...     model(torch.randn(8, 4)).sum().backward()
    >>> [(node.title, node.influence) for node in influence(recording, sample=0).nodes][-2:]
    [('addmm', 0.125), ('sum', None)]
    """
    if (sample is not None) + (position is not None) + (input != "") != 1:
        raise ValueError("pass exactly one of sample=, position= and input=.")
    return _influence(subject_of(recording), sample, position, input)


_MAX_LANES = 16


def influences(recording: Any) -> dict[str, Graph]:
    """Return the graph of `influence` for each sample, position and input.

    Keys are "sample 0", "position 0", "input x" and so on, for at most sixteen samples and sixteen
    positions. An input has positions if it has three dimensions, or two dimensions and an integer
    dtype. Each entry takes one forward. An entry is missing if its forward cannot be run again.

    Args:
        recording: the result of `record(experiments=True)`, after its block.

    Raises:
        TypeError: if `recording` is not a recording.
        ValueError: if the recording has no call to run again.

    >>> import torch
    >>> from graphviz_torch import record
    >>> from graphviz_torch.experiments import influences
    >>> model = torch.nn.Linear(4, 2)
    >>> with record(model, experiments=True) as recording:
    ...     model(torch.randn(3, 4)).sum().backward()
    >>> list(influences(recording))
    ['sample 0', 'sample 1', 'sample 2', 'input input']
    """
    subject = subject_of(recording)
    given = subject.inputs()
    first = next((t for _, t in given if t.dim()), None)
    asked: dict[str, tuple[int | None, int | None, str]] = {}
    if first is not None:
        for i in range(min(first.shape[0], _MAX_LANES)):
            asked[f"sample {i}"] = i, None, ""
        if first.dim() == 3 or (first.dim() == 2 and not first.is_floating_point()):
            for i in range(min(first.shape[1], _MAX_LANES)):
                asked[f"position {i}"] = None, i, ""
    for name, _ in given:
        asked[f"input {name}"] = None, None, name
    found = {}
    for name, what in asked.items():
        with suppress(ValueError):  # raised if control flow depends on the values
            found[name] = _influence(subject, *what)
    return found


def _influence(subject: Subject, sample: int | None, position: int | None, input: str) -> Graph:
    given = subject.inputs()
    comparison = Comparison(views=True)
    done: list[str] = []

    def change(inputs: list[Input]) -> dict[int, Tensor]:
        if input:
            done.extend(each.name for each in inputs if each.name == input)
            return _perturb_input(inputs, input)
        dim, lane = (0, sample) if sample is not None else (1, position)
        sizes = [t.shape[dim] for _, t in given if t.dim() > dim]
        found: dict[int, Tensor] = {}
        for name, tensor in inputs:
            size = tensor.shape[dim] if tensor.dim() > dim else 0
            if size == sizes[0] and lane is not None and 0 <= lane < size:
                other = other_values(tensor, dim, range(lane, lane + 1))
                done.append(name)
                if other is not None:
                    found[id(tensor)] = other
        return found

    run = subject.run(comparison, change, views=True)
    if not done:
        known = ", ".join(f"{n} {list(t.shape)}" for n, t in given)
        asked = f"sample {sample}" if sample is not None else f"position {position}"
        what = f"no input is called {input!r}" if input else f"no input has {asked}"
        raise ValueError(f"{what}. The inputs are {known or 'none'}.")
    if (unknown := subject.inconclusive("influence", "", run)) is not None:
        raise ValueError(f"{unknown.message} {unknown.where}".rstrip())
    if run.nodes != subject.recorded.count or not subject.recorded.nodes:
        raise ValueError("the second run created different nodes from the recorded run.")
    nodes = subject.recorded.nodes
    shares = {nodes[n]: share for n, share in comparison.shares.items() if n in nodes}
    return subject.graph.annotate(influence=shares)
