"""What a checkpointed part keeps to run its forward again, and which nodes it then runs again.

That is `torch.utils.checkpoint.checkpoint(..., use_reentrant=False)`: its nodes are in the graph,
and keep nothing themselves. Kept are the tensors among the arguments, those by keyword too, and
what a policy keeps. Not counted: the state of the random numbers (5,056 bytes on the CPU), and what
the function holds.

PyTorch ends the second forward as soon as all is there that the first one has saved, unless
`early_stop` is off: an operation that is the last to save, and saves its operands alone, does not
run again, and nothing after it does. Which operations a policy runs again is not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from torch import Tensor
from torch.autograd.function import BackwardCFunction

from ..internals.hooks.checkpoints import Frame, cache_of, contents_of, holders_of, is_holder
from ..internals.tensors.pytree import tensors
from ..internals.tensors.saved_tensors import SAVED_NAMES

_ATTENTION = "ScaledDotProduct"  # what it saves last are results


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpointed part, and how often its forward runs again. It holds no tensor."""

    nodes: frozenset[int]  # those that save something
    start: int  # the nodes start <= sequence number < stop run again
    stop: int
    saved: int  # how many tensors its forward saves
    saved_again: Mapping[Any, int]  # the same by backward, as PyTorch counts while one runs
    selects: bool  # does a policy keep some of its results
    before: int = 0  # how often it had run again when the graph was read

    def times(self) -> int:
        """How often its forward has run again since, or what of it the policy did not keep."""
        return sum(count == self.saved for count in self.saved_again.values()) - self.before


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """The checkpointed parts of a graph that is alive."""

    parts: list[Checkpoint] = field(default_factory=list)
    kept: list[tuple[int, Tensor]] = field(default_factory=list)  # each with the part's first node


class _Place(NamedTuple):
    """Where a tensor is saved."""

    node: int
    start: int  # the nodes before this sequence number have run when it is saved
    stop: int  # those before this one have when a later node saves one


def checkpoints_of(fns: Iterable[Any], frames: Sequence[tuple[Frame, int]]) -> Checkpoints:
    """The checkpointed parts of a graph.

    Args:
        fns: live nodes, in the order of `Graph.nodes`.
        frames: of the parts that are alive, the inner before the outer, each with the sequence
            number of the first node in it.
    """
    found = Checkpoints()
    places = _places(fns) if frames else {}
    for frame, start in frames:
        holders = holders_of(frame)
        known = [places[id(holder)] for holder in holders if id(holder) in places]
        if not known:
            continue  # it is of another graph
        ends = frame.early_stop and id(holders[-1]) in places
        stop = known[-1].start if ends else known[-1].stop
        nodes, counts = frozenset(place.node for place in known), frame.recomp_counter
        selects = cache_of(frame) is not None
        part = Checkpoint(nodes, start, stop, len(holders), counts, selects)
        found.parts.append(replace(part, before=part.times()))
        for each in contents_of(frame):
            if is_holder(each):  # the part around this one makes it again
                places[id(each)] = _Place(min(nodes), start, known[-1].stop)
            else:
                found.kept.extend((min(nodes), tensor) for tensor in tensors(each))
    return found


def _places(fns: Iterable[Any]) -> dict[int, _Place]:
    """By id() of what stands for a tensor, where that is saved."""
    found = {}
    for node, fn in enumerate(fns):
        kind = type(fn)
        for attribute, name in SAVED_NAMES[kind]:
            try:
                raw = getattr(fn, attribute)
            except RuntimeError:
                continue  # an earlier backward has freed it
            for one in raw if type(raw) is tuple else (raw,):
                if one is not None and is_holder(one.data):
                    number = fn._sequence_nr()
                    ran = name.startswith("result") or issubclass(kind, BackwardCFunction)
                    ran = ran or kind.__name__.startswith(_ATTENTION)
                    found[id(one.data)] = _Place(node, number + ran, number + 1)
    return found
