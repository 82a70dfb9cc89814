"""What live nodes tell: where a backward starts, what lies behind a cut, which are leaves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable
from operator import methodcaller
from typing import Any

from torch import Tensor

from ..internals.hooks.modes import unseen_calls
from ..tracing.nodes import GradFn, is_stale, made_by
from ..tracing.tracer import connected

End = tuple[GradFn, int]  # a live node and the number of its output


def ends_of(output: Any) -> list[End]:
    """The live node behind a tensor or a gradient edge, if there is one."""
    if isinstance(output, Tensor):
        fn = made_by(output)
        with unseen_calls():
            return [] if fn is None else [(fn, output.output_nr)]
    return [(output.node, output.output_nr)]


def sinks(ends: list[End]) -> list[End]:
    """The ends that no other end is computed from, each once."""
    fns, _ = connected([fn for fn, _ in ends])
    used = {source for fn in fns for source in fn.next_functions}
    return [end for end in dict.fromkeys(ends) if end not in used]


def made_of(named: list[tuple[str, Tensor]]) -> list[tuple[str, int, str]]:
    """Of tensors that were computed: name, and sequence number and kind of the node that did."""
    fns = [(name, tensor.grad_fn) for name, tensor in named if not is_stale(tensor)]
    return [(n, int(fn._sequence_nr()), str(fn.name())) for n, fn in fns if fn is not None]


def hidden_behind(
    cut_off: list[GradFn], graph: Container[GradFn], names: dict[int, str], reached: set[int]
) -> list[GradFn]:
    """Those behind which there is a parameter that the graph does not have.

    Args:
        cut_off: nodes before cuts.
        graph: the nodes of the graph.
        names: the parameters that matter, by id(); all of them if empty.
        reached: id() of the parameters that do not.
    """
    found = []
    for fn in cut_off:
        if fn not in graph:
            fns, _ = connected([fn])
            variables = [id(leaf.variable) for leaf in leaves_of(fns) if leaf not in graph]
            if any(v not in reached and (not names or v in names) for v in variables):
                found.append(fn)
    return found


def leaves_of(fns: Iterable[GradFn]) -> list[GradFn]:
    """The nodes that accumulate into a leaf."""
    return [fn for fn in fns if type(fn).__name__ == "AccumulateGrad"]


def numbers_of(ids: dict[GradFn, int], leaves: dict[int, int]) -> list[int]:
    """The nodes' sequence numbers; -1 for leaves, and where a number is there twice.

    Threads count apart: of two nodes with one number, one is another thread's.
    """
    numbers: list[int] = list(map(methodcaller("_sequence_nr"), ids))
    for i in leaves.values():
        numbers[i] = -1
    if len(set(numbers)) < len(ids) - len(leaves) + bool(leaves):
        counts = Counter(numbers)
        return [number if counts[number] == 1 else -1 for number in numbers]
    return numbers
