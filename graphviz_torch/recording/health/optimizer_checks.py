"""Check an optimizer: the learning rates, the clears of gradients, and the parameters it updates.

The optimizer's first gradient represents all of its gradients. It is checked when the optimizer
steps, and before and after each backward. If it changed outside of backward, the program cleared
the gradients. A learning rate is compared with earlier learning rates, because it may be zero
during warm-up and at the end.

At each step, the modules and parameters that the model's modules refer to are compared by identity
with those of earlier steps. For a large model, each step compares only some of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import getitem, is_
from types import FrameType
from typing import Any

from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from ...graph.immutable import NamedTuple
from ...graph.text import listing
from ...graph.units import number_text
from ...internals.functions import TensorBase
from ..optimizer_log import OptimizerRecord, learning_rate
from .checks import WatchReport, line_of

_ZERO_STEPS = 10  # a learning rate of 0 is reported after this number of consecutive steps
_RATE_JUMP = 500.0  # a learning rate jumped if it exceeds this many times the largest earlier rate
_RATE_AFTER = 10  # number of first steps in which a jump is not reported
_UNCLEARED_STEPS = 5  # uncleared gradients are reported after this number of consecutive steps


class OptimizerPast(OptimizerRecord):
    """The record of an optimizer, with its earlier learning rates and the state of its gradients.

    It keeps no gradient alive.

    Args:
        optimizer: the optimizer.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        super().__init__(optimizer)
        self.own: list[int] = []  # indices of the model's parameters that the optimizer updates
        self.guard = -1  # index of the parameter whose gradient is read at each step
        self.held: set[int] = set()  # id() of all parameters that the optimizer updates
        self.looked_up = -1  # version of the model's parameters when `own` was last updated
        self.backward_since = False  # True if backward computed gradients since the last step
        self._checked: list[float | None] = []  # the learning rates that were checked last
        self._largest: list[float] = []  # largest learning rate so far, by parameter group
        self._zero = 0  # number of consecutive steps with learning rate 0
        # id() and version of the first gradient at the last step; None if there was no gradient.
        self._gradient: tuple[int, int] | None = None
        self._sample: Tensor | None = None  # the parameter with the first gradient
        self._cleared = True  # True if the program cleared the first gradient after the last step
        self._uncleared = 0  # number of consecutive steps with gradients that were not cleared
        self._since = 0  # the first of the steps that `_uncleared` counts

    def check_rates(
        self, step: int, groups: Sequence[dict[str, Any]], frame: FrameType
    ) -> Iterator[WatchReport]:
        """Check the learning rates of the coming step.

        Args:
            step: number of the step.
            groups: parameter groups of the optimizer.
            frame: the frame that calls the step.
        """
        rates = self.rates
        if rates == self._checked and not self._zero:
            return
        zero = bool(rates) and all(rate == 0 for rate in rates) and any(self._largest)
        self._zero = self._zero + 1 if zero else 0
        if self._zero == _ZERO_STEPS:
            text = f"The learning rate of {self.kind}{line_of(frame)} is 0 from step "
            text += f"{step - _ZERO_STEPS + 1} on: its steps change nothing."
            yield WatchReport(step, "zero-learning-rate", text)
        if rates != self._checked:
            yield from self._check_jump(step, rates, groups, frame)
            self._checked = rates

    def _check_jump(
        self,
        step: int,
        rates: Sequence[float | None],
        groups: Sequence[dict[str, Any]],
        frame: FrameType,
    ) -> Iterator[WatchReport]:
        largest = self._largest + [0.0] * (len(rates) - len(self._largest))
        told = self.steps <= _RATE_AFTER
        for i, rate in enumerate(rates):
            usual = max(largest[i], learning_rate(groups[i], "initial_lr") or 0.0)
            largest[i] = max(largest[i], rate or 0.0)
            if rate is not None and usual and rate > _RATE_JUMP * usual and not told:
                text = (
                    f"The learning rate of {self.kind}{line_of(frame)} is {number_text(rate)} in "
                )
                text += f"step {step}: the largest before was {number_text(usual)}."
                yield WatchReport(step, "learning-rate-jump", text)
                told = True
        self._largest = largest

    @property
    def has_decayed(self) -> bool:
        """Return True if all learning rates of the optimizer decayed to almost zero."""
        pairs = zip(self.rates, self._largest, strict=False)
        return all(rate is not None and (rate == 0 or rate < 1e-3 * most) for rate, most in pairs)

    def uses(self, step: int, parameters: Sequence[tuple[str, Tensor]]) -> bool:
        """Record that the optimizer steps with the current gradients.

        Args:
            step: number of the step.
            parameters: names and parameters of the model.

        Returns:
            True if the missing clearing of gradients has to be reported at this step.
        """
        if self._cleared or not self.backward_since:
            self._uncleared = 0
        else:
            self._uncleared += 1
            if self._uncleared == 1:
                self._since = step
        self._sample = None
        for i in self.own:
            if parameters[i][1].grad is not None:
                self._sample = parameters[i][1]
                break
        self._gradient = self._gradient_key()
        self._cleared = self._gradient is None
        self.backward_since = False
        return self._uncleared == _UNCLEARED_STEPS

    def report_uncleared(self, step: int, frame: FrameType | None) -> Iterator[WatchReport]:
        """Yield a report that the gradients are not cleared, with the first such step."""
        text = f"The gradients are not cleared from step {self._since} on: {self.kind}"
        text += f"{line_of(frame)} steps with the sum over all steps."
        yield WatchReport(step, "missing-zero-grad", text)

    def on_backward_start(self) -> None:
        """Record, at the start of a backward, whether the program cleared the gradients."""
        if not self._cleared and self._gradient_key() != self._gradient:
            self._cleared = True

    def on_backward_end(self) -> None:
        """Record, at the end of a backward, whether it computed gradients of this optimizer."""
        if not self.backward_since and self._sample is not None:
            self.backward_since = self._cleared or self._gradient_key() != self._gradient

    def _gradient_key(self) -> tuple[int, int] | None:
        gradient = None if self._sample is None else self._sample.grad
        if gradient is None or TensorBase.is_inference(gradient):
            return None
        return id(gradient), gradient._version


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
