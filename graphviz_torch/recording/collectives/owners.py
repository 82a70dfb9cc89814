"""Whose tensors a collective sends: a module's, and which of its parameters.

fully_shard, FSDP   who asks for it has the parameters at hand
DDP's reducer       a bucket of gradients: those that have come, whose sizes add up to it
by hand             a parameter, or its `.grad`, that is itself given
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from math import prod
from types import FrameType
from typing import NamedTuple

from torch import Tensor

from ...graph import TensorMeta
from ...graph.text import ranks_text
from ...internals.functions import TensorBase
from ...internals.hooks.collectives.watch import Group, Sent
from ...internals.sharding import asker, dimensions
from ..live import LiveGraph
from ..program import Program


class Owner(NamedTuple):
    """Whose tensors are sent."""

    module: str = ""
    parameters: tuple[str, ...] = ()
    change: str = ""  # of placements
    gradients: bool | None = None  # are gradients of the parameters sent, and not their values


class Owners:
    """Finds out whose they are, and what the groups are called.

    Args:
        program: names modules and parameters.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._bucketed: set[int] = set()  # nodes whose gradients a bucket of this backward had
        self._dimensions: dict[str, str] = {}  # of meshes, by the name of the group
        # By id() of parameters and their gradients: a name, and whether it is a gradient ...
        self._names: dict[int, tuple[str, bool]] = {}
        self._moment = -1  # ... at this moment

    def begin_backward(self) -> None:
        """Gradients come anew."""
        self._bucketed = set()

    def end_backward(self) -> None:
        """Parameters have gradients that they had not."""
        self._names, self._moment = {}, -1

    def close(self) -> None:
        """Forget ids of tensors that may be gone."""
        self._names, self._moment = {}, -1

    def find(self, what: Sent, frame: FrameType, live: LiveGraph | None, node: int | None) -> Owner:
        """The owner of what a collective sends, for which `frame` asks while `node` runs."""
        asking = asker(frame)
        self._dimensions.update(dimensions(asking.mesh))
        table = self._program.table
        paths = [(table.path(module), name) for module, name in asking.parameters]
        names = tuple([".".join(filter(None, pair)) for pair in paths if pair[0] is not None])
        gradients = what.kind in ("all_reduce", "reduce_scatter")  # of a wrapper
        if not names and what.kind != "barrier":
            names, gradients = self._given_by_hand(what.given)
        if not names and live is not None and node is not None and what.kind == "all_reduce":
            names, gradients = self._bucket(what, live, node), True
        if names:
            return Owner(_common(names), names, asking.change, gradients)
        # A hook on the call of a module runs when the call itself has ended.
        module = None if live is not None or asking.module is None else table.path(asking.module)
        return Owner(self._program.module if module is None else module, (), asking.change)

    def group(self, group: Group) -> str:
        """What a group is called: its mesh dimension, or its ranks; "" if all ranks are in it."""
        if group.name in self._dimensions:
            return self._dimensions[group.name]
        if group.description.startswith("mesh_"):
            return group.description.removeprefix("mesh_")
        return "" if group.has_all else ranks_text(group.ranks)

    def _given_by_hand(self, given: Sequence[Tensor]) -> tuple[tuple[str, ...], bool]:
        """The parameters that are given, or whose gradients all are; and whether those are."""
        moment = self._program.origins.moments + self._program.steps.count
        if moment != self._moment:
            self._moment, self._names = moment, {}
            for name, parameter in self._program.table.known():
                self._names[id(parameter)] = name, False
                if parameter.is_leaf and parameter.grad is not None:
                    self._names[id(parameter.grad)] = name, True
        found = [self._names[id(tensor)] for tensor in given if id(tensor) in self._names]
        return tuple(name for name, _ in found), all(gradient for _, gradient in found)

    def _bucket(self, what: Sent, live: LiveGraph, node: int) -> tuple[str, ...]:
        """The parameters whose gradients a bucket holds; none where sizes do not say it."""
        names = {at: name for name, at in live.parameters.items()}
        outputs = live.reading.columns["outputs"]
        numel = sum(TensorBase.numel(tensor) for tensor in what.given)
        come = [at for at in (*(live.ran.nodes or ()), node) if at in names]
        registered = list(reversed(names))  # the first backward of DDP has them in this order
        for order in (list(dict.fromkeys(come)), registered):
            order = [at for at in order if at not in self._bucketed]
            if node not in order:
                continue
            found = _neighbours([_numel(outputs[at]) for at in order], numel, order.index(node))
            if found:
                self._bucketed.update(order[found])
                return tuple(names[at] for at in order[found])
        return ()


def _numel(outputs: Sequence[TensorMeta | None]) -> int:
    return prod(outputs[0].shape) if outputs and outputs[0] is not None else 0


def _neighbours(sizes: Sequence[int], total: int, member: int) -> slice:
    """Neighbours, `member` among them, whose sizes add up to a total; none if there are none."""
    for first in range(member, -1, -1):
        last, added = member + 1, sum(sizes[first : member + 1])
        while added < total and last < len(sizes):
            added += sizes[last]
            last += 1
        if added == total:
            return slice(first, last)
    return slice(0)


def _common(names: Sequence[str]) -> str:
    """The path of the module in which all these parameters are."""
    paths = [name.split(".")[:-1] for name in names]
    ends = zip(min(paths), max(paths), strict=False)  # in order, what these share all share
    return ".".join([first for first, _ in takewhile(lambda pair: pair[0] == pair[1], ends)])
