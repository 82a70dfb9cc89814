"""Detect that a model's parameters were replaced while an optimizer still updates the old ones.

At each step, the modules and parameters that the model's modules refer to are compared by identity
with those of earlier steps. For a large model, each step compares only some of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import getitem, is_
from types import FrameType
from typing import Any, NamedTuple

from torch import Tensor
from torch.nn import Module

from ...graph.text import listing
from .checks import WatchReport, line_of
from .optimizer_past import OptimizerPast

_MAX_LINKS = 128  # references to modules and parameters that are compared in one step
_PATIENCE = 3  # new parameters are reported if no optimizer has them after this number of steps
_LOOK_UP_EVERY = 100  # steps between comparisons of the whole model


class _ReplacedParameters(NamedTuple):
    step: int  # the step in which the replacement was found
    gone: set[int]  # id() of the old parameters
    new: list[int]  # indices of the new parameters


class ModelParameters:
    """The trainable parameters of a model, in a list in which no index ever changes.

    A parameter that replaces an old one gets the index and the name of the old one.
    """

    def __init__(self, model: Module) -> None:
        self._model = model
        self.names: list[str] = []
        self.tensors: list[tuple[str, Tensor]] = []
        self.version = 0  # incremented when parameters were replaced or added
        self._numbers: dict[str, int] = {}
        self._replaced: list[_ReplacedParameters] = []
        self._links: list[tuple[list[Any], list[str], list[Any]]] = []
        self._part = 0
        self._look_up(0)

    def look(self, step: int) -> None:
        """Check whether parameters of the next part of the model were replaced."""
        dicts, keys, objects = self._links[self._part]
        self._part = (self._part + 1) % len(self._links)
        try:
            same = all(map(is_, map(getitem, dicts, keys), objects))
        except KeyError:
            same = False
        if not same or step % _LOOK_UP_EVERY == _LOOK_UP_EVERY - 1:
            self._look_up(step)

    def reports(
        self, step: int, pasts: Sequence[OptimizerPast], frame: FrameType
    ) -> Iterator[WatchReport]:
        """Yield reports for new parameters that none of the optimizers updates.

        Args:
            step: number of the step.
            pasts: histories of the optimizers that step.
            frame: the frame that calls the step.
        """
        for each in list(self._replaced):
            tensors = [self.tensors[i][1] for i in each.new]
            held = any(id(tensor) in past.held for tensor in tensors for past in pasts)
            old = next((past for past in pasts if not past.held.isdisjoint(each.gone)), None)
            if held or old is None or step - each.step >= 2 * _LOOK_UP_EVERY:
                self._replaced.remove(each)
            elif step - each.step >= _PATIENCE and any(t.grad is not None for t in tensors):
                self._replaced.remove(each)
                names = tuple(self.names[i] for i in each.new)
                were, old_ones = ("was", "one") if len(names) == 1 else ("were", "ones")
                text = f"{listing(names)} {were} replaced before step {each.step}, but {old.kind}"
                text += f"{line_of(frame)} still updates the old {old_ones}."
                yield WatchReport(step, "replaced-parameters", text, names)

    @property
    def waits(self) -> bool:
        """Return True if `reports` may have to report replaced parameters."""
        return bool(self._replaced)

    def _look_up(self, step: int) -> None:
        before = {id(tensor) for _, tensor in self.tensors}
        known = len(self.tensors)
        found = [(n, p) for n, p in self._model.named_parameters() if p.requires_grad]
        new = [(name, tensor) for name, tensor in found if id(tensor) not in before]
        there = {id(tensor) for tensor in self._model.parameters()}
        gone = before - there
        for name, tensor in new:
            if name in self._numbers:
                self.tensors[self._numbers[name]] = name, tensor
            else:
                self._numbers[name] = len(self.names)
                self.names.append(name)
                self.tensors.append((name, tensor))
        if new and gone and known:
            numbers = [self._numbers[name] for name, _ in new]
            self._replaced.append(_ReplacedParameters(step, gone, numbers))
        self.version += bool(new or gone)
        links = [
            (holder, key, value)
            for module in self._model.modules()
            for holder in (module._modules, module._parameters)
            for key, value in holder.items()
        ]
        parts = [links[i : i + _MAX_LINKS] for i in range(0, len(links), _MAX_LINKS)] or [[]]
        self._links = [
            ([d for d, _, _ in part], [k for _, k, _ in part], [v for _, _, v in part])
            for part in parts
        ]
        self._part = 0
