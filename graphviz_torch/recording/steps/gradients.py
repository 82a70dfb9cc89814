"""Check whether a program clears gradients between backward and step.

One parameter of each optimizer is sampled. Its gradient is checked when the optimizer
steps, and before and after each backward. If the gradient changed outside of backward, the program
cleared it. A recording keeps weak references to the parameter and its gradient. Between two
recordings only weak references to the optimizer and to the gradient's storage are kept, because a
weak reference to a tensor would make `torch.utils.swap_tensors` fail.
"""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any

from torch.optim import Optimizer

from ...graph.immutable import NamedTuple, mutable
from ...internals.frames import (
    CodePosition,
)
from ...internals.functions import TensorBase
from ...internals.hooks.modes import unseen_calls
from ...internals.hooks.optimizers import Stepped, Stepping
from ...internals.tensors.memory import is_dense, storage_id, storage_ref
from ...internals.tensors.references import Ref
from ..listener import BackwardBegan, BackwardEnded, Listener, Resumed, StepValues
from ..live import LiveGraph
from ..program import Program
from ..program.optimizers import closure_code
from ..resolver import Resolver

_MAX_OPTIMIZERS = 64  # a parameter is sampled for each of this number of latest optimizers


class _SteppedGradient(NamedTuple):
    """A gradient that an optimizer used, as it is remembered between two recordings."""

    optimizer: weakref.ref[Optimizer]
    storage: Any  # weak reference to the gradient's storage
    key: int  # id of the storage
    version: int  # version of the gradient


# id() of an optimizer -> the gradient that it used last, for the next recording.
_between: dict[int, _SteppedGradient] = {}


def _forget(key: int, _: object) -> None:
    _between.pop(key, None)


@mutable
class _GradientSample:
    """A sampled parameter of an optimizer, with its gradient at the last check."""

    optimizer: weakref.ref[Optimizer]
    parameter: Ref
    gradient: Ref | None
    version: int
    stepped: bool = True  # True if the optimizer used this gradient
    added: bool = False  # True if a backward added to the gradient after the optimizer used it

    def look(self) -> bool:
        """Check the gradient, and return True if it is None or changed since the last check."""
        parameter = self.parameter()
        gradient = None if parameter is None else parameter.grad
        version = -1 if gradient is None or TensorBase.is_inference(gradient) else gradient._version
        before = None if self.gradient is None else self.gradient()
        changed = gradient is not before or version != self.version
        self.gradient = None if gradient is None else Ref(gradient)
        self.version = version
        return changed or gradient is None

    def is_replaced(self) -> bool:
        """Return True if the program has assigned another gradient since the last check."""
        parameter, before = self.parameter(), None if self.gradient is None else self.gradient()
        return parameter is not None and parameter.grad is not before

    def memory(self) -> tuple[Any, int, int] | None:
        """Return the storage of the gradient as a weak reference and an id, and the version.

        Returns None if there is no dense gradient.
        """
        gradient = None if self.gradient is None else self.gradient()
        if gradient is None or not is_dense(gradient) or not (number := storage_id(gradient)):
            return None
        return storage_ref(gradient), number, self.version


class StaleGradients(Listener):
    """Listener that reports an optimizer that uses the gradients of an earlier step again."""

    needs = ()

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        # By id() of the optimizer, because an optimizer may be unhashable.
        self._samples: dict[int, _GradientSample] = {}
        # id() of an optimizer that is running a step with a closure -> line of the step
        self._closures: dict[int, CodePosition | None] = {}
        self._place: CodePosition | None = None  # line of the last step with stale gradients
        # Index of a graph -> value of `_place` when the graph was read.
        self._places: dict[int, CodePosition | None] = {}
        with unseen_calls():
            self._remember()

    def close(self) -> None:
        """Keep weak references for the next recording, which may record the next step."""
        with unseen_calls():
            self._store_between()

    def _store_between(self) -> None:
        """Store weak references to the gradients that optimizers used last in `_between`."""
        for key, sample in self._samples.items():
            optimizer = sample.optimizer()
            if optimizer is None or not sample.stepped or sample.look():
                continue
            if (memory := sample.memory()) is not None:
                ref = weakref.ref(optimizer, partial(_forget, key))
                _between[key] = _SteppedGradient(ref, *memory)
        self._samples.clear()

    def on_graph_read(self, live: LiveGraph) -> None:
        self._places[live.position] = self._place

    def on_backward_start(self, event: BackwardBegan) -> None:
        for sample in self._samples.values():
            if sample.stepped and sample.look():
                sample.stepped = False

    def on_backward_end(self, event: BackwardEnded) -> None:
        for sample in self._samples.values():
            if sample.stepped and sample.look():
                sample.added = True

    def on_optimizer_step_start(self, event: Stepping) -> None:
        place = self.program.place(event.frame)
        if closure_code(event.args) is None:
            self._use(event.optimizer, place)
        else:  # the closure computes the gradients, so they are checked at the end of the step
            self._closures[id(event.optimizer)] = place

    def on_optimizer_step_end(self, event: Stepped) -> None:
        key = id(event.optimizer)
        if key in self._closures:
            self._use(event.optimizer, self._closures.pop(key))

    def on_step_end(self, event: None) -> None:
        self._place, self._places = None, {}

    def on_resume(self, event: Resumed) -> None:
        """Forget the gradients that changed during a pause, and sample the event's optimizer."""
        for sample in self._samples.values():
            sample.stepped = not sample.look() and sample.stepped
            sample.added = False
        if event.optimizer is not None:
            self._sample(event.optimizer)

    def step_values(self, resolver: Resolver) -> StepValues:
        where = resolver.line(self._places[resolver.backward.position])
        return {"stale_gradients": where}

    def _use(self, optimizer: Optimizer, place: CodePosition | None) -> None:
        """Check at an optimizer's step whether it uses a gradient of an earlier step again."""
        sample = self._samples.pop(id(optimizer), None)
        self._sample(optimizer)
        if sample is None or sample.optimizer() is not optimizer:
            return  # a sample of an optimizer that was freed and had the same id()
        if sample.stepped and sample.added and not sample.is_replaced():
            self._place = place
            if self._places:  # the last graph, which was read before, belongs to this step, too
                self._places[max(self._places)] = place

    def _remember(self) -> None:
        """Take over from the last recording those gradients that have not changed since."""
        kept = list(_between.values())
        _between.clear()
        for optimizer, storage, *before in kept:
            known = optimizer()
            if known is None or storage.expired():
                continue
            self._sample(known)
            sample = self._samples.pop(id(known), None)
            memory = None if sample is None else sample.memory()
            if sample is not None and memory is not None and [*memory[1:]] == before:
                self._samples[id(known)] = sample

    def _sample(self, optimizer: Optimizer) -> None:
        """Sample the optimizer's first parameter that has a gradient."""
        parameters = (p for group in optimizer.param_groups for p in group["params"])
        first = next((p for p in parameters if p.grad is not None), None)
        self._samples.pop(id(optimizer), None)
        if first is not None and not TensorBase.is_inference(first.grad):
            gradient = first.grad
            self._samples[id(optimizer)] = _GradientSample(
                weakref.ref(optimizer), Ref(first), Ref(gradient), gradient._version
            )
        while len(self._samples) > _MAX_OPTIMIZERS:
            del self._samples[next(iter(self._samples))]
