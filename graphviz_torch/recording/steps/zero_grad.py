"""Whether gradients are cleared between the steps of an optimizer.

One parameter of each optimizer tells: it is looked at when the optimizer steps, and before and
after each backward. What changes its gradient outside of backward has cleared it.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch.optim import Optimizer

from ...internals.tensors.weak import Ref


@dataclass(slots=True)
class _Sample:
    """A parameter, and the gradient that it had when it was looked at last."""

    parameter: Ref
    gradient: Ref | None
    version: int
    stepped: bool = True  # has an optimizer stepped with a part of this gradient
    added: bool = False  # and has backward added to it since

    def look(self) -> bool:
        """Take the gradient of now; has it changed?"""
        parameter = self.parameter()
        gradient = None if parameter is None else parameter.grad
        version = -1 if gradient is None or gradient.is_inference() else gradient._version
        before = None if self.gradient is None else self.gradient()
        changed = gradient is not before or version != self.version
        self.gradient = None if gradient is None else Ref(gradient)
        self.version = version
        return changed or gradient is None


class ClearedGradients:
    """Told of every backward and every step, it knows whether gradients were cleared in between."""

    def __init__(self) -> None:
        self._samples: dict[int, _Sample] = {}  # by id() of the optimizer: not all can be hashed

    def begin(self) -> None:
        """Backward is about to run."""
        for sample in self._samples.values():
            if sample.stepped and sample.look():
                sample.stepped = False

    def end(self) -> None:
        """Backward has run."""
        for sample in self._samples.values():
            if sample.stepped and sample.look():
                sample.added = True

    def step(self, optimizer: Optimizer) -> bool:
        """An optimizer is about to step. Is a gradient that it has stepped with still in it?"""
        sample = self._samples.pop(id(optimizer), None)
        parameters = (p for group in optimizer.param_groups for p in group["params"])
        first = next((p for p in parameters if p.grad is not None), None)
        if first is not None and not first.grad.is_inference():
            gradient = first.grad
            self._samples[id(optimizer)] = _Sample(Ref(first), Ref(gradient), gradient._version)
        return sample is not None and sample.stepped and sample.added
