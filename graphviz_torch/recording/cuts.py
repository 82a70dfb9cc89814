"""Where the way of a gradient was cut: a call took a tensor that needs a gradient, its result not.

Noted: `detach`, `detach_`, `.data`, reads into Python (`item`, `tolist`, `numpy`, `float`), results
that are integers or booleans (`argmax`, `long`, the indices of `topk`, a comparison), and every
call under `no_grad` or `inference_mode`. A cut is reported where its result, or what was computed
from it, came back into the graph, or where it hides a parameter that the graph does not reach in
another way. What a number that was read into Python is used for is not known: one that was read of
a loss before another loss ran backward is reported with that one, unless an earlier backward
reached the parameter.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from ..graph import TensorMeta
from ..internals.dynamo import uncompiled
from ..internals.metadata import tensor_meta
from ..internals.pytree import tensors
from ..tracing.nodes import GradFn, made_by
from .source_lines import Place
from .tracking import Following, name_of

_PLAIN = ("detach", "detach_", "data")
_READS = {"item", "tolist", "numpy", "float", "int", "bool", "complex", "index", "array"}
_OPERANDS = 32  # of one call that are noted: an optimizer gives all parameters to one
_PENDING_READS = 32  # numbers read: how many graphs they may keep until the next backward


@dataclass(slots=True, eq=False)
class SeenCut:
    """One cut. A trail of the tensor without a gradient that it made."""

    how: str
    tensor: TensorMeta
    labels: list[str]  # of the operands that need a gradient
    place: Place | None
    module: str
    in_forward: bool
    following: Following
    noted: Callable[[SeenCut], None]  # called when the result is read into Python
    fns: list[GradFn]  # what made the operands, until the next backward has been read
    after: list[int] = field(default_factory=list)  # numbers of the nodes that used the result
    carriers: int = 0  # living tensors that hold the result, or what was computed from it
    read: str = ""  # how the result was read into Python
    pending: bool = False  # was it read a short while ago: it may yet explain something

    def carry(self, made: Iterable[Tensor]) -> None:
        """Follow the tensors that the gradient does not reach because of this cut."""
        for tensor in made:
            if not tensor.requires_grad and self.following.add(tensor, self):
                self.carriers += 1

    @property
    def name(self) -> str:
        """What cut: a detach() that is there for numpy() alone goes by that."""
        return self.read if self.read and not self.after and self.how in _PLAIN else self.how

    @property
    def aside(self) -> bool:
        """Is it what is done with weights between forwards: an average of them, a norm to log."""
        leaves = all(type(fn).__name__ == "AccumulateGrad" for fn in self.fns)
        return leaves and not self.in_forward and not self.after

    def taken(self, func: Any, start: int, end: int, result: Any) -> None:
        """A call used the result: it made nodes, or a tensor that carries the cut on, or a read."""
        if end > start:
            fns = [tensor.grad_fn for tensor in tensors(result) if tensor.grad_fn is not None]
            self.after.extend(fn._sequence_nr() for fn in fns)
        elif made := tensors(result):
            self.carry(made)
        elif (name := name_of(func)) in _READS:
            self.read = name
            self.noted(self)

    def freed(self) -> None:
        """A tensor that carried the cut is gone; with the last one, what was cut off may go too."""
        self.carriers -= 1
        self._let_go()

    def forget(self) -> None:
        """The read was too long ago."""
        self.pending = False
        self._let_go()

    def _let_go(self) -> None:
        if not (self.carriers or self.after or self.pending):
            self.fns = []


class Cuts:
    """The cuts since the last backward.

    Args:
        following: to recognise the results of cuts.
        here: called at a cut with its operands; returns their labels, the user's line, the module,
            and whether a forward is running.
    """

    def __init__(
        self,
        following: Following,
        here: Callable[[list[Tensor]], tuple[list[str], Place | None, str, bool]],
    ) -> None:
        self._following = following
        self._here = here
        self._seen: list[SeenCut] = []
        self._reads: deque[SeenCut] = deque()

    @uncompiled
    def see(self, func: Any, arguments: Any, result: Any) -> None:
        """Look at a call whose result, or a part of it, needs no gradient."""
        operands = _needing(arguments)
        if not operands:
            return
        name = name_of(func)
        if name == "get":  # a property: `data` alone gets here
            name = "data"
        made = tensors(result)
        if any(tensor.requires_grad for tensor in made):
            # Beside values with a gradient, what can have none: the indices of topk and sort.
            made = [t for t in made if not (t.requires_grad or t.is_floating_point())]
            if not made or not all(t.is_floating_point() for t in tensors(arguments)):
                return  # what was an integer before is cut off from nothing
        if not made:
            if name not in _READS:
                return
        elif name.endswith("_like") or name.startswith(("new_", "register", "set")):
            return
        elif name not in _PLAIN and not torch.is_grad_enabled():
            name = "inference_mode" if torch.is_inference_mode_enabled() else "no_grad"
        if found := _sources(operands):
            self.cut(name, found, made)

    def cut(self, name: str, operands: dict[GradFn, Tensor], made: list[Tensor]) -> None:
        """Note a cut: what it is called, its operands, and the tensors without gradient it made."""
        cut_off = list(operands.values())
        meta = tensor_meta(made[0] if made else cut_off[0])
        cut = SeenCut(name, meta, *self._here(cut_off), self._following, self._read, list(operands))
        if made:
            self._seen.append(cut)
            cut.carry(made)
        else:
            self._read(cut)

    def _read(self, cut: SeenCut) -> None:
        if not cut.pending:
            cut.pending = True
            self._reads.append(cut)
            if len(self._reads) > _PENDING_READS:
                self._reads.popleft().forget()

    def take(self) -> list[SeenCut]:
        """The cuts so far; from now on others are collected."""
        found = list(dict.fromkeys((*self._seen, *self._reads)))
        self._seen, self._reads = [], deque()
        self._following.drop(found)
        return found


def sources(arguments: Any) -> dict[GradFn, Tensor]:
    """The operands of a call that need a gradient, by what made them."""
    return _sources(_needing(arguments))


def _needing(arguments: Any) -> list[Tensor]:
    needing = (tensor for tensor in tensors(arguments) if tensor.requires_grad)
    return list(islice(needing, _OPERANDS))


def _sources(operands: list[Tensor]) -> dict[GradFn, Tensor]:
    return {fn: tensor for tensor in operands if (fn := made_by(tensor)) is not None}
